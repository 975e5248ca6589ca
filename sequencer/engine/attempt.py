"""A step that can be started, one attempt at it, its log, who provides for it, and who hears of it.

What happens while a process works on a run is one stream of small values. Whoever wants to
show, count or post it is one function that takes each of them. Nodes of a graph run in
threads of their own, so several may call it at the same time. A listener never fails a step
and never holds one up for long.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct, field

from sequencer.errors import (
    ConfigurationError,
    MachineBusy,
    SequencerError,
    failed_disk,
    out_of_resources,
)
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import Executor, Identity, Listener, Piece, StepRequest
from sequencer.model.head import Claim, Head
from sequencer.model.kind import Performed
from sequencer.model.outcome import Outcome, Usage, total
from sequencer.model.step import Step
from sequencer.model.transitions import Place
from sequencer.store.protocol import Store

if TYPE_CHECKING:
    from sequencer.engine.perform import Left
    from sequencer.model.net.marking import Reference
    from sequencer.model.net.net import Taken


class Agents(Protocol):
    """Knows which executor performs a step."""

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return the agent's name and its executor for *step*.

        Raises:
            ConfigurationError: no such agent, it can't be built, or it can't honour a
                field of the step.
        """

    def ready(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return what `choose` returns, once its program is known to be there.

        Looked up once in the life of these agents, so that each step costs nothing more.

        Raises:
            AgentMissing: its program or its key is missing.
        """

    def instead(
        self, step: Step, agent: str, not_before: str | None = None
    ) -> tuple[str, Executor] | None:
        """Return who performs *step* while *agent* can't; None: nobody does.

        *not_before*: until then (ISO 8601, UTC) `ready` doesn't choose *agent* again where
        somebody can stand in for it.
        """

    def unfit(self, step: Step, agent: str) -> list[tuple[str, ConfigurationError]]:
        """Return the agents that are to perform *step* while *agent* can't, and can't, with why."""

    def ensure_folder(self, agent: str, folder: Path) -> None:
        """Return if *agent* may work in *folder*, which is not the project's.

        Raises:
            NotTrusted: it would run other files there, or its client read other settings, than
                those of the project.
        """

    def warm_up(self) -> None:
        """Get ready for a step while there is nothing else to do; may do nothing."""

    def close(self) -> None:
        """Undo `warm_up`; the agents may be used again."""


class Prompts(Protocol):
    """Reads prompts by name."""

    def read(self, name: str) -> str:
        """Return the text of prompt *name*; see `workflows.prompts`."""

    def read_for(self, step: Step, executor: Executor) -> str:
        """Return the step's prompt; empty for a command without one."""


class Allowance(Struct, frozen=True):
    """What is left for an attempt under the limits of the invocation and the run."""

    cost_usd: float | None = None
    timeout_s: float | None = None

    def after(self, paid: Usage) -> Allowance:
        """Return what is left after *paid*."""
        if self.cost_usd is None:
            return self
        return Allowance(max(self.cost_usd - paid.cost_usd, 0.0), self.timeout_s)

    def rest(self, step: Step, used: Usage) -> Allowance:
        """Return what is left, also of the time of *step*, for the same try after *used*."""
        most_s, remaining = least(step.timeout_s, self.timeout_s), self.after(used)
        if most_s is None:
            return remaining
        return Allowance(remaining.cost_usd, max(most_s - used.seconds, 1.0))


class Prepared(Struct, frozen=True):
    """A step that can be started: everything it needs was found."""

    step: Step
    position: str
    place: Place
    agent: str
    executor: Executor
    prompt: str
    """The prompt's text, as the file has it."""
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    note: str | None = None
    """What history tells of how it was chosen, where that is odd."""

    @property
    def step_index(self) -> int:
        """Return where the step is."""
        return self.place.step_index


def least(*values: float | None) -> float | None:
    """Return the smallest of the limits *values*; None where there is none."""
    found = None
    for value in values:
        if value is not None and (found is None or value < found):
            found = value
    return found


def left(most: float | None, used: float) -> float | None:
    """Return what is left of *most*, where there is a limit."""
    return None if most is None else most - used


class Running(Struct):
    """One attempt, from its claim to its record."""

    claim: Claim
    prepared: Prepared
    head: Head
    """As it was right after the claim."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    used: Usage = field(default=Usage())
    """So far, where its executor tells and somebody wants to know."""
    paid: list[Usage] = field(default_factory=list)
    """Of each agent that has run, the router included; of one that was broken off what it told."""
    attempt: Attempt | None = None
    """As its events name it; None: it did not get so far."""
    counted: Usage = field(default=Usage())
    """Of its use, by whoever took its step over in the meantime."""
    performed: Performed | None = None
    reference: Reference | None = None
    """Where its output was kept."""
    left: Left | None = None
    """Of a team's task: what became of what its agent has left."""
    taken: Taken | None = None
    """What the run has made of its end."""
    was_told: bool = False
    """Whether a record of its end was tried, which may have been accepted."""
    error: BaseException | None = None
    """What was raised instead."""

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
        return total(self.paid) if self.performed is None else self.performed.outcome.usage


class Attempt(Struct, frozen=True, kw_only=True):
    """Which step is being tried, by whom, for the how-manieth time."""

    run_id: str
    workflow: str
    step: Step
    position: str
    """Name of the step that the cycle has at this place, also in a review."""
    step_index: int
    token: int
    """0 in async mode, which holds no claim."""
    attempt: int
    agent: str
    prompt: str
    """File name of the prompt."""
    state_path: Path
    result_path: Path
    run_name: str | None = None
    """None: the default run."""
    lock_path: Path | None = None
    """Of the step's processes; None where there is no claim."""
    subject: str | None = None
    """Of a team's task: what it is about, and whose it is."""

    @classmethod
    def of(
        cls,
        claim: Claim,
        head: Head,
        prepared: Prepared,
        store: Store,
        *,
        lock_path: Path,
        subject: str | None = None,
        told_path: Path | None = None,
    ) -> Attempt:
        """Return the attempt at *prepared* that *claim* of the run of *head* in *store* grants.

        *told_path*: the run is its process's own, so that this path is told and no token.
        """
        return cls(
            run_id=head.run_id,
            run_name=head.run_name,
            workflow=head.workflow_name,
            step=prepared.step,
            position=prepared.position,
            step_index=claim.step_index,
            token=claim.token if told_path is None else 0,
            attempt=claim.attempt,
            agent=prepared.agent,
            prompt=prepared.step.prompt_name,
            state_path=told_path or store.state_path,
            result_path=store.result_folder(claim.step_index, claim.token) / "result.json",
            lock_path=lock_path,
            subject=subject,
        )

    @property
    def iteration(self) -> int:
        """Return step_index + 1."""
        return self.step_index + 1

    def identity(self) -> Identity:
        """Return what every process that works on this attempt is told."""
        return Identity(
            step=self.step.name,
            token=self.token,
            run_id=self.run_id,
            run_name=self.run_name,
            workflow=self.workflow,
            position=self.position,
            step_index=self.step_index,
            attempt=self.attempt,
            result_path=self.result_path,
            state_path=self.state_path,
        )


class StepLog(Listener, Protocol):
    """The log of one attempt."""

    path: Path

    def sent(self, request: StepRequest, to: str) -> None:
        """Write what the agent is about to get: the prompt of *request*, and *to* whom it goes."""

    def close(self, outcome: Outcome) -> None:
        """Write how it ended and close the file."""


class Logs(Protocol):
    """Makes step logs."""

    def open(self, attempt: Attempt) -> StepLog:
        """Create the log of *attempt*; an existing file is never overwritten."""

    def left_behind(self) -> Path | None:
        """Return the log of the latest step of any run that has logged here, if there is one."""


# Named tuples: an event is made in every step, and these cost least.


class AttemptStarted(NamedTuple):
    """An attempt starts; *log* is its step log."""

    attempt: Attempt
    log: Path


class AttemptWrote(NamedTuple):
    """The agent of an attempt has written something."""

    attempt: Attempt
    data: bytes
    kind: Piece


class AttemptUsed(NamedTuple):
    """What an attempt has used so far, as its executor tells it while the agent works."""

    attempt: Attempt
    usage: Usage


class AttemptEnded(NamedTuple):
    """How an attempt ended; the run has not recorded it yet."""

    attempt: Attempt
    outcome: Outcome
    verdict: str = ""
    """Of a step that judges: what it has decided, in which round, and why."""


class AttemptAccepted(NamedTuple):
    """The run has recorded the end of an attempt as an accepted step: it can't be lost any more."""

    attempt: Attempt
    outcome: Outcome


class MadeElsewhere(NamedTuple):
    """Another process has started an attempt, or ended it with *outcome*."""

    step: str
    step_index: int
    attempt: int
    by: str
    """The process, as ``PID@HOST``."""
    outcome: Outcome | None = None


class HeadMoved(NamedTuple):
    """This process has changed the run, which is at *head* by that."""

    head: Head


class Noticed(NamedTuple):
    """Something that a person should know: restored state, an edit, a warning."""

    text: str


class Waiting(NamedTuple):
    """The process sleeps, and until when if that is known."""

    reason: str
    until: str | None = None
    needs_person: bool = False
    """The wait ends only when somebody starts a process."""


RunEvent = (
    AttemptStarted
    | AttemptWrote
    | AttemptUsed
    | AttemptEnded
    | AttemptAccepted
    | MadeElsewhere
    | HeadMoved
    | Noticed
    | Waiting
)
Emit = Callable[[RunEvent], None]


def ignore(event: RunEvent) -> None:
    """Take *event* where nobody wants to hear of it."""


def several(*listeners: Emit) -> Emit:
    """Return who passes each event on to *listeners*, in their order."""

    def emit(event: RunEvent) -> None:
        for listen in listeners:
            listen(event)

    return emit
