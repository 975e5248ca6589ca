"""Starts a run, and carries out people's commands; every change is a transition in the journal.

Every decision of a person about a run goes through `RunCommands`, from the command line, the
library, the web pages, the MCP server and webhooks. So this is where an agent is refused
(`ensure_may_decide`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from sequencer.engine.changes import Changes, require_run
from sequencer.engine.kinds import make_changes
from sequencer.errors import DecisionRefused, TransitionRefused
from sequencer.model import transitions
from sequencer.model.commands import (
    Adopt,
    AnswerQuestion,
    CommandResult,
    Reset,
    RunCommand,
    SetField,
    Skip,
    SkipTo,
)
from sequencer.model.head import Claim, Head
from sequencer.model.kind import CommandContext, Kind
from sequencer.model.limits import format_utc_s
from sequencer.model.request import DEFINITION_FILE, Definition
from sequencer.model.store_move import ensure_here
from sequencer.model.transitions import Transition
from sequencer.model.workflow import Workflow, ensure_definition, require_graph
from sequencer.store.identity import is_inside_agent
from sequencer.store.leases import open_leases
from sequencer.store.protocol import Liveness, Store

if TYPE_CHECKING:
    from sequencer.engine.graph_changes import GraphChanges
    from sequencer.model.graph.source import FlowSource

AgentsMay = Callable[[str], bool]
"""Returns whether agents may use a verb that is for people."""


def agents_may_nothing(verb: str) -> bool:
    """Return False: only the settings of a project can allow an agent anything."""
    del verb
    return False


def ensure_may_decide(verb: str, agents_may: AgentsMay, what: str = "") -> None:
    """Check that the caller is a person, or that *agents_may* use *verb*, which is for people.

    *what* describes the act in the error; empty: *verb* does.

    Raises:
        DecisionRefused: an agent asks, and may not use the verb.
        NotTrusted: the setting that allows it has not been trusted.
    """
    if is_inside_agent() and not agents_may(verb):
        raise DecisionRefused(what or verb, f"agents_may_decide: [{verb}] allows it")


def _initialize_run(head: Head, definition: Definition | None) -> Transition:
    """Return the first transition of the run of *head*; it counts the cost of its definition."""
    if definition is None:
        return transitions.initialize(head)
    usage, details = definition.usage, dict[str, Any]()
    if definition.assignment is not None:
        details["team"] = definition.assignment
    if figures := {name: value for name, value in vars(usage).items() if value}:
        details |= {"agent": definition.route.get("asked"), "usage": figures}
    return transitions.initialize(head.replace(usage=head.usage.plus(usage)), details or None)


class RunCommands:
    """Carries out people's commands about one run."""

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
        """Change the run *name* in *store*, which has *workflow* or will start with it.

        *source* says where the workflow of a graph comes from; None: from the settings.
        *agents_may* is asked about verbs that are for people. *redact* removes secrets from the
        texts that people write.
        """
        self._store = store
        self._name = name
        self._workflow = workflow
        self._source = source
        self._agents_may = agents_may
        self._redact = redact

    def __repr__(self) -> str:
        """Return the name of the run and its store."""
        return f"<RunCommands of run {self._name or 'default'!r} in {self._store!r}>"

    def ensure_may_decide(self, verb: str, what: str = "") -> None:
        """Check that the caller may use *verb* in this run; see the function of this name."""
        ensure_may_decide(verb, self._agents_may, what)

    def ensure_may_begin(self, head: Head | None) -> None:
        """Check that the run has a *head*, or that the caller may start it.

        A new run has its own limits, and steps of mode async have none. So an agent may start
        only a scheduled run whose date has come, unless the project allows more.

        Raises: see `run_commands.ensure_may_decide`.
        """
        if head is None:
            run = "a run" if self._name is None else f"run {self._name!r}"
            self.ensure_may_decide("start", f"starting {run}")

    def start(self, definition: Definition) -> Head:
        """Start the run with *definition*, and keep the definition with the run.

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
            # Before the head: after a crash here, the next worker starts the run with it.
            self._store.keep_document(DEFINITION_FILE, definition.to_json())
            return _initialize_run(self._prepare_fresh_head(has_definition=True), definition)

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
        return self._make_first_transition(self._prepare_fresh_head()) if head is None else None

    def _make_first_transition(self, head: Head) -> Transition:
        """Return the first transition of the run of *head*, even after a `start` that crashed."""
        text = self._store.read_document(DEFINITION_FILE) if head.has_definition else None
        return _initialize_run(head, None if text is None else Definition.model_validate_json(text))

    def _prepare_fresh_head(self, *, has_definition: bool | None = None) -> Head:
        """Return the head of this run before it starts."""
        self._keep_source()
        return self._make_fresh_head(has_definition=has_definition)

    def _make_fresh_head(self, *, has_definition: bool | None = None) -> Head:
        if has_definition is None:
            # Only named runs are made from requests.
            is_named = self._name is not None
            has_definition = is_named and self._store.read_document(DEFINITION_FILE) is not None
        return self.kind.create_head(
            str(uuid.uuid4()),
            at=datetime.now(UTC),
            name=self._name,
            has_definition=has_definition,
        )

    def _keep_source(self, old_head: Head | None = None) -> None:
        """Keep the source that the run starts with; before the head, like a definition."""
        document = self.kind.build_start_document(self._source, old_head)
        if document is not None:
            self._store.keep_document(*document)

    @cached_property
    def _changes(self) -> Changes:
        return make_changes(self._store, self._workflow)

    @property
    def nodes(self) -> GraphChanges:
        """Return the changes of a graph's run, which can read its nodes.

        Raises:
            UsageRefused: the run has no graph.
        """
        require_graph(self._workflow)
        return cast("GraphChanges", self._changes)

    @property
    def kind(self) -> Kind:
        """Return the kind of the run, which decides about it."""
        return self._changes.kind

    def do(self, command: RunCommand, by: str = "") -> CommandResult:
        """Do *command*; *by* is the person whose decision, answer or message it is.

        Every change by a person goes through here: secrets are removed from what they wrote, and
        an agent is refused.

        Raises:
            DecisionRefused: an agent asks.
            TransitionRefused: the run does not allow it now, or its kind never does.
            UnknownName: there is no such node or question.
            UsageRefused: see `RunCommand.ensure_texts`.
        """
        command.ensure_texts()
        command = command.redact_texts(self._redact)
        self.kind.ensure_supported(command.verb)
        if isinstance(command, AnswerQuestion):
            require_graph(self._workflow)
        head = None if command.without_run is None else self._require_started(command)
        if isinstance(command, AnswerQuestion) and head is not None:
            command = self._add_question_token(head, command)
        tries: list[Transition] = []

        def change(present: Head | None) -> Transition | None:
            if head is None:
                tries.append(self._change_or_start(present, command, by))
                return tries[-1]
            started_head = self._require_started(command, present)
            if isinstance(command, AnswerQuestion):
                require_run(self._store, head.run_id, started_head)
            tries.append(self._transition(started_head, command, by))
            return tries[-1] if tries[-1].facts else None

        new_head = self._store.update(change)
        # The store tries again if another process was faster; the last try was accepted.
        return CommandResult(new_head, tries[-1].facts)

    def _require_started(self, command: RunCommand, head: Head | None = None) -> Head:
        """Return *head*, or the run's newest head.

        Raises:
            TransitionRefused: the run has not started, so there is nothing to decide.
        """
        current_head = head or self._store.view().head
        if current_head is None:
            problem, hint = command.without_run or ("", None)
            message = f"{command.verb}: the run has not started, so {problem}"
            raise TransitionRefused(message, hint=hint)
        return current_head

    def _add_question_token(self, head: Head, command: AnswerQuestion) -> AnswerQuestion:
        """Return *command* with the token of the question that is open now.

        A wrong answer is refused here, before the lock, so that it leaves no trace.
        """
        flow = self.nodes
        ensure_definition(head, self._workflow)
        _, marking = flow.marking(head)
        token = flow.graph_kind.find_question_token(marking, command.node, command.text)
        return command if command.token is not None else replace(command, token=token)

    def _change_or_start(self, head: Head | None, command: RunCommand, author: str) -> Transition:
        """Return the transition of *command* at *head*; without a head, it also starts the run."""
        if head is not None:
            return self._transition(head, command, author)
        first_transition = self._make_first_transition(self._make_fresh_head())
        transition = first_transition.combine(
            self._transition(first_transition.head, command, author)
        )
        # Only after the command was checked: a refused start leaves no trace.
        self._keep_source()
        return transition

    def _transition(self, head: Head, command: RunCommand, author: str) -> Transition:
        if not command.is_free:
            self.ensure_may_decide(command.permission or command.verb)
        if not isinstance(command, SetField):
            # A field may be set even here: it helps if the other store is lost permanently.
            ensure_here(head)
        if isinstance(command, SkipTo):
            return self._skip_to(head, command)
        if isinstance(command, Reset):
            return self._reset(head, command)
        leases, transition = open_leases(self._store.state_path), Transition(head, ())
        usage_by_token = {claim.token: leases.read_usage(claim) for claim in head.claims}
        if command.drops_dead_claim:
            transition = self._drop_dead_claim(head)
        transition = transition.combine(
            self._apply(transition.head, command, by=author, used=usage_by_token)
        )
        if isinstance(command, Adopt):
            self._keep_source(head)
        return transition

    def _apply(self, head: Head, command: RunCommand, **context: Any) -> Transition:
        transition = self.kind.apply(head, command, CommandContext(at=datetime.now(UTC), **context))
        self._changes.keep_document(transition)
        return transition

    def _drop_dead_claim(self, head: Head) -> Transition:
        """Return the transition that drops the claim of a dead process, if there is one.

        Only in a sequence: in a graph, the commands decide about the claims of nodes.
        """
        for claim in head.claims if self.kind.has_one_place else ():
            if self._store.liveness(claim) is Liveness.DEAD:
                return self._drop_claim(head, claim)
        return Transition(head, ())

    def _drop_claim(self, head: Head, claim: Claim) -> Transition:
        """Return the transition that drops *claim*; the usage of its attempt is counted."""
        usage = open_leases(self._store.state_path).read_usage(claim)
        return transitions.drop(head, claim, usage, at=format_utc_s(datetime.now(UTC)))

    def _skip_to(self, head: Head, command: SkipTo) -> Transition:
        """Return one transition that skips all steps up to the target of *command*.

        A claim that a `run` could take over is dropped first.

        Raises:
            ClaimHeld: another process works on the run and would lose its step.
            TransitionRefused: the run has moved since the person looked at it.
        """
        for claim in head.claims:
            if not self._store.liveness(claim).allows_take_over:
                raise transitions.claim_held_error(claim)
        if head.step_index != command.present:
            message = f"skip: the run has moved to step_index {head.step_index} in the meantime"
            raise TransitionRefused(message, hint="look at 'sequencer plan'")
        skip, transition = Skip(command.note), Transition(head, ())
        for claim in head.claims:
            transition = transition.combine(self._drop_claim(transition.head, claim))
        transition = transition.combine(self._apply(transition.head, skip))
        while transition.head.step_index < command.step_index:
            transition = transition.combine(self._apply(transition.head, skip))
        return transition

    def _reset(self, head: Head, command: Reset) -> Transition:
        """Return the transition to a new run.

        Raises:
            TransitionRefused: the run that *command* names is no longer complete, or another one
                has been started since.
        """
        end = command.ended
        if end is not None and (head.run_id != end or head.status != "complete"):
            raise TransitionRefused("reset: the run was started over in the meantime")
        transition = self._apply(head, command, fresh=self._make_fresh_head())
        # Only after the command was checked: a refused reset must keep the old run's source.
        self._keep_source()
        return transition

    def expire_waits(self) -> Head:
        """Record the configured decision if no person decided in time."""

        def change(head: Head | None) -> Transition | None:
            if head is None or head.moved_to is not None:
                return None
            return self.kind.expire_waits(head, at=datetime.now(UTC))

        return self._store.update(change)
