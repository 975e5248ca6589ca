"""Flowcharts and teams as a kind: a marking, from which several nodes may be at work.

The marking of a head may stand in documents of the run, and what a choice goes by in kept
outputs. Both are read and kept by whom the net is given; the net itself decides only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, Protocol

from msgspec import Struct

from sequencer.errors import SequencerError, TransitionRefused, UsageRefused
from sequencer.model import command_rules
from sequencer.model.commands import Adopt, Pause, Resume, RunCommand, Stop
from sequencer.model.graph import command_rules as hands
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.choices import is_choice
from sequencer.model.graph.command_rules import Outputs, adopted
from sequencer.model.graph.ends import Acceptance, Rejection, TaskExpander, judge_end
from sequencer.model.graph.graph import TaskExpansion
from sequencer.model.graph.marking import FlowStatus, Marking, Reference, carried, text_of
from sequencer.model.graph.record import Chain
from sequencer.model.graph.source import FlowSource
from sequencer.model.graph.transition import OpenTransition, busy_ms, rest_of, transition_of
from sequencer.model.head import FLOW_DOCUMENT, Head, Work
from sequencer.model.kind import STAGNATED, AttemptResult, Capacity, CommandContext, Kind
from sequencer.model.limits import POSTPONED_S, due_again, is_past, iso, utc
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.sequence.order import Description, describe_node, present
from sequencer.model.transitions import Event, Fact, Transition, pause_after
from sequencer.model.workflow import Workflow, ensure_definition, graph_of, with_graph

_NOT_OF_A_GRAPH = {
    "async": (
        "mode async keeps no run, but a graph can't continue without one",
        None,
        "leave --mode out; 'sequencer plan --simulate' tries a flow without agents",
    ),
    "turn": ("a graph's nodes can't be performed by the caller", None, None),
    "step-index": (
        "is for cycles and procedures: which nodes of a graph come next depends on their ends",
        "--step-index",
        "'sequencer plan --simulate' shows a whole graph",
    ),
}
"""Ways to work that need a line of steps -> what to say of them, where, and what to do."""
Act = Callable[[OpenTransition], object]
"""What happens first in a transition; what follows from it is the transition's own to do."""


class MarkingReader(Protocol):
    """Knows the markings of heads, however they are written down."""

    def take(self, head: Head) -> tuple[Marking, Chain]:
        """Return the marking of *head*; the caller may change it.

        Raises:
            CorruptState: the run has none that could be read.
        """

    def begun(self, head: Head) -> tuple[Workflow, Marking, Chain]:
        """Return what the run of *head* was started with, whatever it is to be, and its marking.

        Raises: see `take`.
        """

    def look(self, head: Head) -> tuple[Head, Marking]:
        """Return *head* and its marking, or those of a newer head; for looking only.

        Raises: see `take`.
        """


class GraphKind(Kind):
    """A flowchart or a team, see `Kind`."""

    has_one_place: ClassVar[bool] = False

    def __init__(
        self,
        workflow: Workflow,
        markings: MarkingReader,
        outputs: Outputs,
        expander: TaskExpander | None = None,
    ) -> None:
        """Decide over runs of *workflow*; *expander* is who works on a team's.

        Raises:
            UsageRefused: see `graph_of`.
        """
        self.workflow = workflow
        self.graph = graph_of(workflow)
        """What a run begins with; a marking has the graph with what was added to it."""
        self._markings = markings
        self._outputs = outputs
        self._grower = expander
        self._grown: tuple[list[TaskExpansion], Workflow] = ([], workflow)

    def workflow_at(self, marking: Marking) -> Workflow:
        """Return the workflow with what *marking* has added to it."""
        (known, workflow), growths = self._grown, marking.growths
        if known != growths:
            is_more = growths[: len(known)] == known
            base, new = (workflow, growths[len(known) :]) if is_more else (self.workflow, growths)
            self._grown = list(growths), with_graph(base, new, marking.graph)
        return self._grown[1]

    def begins_with(
        self, source: FlowSource | None, before: Head | None = None
    ) -> tuple[str, bytes]:
        """Return the document that keeps the workflow as it was when the run started.

        People may edit the workflow's file later. *source* says where it is from. With *before*,
        the document also keeps what the run of that head was started with.
        """
        made = (source or FlowSource(workflow=self.workflow)).replace(workflow=self.workflow)
        if before is not None:
            # Both: a crash may leave the head that has the one or the head that has the other.
            made = made.replace(previous=self._markings.begun(before)[0])
        return FLOW_DOCUMENT, made.to_json()

    # --- one transition ------------------------------------------------------------

    def open(self, head: Head, *, at: datetime) -> OpenTransition:
        ensure_definition(head, self.workflow)
        marking, chain = self._markings.take(head)
        step = OpenTransition(head, marking, utc(at), at, self._hand_on, chain)
        if marking.is_over and marking.status is FlowStatus.RUNNING:
            step.editor.begin()
        return step

    def close(self, change: OpenTransition, work: Work | None = None) -> Transition:
        """Return what *change*, opened here, makes of its head; *work* is what moves with it.

        Keep the document of the result before its head.
        """
        made, rest, before = transition_of(change), rest_of(change.marking), change.before
        operations, keeps = change.editor.operations, None
        written = flow_record.write(change.marking, rest, before.flow, change.chain, operations)
        if written.document is not None and written.starts_anew:
            keeps = frozenset({written.document[0], *change.chain.names})
        change.chain = written.chain
        moved = {} if work is None else {"work": work}
        head = made.head.replace(flow=written.flow, **moved)
        return Transition(head, made.facts, written.document, keeps)

    def _hand_on(self, marking: Marking, name: str) -> tuple[str, Reference | None]:
        reference = carried(marking, name)
        if not is_choice(marking.graph, name):
            return "", reference
        return text_of(reference, self._outputs.read_output), reference

    def _made(self, head: Head, act: Act, capacity: Capacity | None, at: datetime) -> Transition:
        step = self.open(head, at=at)
        act(step)
        step.settle(capacity)
        return self.close(step)

    # --- as a kind -----------------------------------------------------------------

    def take(self, step: OpenTransition, ended: AttemptResult) -> RecordedResult:
        """Let *ended* end in *step*; return what the run makes of it.

        Raises:
            StaleClaim: its claim is gone.
        """
        taken = Taking(ended, step, self.workflow_at(step.marking), self._grower).take()
        if STAGNATED in ended.record:
            here, why = ended.place, str(ended.record[STAGNATED])
            fact = Fact(Event.PAUSED, here.step, here.step_index, ended.token, ended.attempt)
            paused = pause_after(step.head, fact, why)
            step.head = paused.head
            step.facts += paused.facts
        return taken

    def expire(self, head: Head, token: int, why: str, *, at: datetime) -> Transition:
        return self._made(
            head, lambda step: step.release(token, {"reason": why}, Usage()), None, at
        )

    def expire_waits(self, head: Head, *, at: datetime) -> Transition | None:
        """Expire unanswered questions, and end the run if its agents have used up their time.

        None: nothing has expired, or the run is on hold.
        """
        if head.is_on_hold:
            return None
        step = self.open(head, at=at)
        for act in expirations(step.marking, at, time_left_ms(step.head, step.marking, at)):
            act(step)
        step.settle(None)
        return self.close(step) if step.facts else None

    # --- by hand -------------------------------------------------------------------

    def apply(self, head: Head, command: RunCommand, context: CommandContext) -> Transition:
        self.ensure_may(command.verb)
        if (change := hands.CHANGES.get(type(command))) is not None:
            act = partial(change, command=command, by=context.by, outputs=self._outputs)
            return self._made(head, act, None, context.at)
        here = present(self.workflow, head)
        made = command_rules.of_every_kind(head, command, self.workflow, here, context)
        if isinstance(command, Stop | Pause | Resume):
            return self._with_clock(head, made, context.at)
        if not isinstance(command, Adopt):
            return made
        return adopted(head, made, self.workflow, self._markings.begun(head))

    def _with_clock(self, head: Head, made: Transition, at: datetime) -> Transition:
        """Return *made*, which holds the run of *head* or lets it go on, with the agents' time.

        The time until now counts as it did before. Held runs are not overdue.
        """
        marking, chain = self._markings.take(head)
        if marking.graph.timeout_ms is None or marking.is_over:
            return made
        step = OpenTransition(head, marking, utc(at), at, self._hand_on, chain)
        step.head, step.facts = made.head, list(made.facts)
        return self.close(step)

    # --- looking -------------------------------------------------------------------

    def startable(self, head: Head | None) -> list[str]:
        """Return the nodes that may start now, and those that wait for another try, in order."""
        if head is None:
            return list(self.graph.entries)
        head, marking = self._markings.look(head)
        if marking.is_over and marking.status is FlowStatus.RUNNING:
            return list(marking.graph.entries)
        held = {claim.step for claim in head.claims}
        found = {name for name in marking.waiting if marking.may_start(name)}
        found |= {
            name
            for name, one in marking.active.items()
            if one.since is None and one.error is None and name not in held
        }
        return sorted(found, key=marking.graph.urgency.__getitem__)

    def upcoming(
        self, head: Head | None, count: int, step_index: int | None = None
    ) -> list[Description]:
        """Return at most *count* nodes that come next; several may start at once.

        Raises:
            DefinitionChanged: the run of *head* was started with another graph.
            UsageRefused: *step_index* is given, and a graph has no such order.
        """
        if step_index is not None:
            self.ensure_may("step-index")
        if head is None:
            return [describe_node(self.workflow, name, 0) for name in self.startable(head)[:count]]
        ensure_definition(head, self.workflow)
        names, workflow = self.startable(head)[:count], self.workflow_of(head)
        return [describe_node(workflow, name, head.step_index) for name in names]

    def workflow_of(self, head: Head) -> Workflow:
        return self.workflow_at(self._markings.look(head)[1])

    @staticmethod
    def is_over(head: Head) -> bool:
        """Return whether the flow has come to an end, good or bad."""
        return head.flow is not None and head.flow.status != FlowStatus.RUNNING

    def positions(self, wanted: Collection[str]) -> list[str]:
        if wanted:
            raise UsageRefused(
                f"workflow {self.workflow.name!r} is a graph, which has no positions",
                hint="leave --position out; every process takes what can start",
            )
        return []

    @staticmethod
    def refusal(verb: str) -> SequencerError | None:
        if verb in ("approve", "feedback"):
            return TransitionRefused(
                f"{verb}: the run follows a graph, and its questions are answered",
                hint="'sequencer inbox' shows them, 'sequencer answer NODE VALUE' answers one",
            )
        if verb not in _NOT_OF_A_GRAPH:
            return None
        message, where, hint = _NOT_OF_A_GRAPH[verb]
        return UsageRefused(message, where=where, hint=hint)

    @staticmethod
    def asked(marking: Marking, name: str, said: str) -> int:
        """Return the token of the question of *name*, to which *said* can be the answer.

        Raises: see `graph.command_rules.asked_at` and `graph.command_rules.value_said`.
        """
        node, token = hands.asked_at(marking, name)
        hands.value_said(node, said)
        return token


def time_left_ms(head: Head, marking: Marking, now: datetime) -> float:
    """Return how long agents may still be at work; infinite where the graph has no limit."""
    limit = marking.graph.timeout_ms
    if limit is None or marking.busy_since is None:
        return float("inf")
    return limit - busy_ms(head, marking, now)


def expirations(marking: Marking, now: datetime, left_ms: float) -> list[Act]:
    """Return what is to happen because its time is over; *left_ms* is what its agents have."""
    acts: list[Act] = [end_in_time] if left_ms <= 0 else []
    expired = [n for n, one in marking.active.items() if one.since and is_past(one.due, now)]
    expired.sort(key=marking.graph.order.__getitem__)
    # Somebody may have answered between the look and the lock.
    return acts + [partial(expire_question, name=name) for name in expired]


def end_in_time(step: OpenTransition) -> None:
    """End the run if its time is over; it may have ended meanwhile, or its last agent."""
    is_on = step.marking.status is FlowStatus.RUNNING
    if is_on and time_left_ms(step.head, step.marking, step.now) <= 0:
        step.time_is_up()


def expire_question(step: OpenTransition, name: str) -> None:
    """Let the question of *name* expire, if it still waits and its time is over."""
    active = step.marking.active.get(name)
    if active is not None and active.since and is_past(active.due, step.now):
        step.expire(name)


class RecordedResult(Struct, frozen=True):
    """What a run has made of an attempt that has ended."""

    outcome: Outcome | None = None
    """What it took it as, where that is not what its agent has said."""
    then: str | None = None
    """Of one that was not accepted: what comes of that by itself."""


class Taking(Struct, frozen=True):
    """Lets an attempt end in a transition."""

    ended: AttemptResult
    step: OpenTransition
    workflow: Workflow
    """As it has grown."""
    expander: TaskExpander | None
    """None: the run is no team's."""

    def take(self) -> RecordedResult:
        """Return what the run makes of the attempt.

        Raises:
            StaleClaim: the claim is gone.
        """
        ended, step, outcome = self.ended, self.step, self.ended.outcome
        token, due = ended.token, None
        if outcome.status is OutcomeStatus.INTERRUPTED or outcome.is_put_off:
            if outcome.is_put_off:
                due = due_again(outcome, ended.attempt, step.now, ended.jitter)
            elif ended.postponed:
                due = iso(step.now + timedelta(seconds=POSTPONED_S))
            step.release(token, ended.record, outcome.usage, due)
            return RecordedResult()
        name = ended.place.step
        end = judge_end(
            ended,
            name,
            step.marking,
            step.now,
            workflow=self.workflow,
            expander=self.expander,
        )
        record = {**ended.record, **end.more} if end.more else ended.record
        instead = None if end.outcome.status is outcome.status else end.outcome
        if isinstance(end, Acceptance):
            decision = ended.decision if instead is None else None
            growth, reference = end.growth, ended.reference
            step.accept(token, end.outcome, reference, record, growth, decision=decision)
            return RecordedResult(instead)
        if isinstance(end, Rejection):
            step.refuse(token, outcome, record, end.fix)
            added = "it judges again" if end.fix is None else f"{end.fix.nodes[0].id!r} was added"
            return RecordedResult(then=f"{name!r} said no, and {added}")
        step.fail(token, end.outcome, record, due=end.due, kind=end.kind)
        again = "once more, by its replacement" if end.is_replaced else f"again at {end.due}"
        return RecordedResult(instead, None if end.due is None else f"{name!r} is tried {again}")
