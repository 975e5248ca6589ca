"""Start a run, and change it by hand; every change is a transition in the journal.

Everything that people decide about a run passes `RunCommands`, whoever asks: command line, library,
pages, MCP server, webhooks. So an agent is refused here (`ensure_may_decide`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from sequencer.engine.changes import Changes, of_run
from sequencer.engine.kinds import changes_of
from sequencer.errors import DecisionRefused, TransitionRefused
from sequencer.model import kind, transitions
from sequencer.model.commands import (
    Accept,
    Adopt,
    AnswerQuestion,
    CommandResult,
    Reset,
    RetryNow,
    RunCommand,
    SetField,
    Skip,
    SkipTo,
    StopNow,
    TakeOver,
)
from sequencer.model.head import Head
from sequencer.model.kind import CommandContext, Kind
from sequencer.model.limits import utc
from sequencer.model.moving import ensure_here
from sequencer.model.request import DEFINITION_FILE, Definition
from sequencer.model.transitions import Transition
from sequencer.model.workflow import Workflow, ensure_definition, graph_of
from sequencer.store.identity import is_inside_agent
from sequencer.store.leases import leases_of
from sequencer.store.protocol import Liveness, Store

if TYPE_CHECKING:
    from sequencer.engine.graph_changes import GraphChanges
    from sequencer.model.graph.source import FlowSource

AgentsMay = Callable[[str], bool]
"""Whether agents may use a verb that is for people."""


def agents_may_nothing(verb: str) -> bool:
    """Return False: without a project nobody allows an agent anything."""
    del verb
    return False


def ensure_may_decide(verb: str, agents_may: AgentsMay, what: str = "") -> None:
    """Return if a person asks, or *agents_may* use *verb*, which is for people.

    Raises:
        DecisionRefused: an agent may not do *what*, or use the verb.
        NotTrusted: nobody has trusted what allows it.
    """
    if is_inside_agent() and not agents_may(verb):
        raise DecisionRefused(what or verb, f"agents_may_decide: [{verb}] allows it")


def fresh_head(
    workflow: Workflow, name: str | None = None, *, has_definition: bool = False
) -> Head:
    """Return the head of a run of *workflow*, called *name*, that has not started."""
    run_id, at = str(uuid.uuid4()), utc(datetime.now(UTC))
    return kind.fresh_head(workflow, run_id, at=at, name=name, has_definition=has_definition)


def _initialised(head: Head, definition: Definition | None) -> Transition:
    """Return the first transition of the run of *head*, with what making it has used."""
    if definition is None:
        return transitions.initialise(head)
    usage, told = definition.usage, dict[str, Any]()
    if definition.assignment is not None:
        told["team"] = definition.assignment
    if figures := {name: value for name, value in vars(usage).items() if value}:
        told |= {"agent": definition.route.get("asked"), "usage": figures}
    return transitions.initialise(head.replace(usage=head.usage.plus(usage)), told or None)


class RunCommands:
    """Changes one run by hand."""

    def __init__(
        self,
        store: Store,
        workflow: Workflow,
        name: str | None = None,
        *,
        source: FlowSource | None = None,
        agents_may: AgentsMay = agents_may_nothing,
        redact: Callable[[str], str] = str,
    ) -> None:
        """Change the run *name* in *store*, which has *workflow* or is to have it.

        *source* says where the workflow of a graph comes from, if not from the settings. Where
        only people decide, *agents_may* is asked about an agent. *redact* removes secrets from
        what people write.
        """
        self._store = store
        self._name = name
        self._workflow = workflow
        self._source = source
        self._agents_may = agents_may
        self._redact = redact

    def __repr__(self) -> str:
        """Return which run it changes."""
        return f"<RunCommands of run {self._name or 'default'!r} in {self._store!r}>"

    def ensure_may_decide(self, verb: str, what: str = "") -> None:
        """Return if whoever asks may use *verb* in this run; see `ensure_may_decide`."""
        ensure_may_decide(verb, self._agents_may, what)

    def ensure_may_begin(self, head: Head | None) -> None:
        """Return if the run has a *head*, or whoever asks may begin it.

        A new run has limits of its own, and steps of mode async have none. So an agent begins
        only a run whose date has come.

        Raises: see `run_commands.ensure_may_decide`.
        """
        if head is None:
            run = "a run" if self._name is None else f"run {self._name!r}"
            self.ensure_may_decide("start", f"starting {run}")

    def start(self, definition: Definition) -> Head:
        """Start the run with *definition*, which is kept with it.

        Raises:
            TransitionRefused: a run of this name has already started.
            DecisionRefused: an agent asks.
        """
        self.ensure_may_begin(None)

        def change(head: Head | None) -> Transition:
            if head is not None:
                raise TransitionRefused(
                    f"start: run {head.run_name or 'default'!r} exists, at step_index "
                    f"{head.step_index}",
                    hint="choose another --run name, or continue with 'sequencer --run NAME run'",
                )
            # Before the head: after a crash in between, the next worker starts the run with it.
            self._store.keep_document(DEFINITION_FILE, definition.to_json())
            return _initialised(self._fresh(has_definition=True), definition)

        return self._store.update(change)

    def begin(self) -> Head:
        """Return the run's head; start the run if it has not started.

        Raises:
            DefinitionChanged: see `ensure_definition`.
            DecisionRefused: it has not started, and an agent asks.
        """
        head = self._store.view().head
        self.ensure_may_begin(head)
        if head is None or not self._store.state_path.exists():
            head = self._store.update(self._begin_or_keep)
        ensure_definition(head, self._workflow)
        return head

    def _begin_or_keep(self, head: Head | None) -> Transition | None:
        return self._first(self._fresh()) if head is None else None

    def _first(self, head: Head) -> Transition:
        """Return the first transition of the run of *head*, also where a `start` was cut off."""
        text = self._store.document(DEFINITION_FILE) if head.has_definition else None
        return _initialised(head, None if text is None else Definition.model_validate_json(text))

    def _fresh(self, *, has_definition: bool | None = None) -> Head:
        """Return the head of this run before it starts."""
        self._keep_source()
        return self._fresh_head(has_definition=has_definition)

    def _fresh_head(self, *, has_definition: bool | None = None) -> Head:
        if has_definition is None:
            # Only named runs are made from requests.
            is_named = self._name is not None
            has_definition = is_named and self._store.document(DEFINITION_FILE) is not None
        return self.kind.fresh(
            str(uuid.uuid4()),
            at=datetime.now(UTC),
            name=self._name,
            has_definition=has_definition,
        )

    def _keep_source(self, before: Head | None = None) -> None:
        """Keep what the run starts with: before the head, like a definition."""
        kept = self.kind.begins_with(self._source, before)
        if kept is not None:
            self._store.keep_document(*kept)

    @cached_property
    def _changes(self) -> Changes:
        return changes_of(self._store, self._workflow)

    @property
    def nodes(self) -> GraphChanges:
        """Return what knows the nodes of a graph's run.

        Raises:
            UsageRefused: the run has no graph.
        """
        graph_of(self._workflow)
        return cast("GraphChanges", self._changes)

    @property
    def kind(self) -> Kind:
        """Return what decides over the run."""
        return self._changes.kind

    def do(self, command: RunCommand, by: str = "") -> CommandResult:
        """Do what *command* says; *by* is who decides, answers or sends a message.

        Every change by a person passes here: secrets are removed from what they wrote, and an
        agent is refused.

        Raises:
            DecisionRefused: an agent asks.
            TransitionRefused: the run does not allow it as it stands, or its kind never does.
            UnknownName: there is no such node or question.
        """
        command = command.redacted(self._redact)
        self.kind.ensure_may(command.verb)
        if isinstance(command, AnswerQuestion):
            graph_of(self._workflow)
        head = None if command.without_run is None else self._started(command)
        if isinstance(command, AnswerQuestion) and head is not None:
            command = self._answer(head, command)
        made: list[Transition] = []

        def change(found: Head | None) -> Transition:
            if head is None:
                made.append(self._changed(found, command, by))
                return made[-1]
            there = self._started(command, found)
            if isinstance(command, AnswerQuestion):
                of_run(self._store, head.run_id, there)
            made.append(self._made(there, command, by))
            return made[-1]

        after = self._store.update(change)
        # Another process may have been faster: the last one was accepted.
        return CommandResult(after, made[-1].facts)

    def _started(self, command: RunCommand, head: Head | None = None) -> Head:
        """Return *head*, or the run's newest.

        Raises:
            TransitionRefused: the run has not started, so there is nothing to decide.
        """
        found = head or self._store.view().head
        if found is None:
            what, hint = command.without_run or ("", None)
            message = f"{command.verb}: the run has not started, so {what}"
            raise TransitionRefused(message, hint=hint)
        return found

    def _answer(self, head: Head, command: AnswerQuestion) -> AnswerQuestion:
        """Return *command* about the question that is asked now; one that is wrong is refused.

        This is before the lock: a wrong answer leaves no trace.
        """
        flow = self.nodes
        ensure_definition(head, self._workflow)
        _, marking = flow.marking(head)
        token = flow.graph_kind.asked(marking, command.node, command.text)
        return command if command.token is not None else replace(command, token=token)

    def _changed(self, head: Head | None, command: RunCommand, by: str) -> Transition:
        """Return what *command* makes of *head*; without one, the run starts with it."""
        if head is not None:
            return self._made(head, command, by)
        started = self._first(self._fresh_head())
        made = started.then(self._made(started.head, command, by))
        # Not if it is refused: a run that never started leaves no trace.
        self._keep_source()
        return made

    def _made(self, head: Head, command: RunCommand, by: str) -> Transition:
        if not command.is_free:
            self.ensure_may_decide(command.permission or command.verb)
        if not isinstance(command, SetField):
            # It is your way out if the other store is gone for good.
            ensure_here(head)
        if isinstance(command, SkipTo):
            return self._skipped_to(head, command)
        if isinstance(command, Reset):
            return self._reset(head, command)
        used = {}
        if isinstance(command, (TakeOver, StopNow)):
            leases = leases_of(self._store.state_path)
            used = {claim.token: leases.used(claim) for claim in head.claims}
        freed = self._without_dead(head) if isinstance(command, (Accept, RetryNow, Skip)) else None
        if freed is not None:
            made = freed.then(self._applied(freed.head, command, by=by, used=used))
        else:
            made = self._applied(head, command, by=by, used=used)
        if isinstance(command, Adopt):
            self._keep_source(head)
        return made

    def _applied(self, head: Head, command: RunCommand, **context: Any) -> Transition:
        made = self.kind.apply(head, command, CommandContext(at=datetime.now(UTC), **context))
        self._changes.keep_document(made)
        return made

    def _without_dead(self, head: Head) -> Transition | None:
        """Return *head* without the claim of a process that is provably gone; None: there is none.

        In a graph, each node says what becomes of its claim.
        """
        dead = [one for one in head.claims if self._store.liveness(one) is Liveness.DEAD]
        if not dead or not self.kind.has_one_place:
            return None
        used = leases_of(self._store.state_path).used(dead[0])
        return transitions.drop(head, dead[0], used, at=utc(datetime.now(UTC)))

    def _skipped_to(self, head: Head, command: SkipTo) -> Transition:
        """Return the steps of *command* skipped, in one change.

        Raises:
            ClaimHeld: another process works on the run and would lose its step.
            TransitionRefused: the run is no longer where it was seen.
        """
        for claim in head.claims:
            if not self._store.liveness(claim).allows_take_over:
                raise transitions.held_by(claim)
        if head.step_index != command.present:
            message = f"skip: the run has moved to step_index {head.step_index} in the meantime"
            raise TransitionRefused(message, hint="look at 'sequencer plan'")
        skip = Skip(command.note)
        made = self._applied(head, skip)
        while made.head.step_index < command.step_index:
            made = made.then(self._applied(made.head, skip))
        return made

    def _reset(self, head: Head, command: Reset) -> Transition:
        """Return a new run.

        Raises:
            TransitionRefused: the run that *command* names is complete no more, or another has
                been started since.
        """
        ended = command.ended
        if ended is not None and (head.run_id != ended or head.status != "complete"):
            raise TransitionRefused("reset: somebody started the run over in the meantime")
        made = self._applied(head, command, fresh=self._fresh_head())
        # Not if it is refused: the run then continues from what it started with.
        self._keep_source()
        return made

    def expire_waits(self) -> Head:
        """Record the configured decision if nobody decided in time."""

        def change(head: Head | None) -> Transition | None:
            if head is None or head.moved_to is not None:
                return None
            return self.kind.expire_waits(head, at=datetime.now(UTC))

        return self._store.update(change)
