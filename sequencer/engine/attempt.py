"""A step that can be started, and one attempt at it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from sequencer.engine.allowance import Allowance
from sequencer.engine.evidence import NO_PRIOR, PriorAttempts
from sequencer.errors import (
    Interrupted,
    MachineBusy,
    SequencerError,
    failed_disk,
    out_of_resources,
)
from sequencer.executors.attempt_lock import AttemptLock
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.protocol import Executor, Identity, Listener, Piece, StepRequest
from sequencer.model.head import Claim, Head, Session
from sequencer.model.kind import AttemptResult
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage, total
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
    """A step that can be started: everything it needs was found."""

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
    """What history tells of how it was chosen, where that is odd."""
    instead: str | None = None
    """Why *agent* performs it and not the step's own, if that is so."""

    @property
    def step_index(self) -> int:
        """Return where the step is."""
        return self.place.step_index


class StepLog(Listener, Protocol):
    """The log of one attempt."""

    path: Path

    def sent(self, request: StepRequest, to: str) -> None:
        """Write what the agent is about to get: the prompt of *request*, and *to* whom it goes."""

    def close(self, outcome: Outcome) -> None:
        """Write how it ended and close the file."""


class _NoLog(StepLog):
    """Keeps nothing: no log was opened."""

    path = Path()

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        """Forget *data*."""

    def used(self, usage: Usage) -> None:
        """Forget *usage*."""

    def sent(self, request: StepRequest, to: str) -> None:
        """Forget *request*."""

    def close(self, outcome: Outcome) -> None:
        """Forget *outcome*."""


_NO_LOG = _NoLog()
_NOT_RUN = Outcome(status=OutcomeStatus.FAILED, error="no agent has run")


class Leftovers(Struct, frozen=True):
    """What an attempt has left in a folder of its own, and what became of it."""

    error: str | None = None
    """Why it does not count, what the files are, and where the work is kept."""
    notices: tuple[str, ...] = ()
    """What a person should know."""
    told: tuple[tuple[str, str], ...] = ()
    """For the journal: the commit that was merged, the branch that was kept."""


class Attempt(Struct, kw_only=True):
    """One attempt at a step, from its claim to its record: what is known of it so far.

    One thread works on it at a time. The layers (`engine.layers`) fill it in.
    """

    claim: Claim
    head: Head
    """The run right after the claim. Of a node, with the conversation that has reached it."""
    prepared: PreparedStep
    """What runs; the router, a hook and a fallback may replace it."""
    workflow: Workflow
    """As it has grown by then."""
    cwd: Path
    """Where the agent works."""
    state_path: Path
    result_path: Path
    token: int
    """0 in async mode, which holds no claim."""
    lock_path: Path | None = None
    """Of the step's processes; None where there is no claim."""
    subject: str | None = None
    """Of a task: what it is about, and whose it is."""
    marking: Marking | None = None
    """Of a node: the graph's, right after the claim."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    budget: Allowance = Allowance()
    known: PriorAttempts = NO_PRIOR
    compose: Callable[[str], str] | None = None
    """Makes the prompt of what its file says; None: that is the prompt."""

    started_s: float = field(default_factory=time.monotonic)
    began_at: str | None = None
    """ISO 8601 UTC, to the millisecond; None: no log was opened, and nobody has heard of it."""
    log: StepLog = _NO_LOG
    listener: Listener = _NO_LOG
    """Takes what its agents say, for the log and for the listeners of the run."""
    lock: AttemptLock | None = None
    session: Session | None = None
    """The conversation that its agent continues."""
    notes: tuple[str, ...] = ()
    """What the prompt says of where it works, and of earlier attempts that were set aside."""
    told: Usage | None = None
    """What the agent that runs has used so far; None: it has said nothing at all."""
    used: Usage = Usage()
    """What all its agents have used so far."""
    paid: list[Usage] = field(default_factory=list)
    """Of each agent that has run, the router included; of one that was broken off what it told."""
    outcome: Outcome = _NOT_RUN
    """Of the agents that have run."""
    is_final: bool = False
    """Another attempt would fail in the same way; no agent was run."""
    ended: AttemptResult | None = None
    """How it ended, once that is known."""
    counted: Usage = Usage()
    """Of its use, by whoever took its step over in the meantime."""
    reference: Reference | None = None
    """Where its output was kept."""
    turn: MergeTurn | None = None
    """Of a task: when its work may be merged."""
    left: Leftovers | None = None
    """What became of what its agent has left."""
    taken: RecordedResult | None = None
    """What the run has made of its end."""
    was_told: bool = False
    """Whether a record of its end was tried, which may have been accepted."""
    failure: Exception | None = None
    """Why it can't even start; it fails at once."""
    error: BaseException | None = None
    """What was raised instead."""

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
        """Return the name of the step that the cycle has at this place, also in a review."""
        return self.prepared.position

    @property
    def agent(self) -> str:
        """Return the name of the agent that performs it."""
        return self.prepared.agent

    @property
    def step_index(self) -> int:
        """Return where the step is."""
        return self.claim.step_index

    @property
    def iteration(self) -> int:
        """Return step_index + 1."""
        return self.claim.step_index + 1

    @property
    def node(self) -> Node | None:
        """Return the node that it works at; None: the step of a sequence."""
        return None if self.marking is None else self.marking.graph.by_id[self.claim.step]

    @property
    def is_first(self) -> bool:
        """Return whether nobody has tried its step before.

        After a retry, and behind a fix, attempts are counted anew; what was used is not.
        """
        spent = () if self.marking is None else self.marking.ledger.spent
        return self.claim.attempt == 1 and self.claim.step not in spent

    @property
    def number(self) -> int:
        """Return which attempt at its step it is, from 1."""
        return self.claim.attempt

    def identity(self) -> Identity:
        """Return what every process that works on this attempt is told."""
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

    # --- while it is made --------------------------------------------------------------

    def notice(self, text: str, before: str = "") -> None:
        """Write *text* to its log as the sequencer's own line, after *before*."""
        self.listener.write(f"{before}[sequencer] {text}\n".encode(), Piece.NOTICE)

    @contextmanager
    def with_own_result(self) -> Iterator[None]:
        """Let one more agent work for this attempt, whose result file is not the first one's."""
        first = self.result_path
        with results.separate_file(first) as other:
            self.result_path = other
            try:
                yield
            finally:
                self.result_path = first

    def wait_for_turn(self) -> None:
        """Wait until its work may be merged.

        Raises:
            Interrupted: somebody else has its step by now.
        """
        if self.turn is not None:
            self.turn.wait(self.cancellation)
        if self.cancellation.reason in (StopReason.CLAIM_LOST, StopReason.LEASE_LOST):
            raise Interrupted("interrupted")

    # --- how it ended ------------------------------------------------------------------

    def ended_as(self, outcome: Outcome) -> AttemptResult:
        """Return that it has ended with *outcome*."""
        made, claim = self.prepared, self.claim
        return AttemptResult(outcome, made.step, made.place, made.agent, claim.token, claim.attempt)

    @property
    def ends_the_work(self) -> bool:
        """Return whether the process can't go on: it is to end, or it can't keep an output.

        Any other exception is a bug of one executor, and a failure of its node; or this
        machine was short of something, and other attempts may end well all the same.
        """
        if self.busy is not None:
            return False
        is_bug = isinstance(self.error, Exception) and not isinstance(self.error, SequencerError)
        is_bug = is_bug and failed_disk(self.error) is None
        return self.error is not None and not is_bug

    @property
    def busy(self) -> MachineBusy | None:
        """Return why this machine could not run the agent, if that was it."""
        return out_of_resources(self.error)

    @property
    def has_cost(self) -> bool:
        """Return whether it has used what a run has limits on."""
        usage = self.usage
        return bool(usage.cost_usd or usage.input_tokens or usage.output_tokens)

    @property
    def usage(self) -> Usage:
        """Return what it has used, also where it has no result."""
        return total(self.paid) if self.ended is None else self.ended.outcome.usage
