"""A step that can be started, and one attempt at it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from sequencer.errors import (
    MachineBusy,
    SequencerError,
    failed_disk,
    out_of_resources,
)
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import Executor, Identity
from sequencer.model.head import Claim, Head
from sequencer.model.kind import Performed
from sequencer.model.outcome import Usage, total
from sequencer.model.step import Step
from sequencer.model.transitions import Place
from sequencer.store.protocol import Store

if TYPE_CHECKING:
    from sequencer.engine.workplaces import Left
    from sequencer.model.net.marking import Reference
    from sequencer.model.net.net import Taken


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
    """Of a task: what became of what its agent has left."""
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
    """Of a task: what it is about, and whose it is."""

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
