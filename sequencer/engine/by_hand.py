"""Start a run, and change it by hand; every change is a transition in the journal.

Everything that people decide about a run passes `Control`, whoever asks: command line, library,
pages, MCP server, webhooks. So an agent is refused here (`ensure_may_decide`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from sequencer.engine.kinds import changes_of
from sequencer.engine.patience import Changes, of_run
from sequencer.errors import DecisionRefused, TransitionRefused
from sequencer.model import kind, transitions
from sequencer.model.head import Head
from sequencer.model.kind import Kind
from sequencer.model.limits import utc
from sequencer.model.moving import ensure_here
from sequencer.model.request import DEFINITION_FILE, Definition
from sequencer.model.transitions import Transition
from sequencer.model.workflow import Workflow, ensure_definition, graph_of
from sequencer.store.identity import is_inside_agent
from sequencer.store.leases import leases_of
from sequencer.store.protocol import Store

if TYPE_CHECKING:
    from sequencer.engine.markings import NetChanges
    from sequencer.model.net.source import FlowSource

_WITHOUT_RUN = {
    "answer": ("there is no question to answer", None),
    "tell": (
        "nobody would read it",
        "'sequencer run' starts it; 'sequencer status --all' lists the others, --run names one",
    ),
}
"""Decision about a run that has not started -> why it is useless, and what helps."""


_FREE = frozenset({"stop", "pause", "tell"})
"""What an agent may do as well; see docs/how-to/trust-a-project.md."""
_PERMISSIONS = {
    **dict.fromkeys(("stamp", "fail"), "skip"),
    **dict.fromkeys(("approve", "reject", "feedback"), "answer"),
    "start-at": "run",
}
"""Verb of the model -> the verb that `agents_may_decide` has for it, if it has another name."""

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


class Control:
    """Changes one run by hand."""

    def __init__(
        self,
        store: Store,
        workflow: Workflow,
        name: str | None = None,
        source: FlowSource | None = None,
        agents_may: AgentsMay = agents_may_nothing,
    ) -> None:
        """Change the run *name* in *store*, which has *workflow* or is to have it.

        *source* says where the workflow of a graph comes from, if not from the settings. Where
        only people decide, *agents_may* is asked about an agent.
        """
        self._store = store
        self._name = name
        self._workflow = workflow
        self._source = source
        self._agents_may = agents_may

    def __repr__(self) -> str:
        """Return which run it changes."""
        return f"<Control of run {self._name or 'default'!r} in {self._store!r}>"

    def ensure_may_decide(self, verb: str, what: str = "") -> None:
        """Return if whoever asks may use *verb* in this run; see `by_hand.ensure_may_decide`."""
        ensure_may_decide(verb, self._agents_may, what)

    def ensure_may_begin(self, head: Head | None) -> None:
        """Return if the run has a *head*, or whoever asks may begin it.

        A new run has limits of its own, and steps of mode async have none. So an agent begins
        only a run whose date has come.

        Raises: see `by_hand.ensure_may_decide`.
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
        return fresh_head(self._workflow, self._name, has_definition=has_definition)

    def _keep_source(self, before: Head | None = None) -> None:
        """Keep what the run starts with: before the head, like a definition."""
        kept = self.kind.begins_with(self._source, before)
        if kept is not None:
            self._store.keep_document(*kept)

    @cached_property
    def _changes(self) -> Changes:
        return changes_of(self._store, self._workflow)

    @property
    def nodes(self) -> NetChanges:
        """Return what knows the nodes of a graph's run.

        Raises:
            UsageRefused: the run has no graph.
        """
        graph_of(self._workflow)
        return cast("NetChanges", self._changes)

    @property
    def kind(self) -> Kind:
        """Return what decides over the run."""
        return self._changes.kind

    def _change(self, change: Callable[[Head], Transition]) -> Head:
        def apply(head: Head | None) -> Transition:
            if head is not None:
                return change(head)
            begun = self._first(self._fresh_head())
            made = begun.then(change(begun.head))
            # Not if it is refused: a run that never started leaves no trace.
            self._keep_source()
            return made

        return self._store.update(apply)

    def _by_hand(self, verb: str, by: str = "", **words: Any) -> Head:
        return self._change(partial(self._decided, verb=verb, by=by, words=words))

    def _decided(
        self,
        head: Head,
        *,
        verb: str,
        by: str = "",
        words: Mapping[str, Any] = MappingProxyType({}),
        permission: str = "",
    ) -> Transition:
        """Return what *verb* makes of *head*; every change by hand passes here.

        *permission* is the verb of which an agent needs the permission if not of this one.
        """
        if verb not in _FREE:
            self.ensure_may_decide(permission or _PERMISSIONS.get(verb, verb))
        if verb != "set":
            # It is your way out if the other store is gone for good.
            ensure_here(head)
        made = self.kind.by_hand(head, verb, words, at=datetime.now(UTC), by=by)
        self._changes.keep_document(made)
        return made

    def stamp_ok(
        self, note: str | None = None, node: str | None = None, output: str | None = None
    ) -> Head:
        """Accept the current step by hand; for a fixer, only the fix is accepted.

        In a graph accept *node*, as if it had answered *output*.
        """
        return self._by_hand("stamp", note=note, node=node, output=output)

    def stamp_fail(self, note: str | None = None, node: str | None = None) -> Head:
        """Mark the current step, or *node*, as failed."""
        return self._by_hand("fail", note=note, node=node)

    def skip(self, note: str | None = None, node: str | None = None) -> Head:
        """Skip the current step, or *node*; after a fixer, the verdict is asked again."""
        return self._by_hand("skip", note=note, node=node)

    def skip_to(self, step_index: int, note: str, *, present: int) -> Head:
        """Skip the steps from *present* up to *step_index*, in one change; see `skip`.

        Raises:
            ClaimHeld: another process works on the run and would lose its step.
            TransitionRefused: the run is no longer at *present*.
        """
        skip = partial(self._decided, verb="skip", words={"note": note}, permission="run")

        def change(head: Head) -> Transition:
            for claim in head.claims:
                if not self._store.liveness(claim).allows_take_over:
                    raise transitions.held_by(claim)
            if head.step_index != present:
                message = f"skip: the run has moved to step_index {head.step_index} in the meantime"
                raise TransitionRefused(message, hint="look at 'sequencer plan'")
            made = skip(head)
            while made.head.step_index < step_index:
                made = made.then(skip(made.head))
            return made

        return self._change(change)

    def retry(self, node: str | None = None) -> Head:
        """Let failed steps be tried again at once; in a graph, also nodes that its end stopped.

        With *node*, only that one.
        """
        return self._by_hand("retry", node=node)

    def rewind(self, to: int | str) -> Head:
        """Go back to the step_index *to*, whose step runs next; in a graph to the node *to*.

        Whatever the node leads to runs again as well.
        """
        return self._by_hand("rewind", to=str(to))

    def start_at(self, node: str) -> Head:
        """Start the run of a graph, in which nothing has started, at *node*.

        Only this node and the nodes after it run.
        """
        return self._by_hand("start-at", node=node)

    def set_field(self, field: str, value: Any) -> Head:
        """See `by_hand.edit_field`."""
        return self._by_hand("set", field=field, value=value)

    def reset(self, *, ended: str | None = None) -> Head:
        """Start over with the configured workflow.

        Raises:
            TransitionRefused: the run with the id *ended* is complete no more, or another has
                been started since.
        """

        def change(head: Head) -> Transition:
            if ended is not None and (head.run_id != ended or head.status != "complete"):
                raise TransitionRefused("reset: somebody started the run over in the meantime")
            made = self._decided(head, verb="reset", words={"fresh": self._fresh_head()})
            # Not if it is refused: the run then continues from what it started with.
            self._keep_source()
            return made

        return self._change(change)

    def adopt(self) -> Head:
        """Continue with the configured workflow."""

        def change(head: Head) -> Transition:
            made = self._decided(head, verb="adopt")
            self._keep_source(head)
            return made

        return self._change(change)

    def approve(self, note: str | None = None, *, by: str, token: int | None = None) -> Head:
        """Let the run continue after its gate; *token* belongs to the gate that was read."""
        self.kind.ensure_may("approve")
        return self._decide("approve", by, note=note, token=token)

    def reject(self, note: str | None = None, *, by: str, token: int | None = None) -> Head:
        """End the run at its gate; a graph's run is canceled, wherever it is."""
        return self._decide("reject", by, note=note, token=token)

    def feedback(self, text: str, *, by: str, token: int | None = None) -> Head:
        """Send the run back with *text*; it will come to the gate again."""
        self.kind.ensure_may("feedback")
        return self._decide("feedback", by, text=text, token=token)

    def answer(self, node: str, said: str, *, by: str, token: int | None = None) -> Head:
        """Answer the question of *node* with *said*: an option's value or label, or a text.

        Raises:
            UnknownName: no node of this name is waiting, or there is no such option.
            TransitionRefused: by now another question is waiting, not the one with *token*.
        """
        flow, head = self.nodes, self._begun("answer")
        ensure_definition(head, self._workflow)
        head, marking = flow.marking(head)
        # Before the lock: an invalid answer leaves no trace.
        asked = flow.net.asked(marking, node, said)
        token = asked if token is None else token
        return self._decide("answer", by, run_id=head.run_id, node=node, text=said, token=token)

    def tell(self, node: str | None, text: str, *, by: str) -> Head:
        """Send *text* to the step, position or node *node*; its next attempt has it in its prompt.

        None, in a run without a graph: to the next attempt, whatever its step.

        Raises:
            UnknownName: the run has no such step.
            TransitionRefused: the step is done and never runs again, so nobody would read it.
        """
        return self._decide("tell", by, node=node, text=text)

    def lapse(self) -> Head:
        """Record the configured decision if nobody decided in time."""

        def change(head: Head | None) -> Transition | None:
            if head is None or head.moved_to is not None:
                return None
            return self.kind.lapse(head, at=datetime.now(UTC))

        return self._store.update(change)

    def _begun(self, verb: str, head: Head | None = None) -> Head:
        """Return *head*, or the run's newest.

        Raises:
            TransitionRefused: the run has not started, so there is nothing to decide.
        """
        found = head or self._store.view().head
        if found is None:
            what, hint = _WITHOUT_RUN.get(verb, ("no gate is waiting", None))
            raise TransitionRefused(f"{verb}: the run has not started, so {what}", hint=hint)
        return found

    def _decide(self, verb: str, by: str, run_id: str | None = None, **words: Any) -> Head:
        """Apply a decision about the run *run_id*. A run that has not started has nothing open."""
        # Before the lock, whose file would be the first trace of a run.
        self._begun(verb)

        def apply(head: Head | None) -> Transition:
            there = self._begun(verb, head)
            if run_id is not None:
                of_run(self._store, run_id, there)
            return self._decided(there, verb=verb, by=by, words=words)

        return self._store.update(apply)

    def take_over(self, *, stops: bool = False) -> Head:
        """Drop every claim; the results of their holders are then refused.

        *stops* says that it is a part of ``stop --now``, for which there is another permission.
        """
        permission, leases = "stop" if stops else "takeover", leases_of(self._store.state_path)

        def drop(head: Head) -> Transition:
            words = {"used": {claim.token: leases.used(claim) for claim in head.claims}}
            return self._decided(head, verb="takeover", permission=permission, words=words)

        return self._change(drop)

    def stop(self, reason: str | None = None) -> Head:
        """Let the running step end, and start no other."""
        return self._by_hand("stop", reason=reason)

    def pause(self) -> Head:
        """Pause the run after the running step; waiting processes keep waiting."""
        return self._by_hand("pause")

    def resume(self) -> Head:
        """Undo `pause` and `stop`."""
        return self._by_hand("resume")
