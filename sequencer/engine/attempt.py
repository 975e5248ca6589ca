"""A step that is ready to start, and one attempt at it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from sequencer.engine.allowance import Allowance
from sequencer.engine.evidence import NO_PRIOR, PriorAttempts
from sequencer.errors import Interrupted, MachineBusy, is_fault_of_attempt, to_machine_busy
from sequencer.executors.attempt_lock import AttemptLock
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.protocol import Executor, Identity, Listener, Piece, StepRequest
from sequencer.model.head import Claim, Head, Session
from sequencer.model.kind import AttemptResult
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage, sum_usages
from sequencer.model.step import Step
from sequencer.model.transitions import StepRef
from sequencer.model.workflow import Workflow
from sequencer.store import results

if TYPE_CHECKING:
    from sequencer.engine.merge_order import MergeTurn
    from sequencer.model.graph.graph import Node
    from sequencer.model.graph.graph_kind import RecordedResult
    from sequencer.model.graph.marking import Marking, Reference


class PreparedStep(Struct, frozen=True):
    """A step that is ready to start, with everything that it needs."""

    step: Step
    position: str
    place: StepRef
    agent: str
    executor: Executor
    prompt: str
    """The prompt's text, as the file has it."""
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    note: str | None = None
    """How the step was chosen, for the history; None: in the usual way."""
    instead: str | None = None
    """Why *agent* performs the step; None: it is the step's own agent."""

    @property
    def step_index(self) -> int:
        """Return the index of the step in the run."""
        return self.place.step_index


class StepLog(Listener, Protocol):
    """The log of one attempt."""

    path: str

    def write_request(self, request: StepRequest, to: str) -> None:
        """Write the prompt of *request*, which goes *to* the agent or the router."""

    def close(self, outcome: Outcome) -> None:
        """Write how the attempt ended and close the file."""


class _NoLog(StepLog):
    """Ignores everything: no log is open."""

    path = ""

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        """Ignore *data*."""

    def report_usage(self, usage: Usage) -> None:
        """Ignore *usage*."""

    def write_request(self, request: StepRequest, to: str) -> None:
        """Ignore *request*."""

    def close(self, outcome: Outcome) -> None:
        """Ignore *outcome*."""


_NO_LOG = _NoLog()
_NOT_RUN = Outcome(status=OutcomeStatus.FAILED, error="no agent has run")


class Leftovers(Struct, frozen=True):
    """The files that an attempt left in its own folder, and what was done with them."""

    error: str | None = None
    """Why the work does not count, which files it is about, and where they are kept."""
    notices: tuple[str, ...] = ()
    """What a person should know."""
    journal_fields: tuple[tuple[str, str], ...] = ()
    """(key, value) for the journal, such as the merged commit or the branch with the work."""


class Attempt(Struct, kw_only=True):
    """Everything known so far about one attempt at a step, from its claim to its record.

    One thread works on it at a time. The layers (`engine.layers`) fill it in.
    """

    claim: Claim
    head: Head
    """The run right after the claim. For a node, with the conversation that reached the node."""
    prepared: PreparedStep
    """The step that runs; the router, a hook or a fallback may replace it."""
    workflow: Workflow
    """With the tasks that were added before the claim."""
    cwd: Path
    """Where the agent works."""
    state_path: Path
    result_path: Path
    token: int
    """0 in async mode, which holds no claim."""
    lock_path: Path | None = None
    """The lock that the step's processes hold; None if there is no claim."""
    subject: str | None = None
    """For a task: what it is about, and which role does it."""
    marking: Marking | None = None
    """The graph's marking right after the claim; None: the step of a sequence."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    budget: Allowance = Allowance()
    prior: PriorAttempts = NO_PRIOR
    compose: Callable[[str], str] | None = None
    """Makes the prompt from the text of its file; None: the text is the prompt."""

    started_s: float = field(default_factory=time.monotonic)
    began_at: str | None = None
    """ISO 8601 UTC with milliseconds; None: no log was opened, and no listener was notified."""
    log: StepLog = _NO_LOG
    listener: Listener = _NO_LOG
    """Receives the output of its agents, for the log and for the listeners of the run."""
    lock: AttemptLock | None = None
    session: Session | None = None
    """The conversation that its agent continues."""
    notes: tuple[str, ...] = ()
    """Blocks of the prompt about where the agent works, and earlier work that was set aside."""
    agent_usage: Usage | None = None
    """What the running agent has used so far; None: it has not written anything yet."""
    used: Usage = Usage()
    """What all its agents have used so far."""
    paid: list[Usage] = field(default_factory=list)
    """The usage of each agent that has run, including the router. For an agent that raised, what
    it had reported by then."""
    outcome: Outcome = _NOT_RUN
    """The outcome of the agents that have run."""
    is_final: bool = False
    """Whether another attempt would fail in the same way; in that case, no agent has run."""
    ended: AttemptResult | None = None
    """How it ended, once that is known."""
    counted: Usage = Usage()
    """The part of its usage that another process counted when it took over the step."""
    reference: Reference | None = None
    """Where its output was kept."""
    merge_turn: MergeTurn | None = None
    """For a task: when its work may be merged."""
    leftovers: Leftovers | None = None
    """The files that its agent left in its folder."""
    recorded_result: RecordedResult | None = None
    """How the run recorded its end; None: it did not."""
    record_was_tried: bool = False
    """Whether this process has tried to record its end; the record may have been accepted."""
    failure: Exception | None = None
    """Why it can't start; it fails immediately."""
    error: BaseException | None = None
    """The exception that ended it, if there is no result."""

    # --- which attempt it is -----------------------------------------------------------

    @property
    def run_id(self) -> str:
        """Return the id of its run."""
        return self.head.run_id

    @property
    def run_name(self) -> str | None:
        """Return the name of its run; None: the default run."""
        return self.head.run_name

    @property
    def step(self) -> Step:
        """Return the step that runs."""
        return self.prepared.step

    @property
    def position(self) -> str:
        """Return the name of the step that the cycle normally has here, even in a review."""
        return self.prepared.position

    @property
    def agent(self) -> str:
        """Return the name of the agent that performs it."""
        return self.prepared.agent

    @property
    def step_index(self) -> int:
        """Return the index of the step in the run."""
        return self.claim.step_index

    @property
    def iteration(self) -> int:
        """Return step_index + 1."""
        return self.claim.step_index + 1

    @property
    def node(self) -> Node | None:
        """Return the node that it runs; None: the step of a sequence."""
        return None if self.marking is None else self.marking.graph.by_id[self.claim.step]

    @property
    def is_first(self) -> bool:
        """Return whether it is the first attempt at its step.

        A retry or a fix restarts the count of attempts at 1, but not the count of the usage.
        """
        spent_usage = () if self.marking is None else self.marking.ledger.spent
        return self.claim.attempt == 1 and self.claim.step not in spent_usage

    @property
    def number(self) -> int:
        """Return the number of the attempt at its step, from 1."""
        return self.claim.attempt

    def identity(self) -> Identity:
        """Return the facts that every process of this attempt gets."""
        head, claim = self.head, self.claim
        return Identity(
            step=self.prepared.step.name,
            token=self.token,
            run_id=head.run_id,
            run_name=head.run_name,
            workflow=head.workflow_name,
            position=self.prepared.position,
            step_index=claim.step_index,
            attempt=claim.attempt,
            result_path=self.result_path,
            state_path=self.state_path,
        )

    # --- while it runs -----------------------------------------------------------------

    def write_notice(self, text: str, before: str = "") -> None:
        """Write *text* to its log as a line from the sequencer, with *before* in front of it."""
        self.listener.write(f"{before}[sequencer] {text}\n".encode(), Piece.NOTICE)

    @contextmanager
    def use_separate_result(self) -> Iterator[None]:
        """In the block, use a different result file, for one more agent of this attempt."""
        first_path = self.result_path
        with results.separate_file(first_path) as separate_path:
            self.result_path = separate_path
            try:
                yield
            finally:
                self.result_path = first_path

    def wait_for_turn(self) -> None:
        """Wait until its work may be merged.

        Raises:
            Interrupted: another process has taken over its step.
        """
        if self.merge_turn is not None:
            self.merge_turn.wait(self.cancellation)
        if self.cancellation.reason in (StopReason.CLAIM_LOST, StopReason.LEASE_LOST):
            raise Interrupted("interrupted")

    # --- how it ended ------------------------------------------------------------------

    def make_result(self, outcome: Outcome) -> AttemptResult:
        """Return the result of this attempt if it ends with *outcome*."""
        prepared_step, claim = self.prepared, self.claim
        return AttemptResult(
            outcome,
            prepared_step.step,
            prepared_step.place,
            prepared_step.agent,
            claim.token,
            claim.attempt,
        )

    @property
    def release_reason(self) -> StopReason | None:
        """Return why it was interrupted, for the record that ends its claim; None: it was not.

        `CLAIM_LOST` in a record means a charge after the claim was gone. A record that can end
        the claim shows that the claim was not lost, whatever the process had seen before.
        """
        reason = self.cancellation.reason
        return StopReason.INTERRUPTED if reason is StopReason.CLAIM_LOST else reason

    @property
    def ends_the_work(self) -> bool:
        """Return whether the process can't continue: it has to end, or can't keep an output.

        Three kinds of errors don't end the work. A bug in an executor is a failure of its node, and
        so is a result that can't be recorded. If this machine is out of a resource, other attempts
        may still succeed.
        """
        if self.busy is not None:
            return False
        return self.error is not None and not is_fault_of_attempt(self.error)

    @property
    def busy(self) -> MachineBusy | None:
        """Return why this machine could not run the agent; None: that was not the reason."""
        return to_machine_busy(self.error)

    @property
    def is_given_back(self) -> bool:
        """Return whether it doesn't count: this machine was busy, and the attempt cost nothing."""
        return self.busy is not None and not (self.has_cost or self.usage.unpriced)

    @property
    def has_cost(self) -> bool:
        """Return whether it has used money or tokens."""
        usage = self.usage
        return bool(usage.cost_usd or usage.input_tokens or usage.output_tokens)

    @property
    def has_debt(self) -> bool:
        """Return whether it has used anything limited that the run has not counted yet.

        Less than a second is no debt, because the start of a claim is known only to the second.
        """
        return self.has_cost or self.usage.minus(self.counted).seconds >= 1.0

    @property
    def usage(self) -> Usage:
        """Return what it has used; known even without a result."""
        return sum_usages(self.paid) if self.ended is None else self.ended.outcome.usage
