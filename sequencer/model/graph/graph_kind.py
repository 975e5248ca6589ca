"""Flowcharts and graphs of tasks as a kind: a marking, in which several nodes may be active.

The marking of a head may be in documents of the run, and the outputs that select branches are in
files. The arguments `markings` and `outputs` read and store them; the kind itself only decides.
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
from sequencer.model.graph.command_rules import Outputs, carry_over_marking
from sequencer.model.graph.ends import Acceptance, Rejection, TaskExpander, judge_end
from sequencer.model.graph.graph import TaskExpansion
from sequencer.model.graph.marking import (
    FlowStatus,
    Marking,
    Reference,
    find_incoming_output,
    read_text,
)
from sequencer.model.graph.record import Chain
from sequencer.model.graph.source import FlowSource
from sequencer.model.graph.transition import (
    OpenTransition,
    build_transition,
    busy_ms,
    resting_status,
)
from sequencer.model.head import FLOW_DOCUMENT, Head, Work
from sequencer.model.kind import STAGNATED, AttemptResult, Capacity, CommandContext, Kind
from sequencer.model.limits import (
    POSTPONED_S,
    compute_pause_end,
    format_utc_ms,
    is_past,
)
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.sequence.order import Description, describe_node, find_current_ref
from sequencer.model.transitions import Event, Fact, Transition, pause_after
from sequencer.model.workflow import Workflow, ensure_definition, require_graph, with_graph

_NOT_OF_A_GRAPH = {
    "async": (
        "mode async keeps no run, but a graph can't continue without one",
        None,
        "leave --mode out; 'sequencer plan --simulate' tries a flow without agents",
    ),
    "turn": ("a graph's nodes can't be performed by the caller", None, None),
    "step-index": (
        "is for cycles and procedures: which nodes of a graph come next depends on earlier results",
        "--step-index",
        "'sequencer plan --simulate' shows a whole graph",
    ),
}
"""Ways to work that need a sequence of steps -> the message, its place, and the hint."""
Act = Callable[[OpenTransition], object]
"""The first change in a transition; the transition itself adds what follows from it."""


class MarkingReader(Protocol):
    """Reads the markings of heads, wherever they are stored."""

    def pop_marking(self, head: Head) -> tuple[Marking, Chain]:
        """Return the marking of *head*; the caller may change it.

        Raises:
            CorruptState: the marking is missing or can't be read.
        """

    def read_at_start(self, head: Head) -> tuple[Workflow, Marking, Chain]:
        """Return the workflow that the run of *head* was started with, and its marking.

        Raises: see `pop_marking`.
        """

    def read_marking(self, head: Head) -> tuple[Head, Marking]:
        """Return *head* and its marking, or those of a newer head; the caller must not change them.

        Raises: see `pop_marking`.
        """


class GraphKind(Kind):
    """A flowchart or a graph of tasks, see `Kind`."""

    has_one_place: ClassVar[bool] = False

    def __init__(
        self,
        workflow: Workflow,
        markings: MarkingReader,
        outputs: Outputs,
        expander: TaskExpander | None = None,
    ) -> None:
        """Decide about runs of *workflow*; *expander* is for graphs of tasks.

        Raises:
            UsageRefused: see `require_graph`.
        """
        self.workflow = workflow
        self.graph = require_graph(workflow)
        """The graph at the start of a run; a marking has the graph with added tasks."""
        self._markings = markings
        self._outputs = outputs
        self._expander = expander
        self._expanded: tuple[list[TaskExpansion], Workflow] = ([], workflow)

    def workflow_at(self, marking: Marking) -> Workflow:
        """Return the workflow with the tasks that were added in *marking*."""
        (known_expansions, workflow), expansions = self._expanded, marking.growths
        if known_expansions != expansions:
            is_more = expansions[: len(known_expansions)] == known_expansions
            base, new_expansions = (
                (workflow, expansions[len(known_expansions) :])
                if is_more
                else (self.workflow, expansions)
            )
            self._expanded = list(expansions), with_graph(base, new_expansions, marking.graph)
        return self._expanded[1]

    def build_start_document(
        self, source: FlowSource | None, before: Head | None = None
    ) -> tuple[str, bytes]:
        """Return the document that keeps the workflow as it was when the run started.

        People may edit the workflow's file later. *source* says where the workflow comes from. With
        *before*, the document also has the workflow that the run of that head was started with.
        """
        document = (source or FlowSource(workflow=self.workflow)).replace(workflow=self.workflow)
        if before is not None:
            # Keep both: after a crash, the head may refer to either of them.
            document = document.replace(previous=self._markings.read_at_start(before)[0])
        return FLOW_DOCUMENT, document.to_json()

    # --- one transition ------------------------------------------------------------

    def open(self, head: Head, *, at: datetime) -> OpenTransition:
        ensure_definition(head, self.workflow)
        marking, chain = self._markings.pop_marking(head)
        step = OpenTransition(head, marking, at, self._hand_on, chain)
        if marking.is_over and marking.status is FlowStatus.RUNNING:
            step.editor.begin()
        return step

    def close(self, change: OpenTransition, work: Work | None = None) -> Transition:
        """Return *change*, which `open` returned, as a transition; *work* is the code to record.

        The caller has to store the document of the result before its head.
        """
        transition, rest_status, old_head = (
            build_transition(change),
            resting_status(change.marking),
            change.before,
        )
        operations, kept_names = change.editor.operations, None
        record = flow_record.write(
            change.marking, rest_status, old_head.flow, change.chain, operations
        )
        if record.document is not None and record.is_whole:
            kept_names = frozenset({record.document[0], *change.chain.names})
        change.chain = record.chain
        work_update = {} if work is None else {"work": work}
        head = transition.head.replace(flow=record.flow, **work_update)
        return Transition(head, transition.facts, record.document, kept_names)

    def _hand_on(self, marking: Marking, name: str) -> tuple[str, Reference | None]:
        reference = find_incoming_output(marking, name)
        if not is_choice(marking.graph, name):
            return "", reference
        return read_text(reference, self._outputs.read_output), reference

    def _apply_act(
        self, head: Head, act: Act, capacity: Capacity | None, at: datetime
    ) -> Transition:
        step = self.open(head, at=at)
        act(step)
        step.settle(capacity)
        return self.close(step)

    # --- as a kind -----------------------------------------------------------------

    def apply_result(self, step: OpenTransition, result: AttemptResult) -> RecordedResult:
        """Apply *result* to *step*; return what follows from it.

        Raises:
            StaleClaim: its claim is gone.
        """
        result_record = ResultApplier(
            result, step, self.workflow_at(step.marking), self._expander
        ).apply()
        if STAGNATED in result.record:
            ref, reason = result.place, str(result.record[STAGNATED])
            fact = Fact(Event.PAUSED, ref.step, ref.step_index, result.token, result.attempt)
            pause_transition = pause_after(step.head, fact, reason)
            step.head = pause_transition.head
            step.facts += pause_transition.facts
        return result_record

    def expire(self, head: Head, token: int, why: str, *, at: datetime) -> Transition:
        return self._apply_act(
            head, lambda step: step.release(token, {"reason": why}, Usage()), None, at
        )

    def expire_waits(self, head: Head, *, at: datetime) -> Transition | None:
        """Expire unanswered questions, and end the run if its agents have used up their time.

        None: nothing has expired, or the run is on hold.
        """
        if head.is_on_hold:
            return None
        step = self.open(head, at=at)
        for act in find_expirations(step.marking, at, time_left_ms(step.head, step.marking, at)):
            act(step)
        step.settle(None)
        return self.close(step) if step.facts else None

    # --- commands ------------------------------------------------------------------

    def apply(self, head: Head, command: RunCommand, context: CommandContext) -> Transition:
        self.ensure_supported(command.verb)
        if (change := hands.CHANGES.get(type(command))) is not None:
            act = partial(change, command=command, by=context.by, outputs=self._outputs)
            return self._apply_act(head, act, None, context.at)
        current_ref = find_current_ref(self.workflow, head)
        transition = command_rules.apply_common_command(
            head, command, self.workflow, current_ref, context
        )
        if isinstance(command, Stop | Pause | Resume):
            return self._with_clock(head, transition, context.at)
        if not isinstance(command, Adopt):
            return transition
        return carry_over_marking(
            head, transition, self.workflow, self._markings.read_at_start(head)
        )

    def _with_clock(self, head: Head, transition: Transition, at: datetime) -> Transition:
        """Return *transition*, which holds or continues the run of *head*, with the agents' time.

        The time until now counts in the usual way. While a run is on hold, no time counts.
        """
        marking, chain = self._markings.pop_marking(head)
        if marking.graph.timeout_ms is None or marking.is_over:
            return transition
        step = OpenTransition(head, marking, at, self._hand_on, chain)
        step.head, step.facts = transition.head, list(transition.facts)
        return self.close(step)

    # --- reading -------------------------------------------------------------------

    def list_startable(self, head: Head | None) -> list[str]:
        """Return the nodes that may start now, and those that wait for their next try, in order."""
        if head is None:
            return list(self.graph.entries)
        head, marking = self._markings.read_marking(head)
        if marking.is_over and marking.status is FlowStatus.RUNNING:
            return list(marking.graph.entries)
        held_names = {claim.step for claim in head.claims}
        names = {name for name in marking.waiting if marking.may_start(name)}
        names |= {
            name
            for name, execution in marking.active.items()
            if execution.since is None and execution.error is None and name not in held_names
        }
        return sorted(names, key=marking.graph.urgency.__getitem__)

    def list_upcoming(
        self, head: Head | None, count: int, step_index: int | None = None
    ) -> list[Description]:
        """Return at most *count* nodes that come next; several may start at once.

        Raises:
            DefinitionChanged: the run of *head* was started with another graph.
            UsageRefused: *step_index* is given, and a graph has no such order.
        """
        if step_index is not None:
            self.ensure_supported("step-index")
        if head is None:
            return [
                describe_node(self.workflow, name, 0) for name in self.list_startable(head)[:count]
            ]
        ensure_definition(head, self.workflow)
        names, workflow = self.list_startable(head)[:count], self.get_workflow(head)
        return [describe_node(workflow, name, head.step_index) for name in names]

    def get_workflow(self, head: Head) -> Workflow:
        return self.workflow_at(self._markings.read_marking(head)[1])

    @staticmethod
    def is_over(head: Head) -> bool:
        """Return whether the run of the graph has ended, successfully or not."""
        return head.flow is not None and head.flow.status != FlowStatus.RUNNING

    def resolve_positions(self, wanted: Collection[str]) -> list[str]:
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
                f"{verb}: a graph has no gates; it asks questions",
                hint="'sequencer inbox' shows them, 'sequencer answer NODE VALUE' answers one",
            )
        if verb not in _NOT_OF_A_GRAPH:
            return None
        message, location, hint = _NOT_OF_A_GRAPH[verb]
        return UsageRefused(message, where=location, hint=hint)

    @staticmethod
    def find_question_token(marking: Marking, name: str, answer: str) -> int:
        """Return the token of the question of *name*, for which *answer* is valid.

        Raises: see `graph.command_rules.find_question` and `graph.command_rules.answer_value`.
        """
        node, token = hands.find_question(marking, name)
        hands.answer_value(node, answer)
        return token


def time_left_ms(head: Head, marking: Marking, now: datetime) -> float:
    """Return how long agents may still work; infinite if the graph has no limit."""
    limit = marking.graph.timeout_ms
    if limit is None or marking.busy_since is None:
        return float("inf")
    return limit - busy_ms(head, marking, now)


def find_expirations(marking: Marking, now: datetime, left_ms: float) -> list[Act]:
    """Return the changes for everything whose time is up; *left_ms* is the agents' time left."""
    acts: list[Act] = [end_if_overdue] if left_ms <= 0 else []
    expirations = [
        name
        for name, execution in marking.active.items()
        if execution.since and is_past(execution.due, now)
    ]
    expirations.sort(key=marking.graph.order.__getitem__)
    # Each change checks again: a person may have answered before this process got the lock.
    return acts + [partial(expire_question, name=name) for name in expirations]


def end_if_overdue(step: OpenTransition) -> None:
    """End the run if its time is up, unless the run or its last agent has already ended."""
    is_on = step.marking.status is FlowStatus.RUNNING
    if is_on and time_left_ms(step.head, step.marking, step.now) <= 0:
        step.time_out()


def expire_question(step: OpenTransition, name: str) -> None:
    """Expire the question of *name* if it is still open and its time is up."""
    execution = step.marking.active.get(name)
    if execution is not None and execution.since and is_past(execution.due, step.now):
        step.expire(name)


class RecordedResult(Struct, frozen=True):
    """What follows from an attempt that has ended."""

    outcome: Outcome | None = None
    """The outcome that counts, if it differs from what the agent reported."""
    then: str | None = None
    """What happens automatically after an attempt that was not accepted, in words."""


class ResultApplier(Struct, frozen=True):
    """Applies the end of an attempt to a transition."""

    result: AttemptResult
    step: OpenTransition
    workflow: Workflow
    """With the added tasks."""
    expander: TaskExpander | None
    """None: the graph has no tasks."""

    def apply(self) -> RecordedResult:
        """Apply the end of the attempt and return what follows from it.

        Raises:
            StaleClaim: the claim is gone.
        """
        result, step, outcome = self.result, self.step, self.result.outcome
        token, due_text = result.token, None
        if outcome.status is OutcomeStatus.INTERRUPTED or outcome.is_put_off:
            if outcome.is_put_off:
                due_text = compute_pause_end(outcome, result.attempt, step.now, result.jitter)
            elif result.postponed:
                due_text = format_utc_ms(step.now + timedelta(seconds=POSTPONED_S))
            step.release(
                token,
                result.record,
                outcome.usage,
                due_text,
                is_given_back=result.is_given_back,
            )
            return RecordedResult()
        name = result.place.step
        end = judge_end(
            result,
            name,
            step.marking,
            step.now,
            workflow=self.workflow,
            expander=self.expander,
        )
        record = {**result.record, **end.more} if end.more else result.record
        replaced_outcome = None if end.outcome.status is outcome.status else end.outcome
        if isinstance(end, Acceptance):
            decision = result.decision if replaced_outcome is None else None
            growth, reference = end.growth, result.reference
            step.accept(token, end.outcome, reference, record, growth, decision=decision)
            return RecordedResult(replaced_outcome)
        if isinstance(end, Rejection):
            step.refuse(token, outcome, record, end.fix)
            next_text = (
                "it judges again" if end.fix is None else f"{end.fix.nodes[0].id!r} was added"
            )
            return RecordedResult(then=f"{name!r} said no, and {next_text}")
        step.fail(token, end.outcome, record, due=end.due, kind=end.kind)
        retry_text = "again, by its replacement" if end.is_replaced else f"again at {end.due}"
        return RecordedResult(
            replaced_outcome, None if end.due is None else f"{name!r} is tried {retry_text}"
        )
