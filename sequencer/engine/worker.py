"""The base of the workers of all kinds of runs: one process's part in a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sequencer.engine.allowance import Allowance
from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.changes import Changes, RetryPolicy
from sequencer.engine.code_sync import CodeSync
from sequencer.engine.events import AttemptAccepted
from sequencer.engine.evidence import OWN_WORD, PriorAttempts, format_missing_note
from sequencer.engine.heartbeat import Heartbeat
from sequencer.engine.performing import Performer
from sequencer.engine.records import (
    make_broken_outcome,
)
from sequencer.engine.stagnation import Streaks, repetition_note
from sequencer.errors import (
    RemoteUnreachable,
    WorkTreeBusy,
    WorkTreeRefused,
)
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.protocol import Executor, is_free
from sequencer.model.head import Claim, Head
from sequencer.model.kind import AttemptResult, Capacity
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Outcome, Usage
from sequencer.store.identity import boottime
from sequencer.store.leases import open_leases

NOT_OURS = (StopReason.CLAIM_LOST, StopReason.LEASE_LOST)
"""Stop reasons after which the result of an attempt does not count."""
NOT_HERE = (WorkTreeRefused, WorkTreeBusy, RemoteUnreachable)
"""Errors that keep an attempt from starting in this work tree; another one may be able to."""
NewestLimits = Callable[[], tuple[RunLimits, str]]
"""Returns the current limits of the run, and a message for a person if they have changed."""


class Worker(ABC):
    """One process's part in a run of any kind."""

    def __init__(self, changes: Changes, performer: Performer, limits: RunLimits) -> None:
        """Work on the run of *changes*."""
        self._changes = changes
        self.store = changes.store
        self.performer = performer
        self.limits = limits
        self.live_limits: Callable[[], NewestLimits] | None = None
        """Returns a function that reads the limits again; None: they never change."""
        self._newest_limits: NewestLimits | None = None
        self.stop = Cancellation()
        """Set when this process is asked to end."""
        self.retry_policy = changes.retry_policy = RetryPolicy(
            self.store, self.stop, performer.emit
        )
        self._heartbeat = Heartbeat(self.store, looks=changes.kind.has_one_place)
        self.code = CodeSync(performer.workspace, self.retry_policy)
        self.streaks: Streaks | None = None
        """The newest streak of each step; None: this process has started no agent."""

    def renew_limits(self) -> str:
        """Read the limits again; return a message for a person if they have changed."""
        if self.live_limits is None:
            return ""
        if self._newest_limits is None:
            self._newest_limits = self.live_limits()
        self.limits, text = self._newest_limits()
        return text

    def close(self) -> None:
        """Close all processes and descriptors of the work."""
        self._changes.retry_policy = None
        self._heartbeat.close()
        self.stop.close()
        self.code.leave(None, ())
        self.performer.agents.close()
        self.store.close()

    def interrupt(self) -> None:
        """Ask the running step and the work to end; safe in a signal handler."""
        self.stop.set(StopReason.INTERRUPTED)

    @abstractmethod
    def ensure_startable(self, head: Head | None) -> None:
        """Check that the run of *head* can start; None: it has not started.

        If its first step can't start, neither must the run: its definition would be recorded
        before you correct the mistake.

        Raises:
            ConfigurationError: a prompt or an agent is missing.
        """

    def expired_claims(self, head: Head, mine: Collection[int] = ()) -> frozenset[int]:
        """Return the tokens of claims that may be taken over, except those in *mine*."""
        if not head.claims:
            return frozenset()
        return frozenset(
            claim.token
            for claim in head.claims
            if claim.token not in mine and self.store.liveness(claim).allows_take_over
        )

    def get_result(self, attempt: Attempt) -> AttemptResult:
        """Return the result of *attempt*, even if it ended with an exception."""
        result, error = attempt.ended, attempt.error
        if result is not None and error is None:
            return result
        error = error or RuntimeError("the attempt ended without a result")
        return attempt.make_result(make_broken_outcome(error, attempt.usage, self.performer.redact))

    def find_prior_attempts(
        self, head: Head, prepared: PreparedStep, is_shared: Callable[[], bool]
    ) -> PriorAttempts:
        """Return what is known of earlier attempts when one at *prepared* starts at *head*.

        *is_shared* returns whether other attempts work in its folder at the same time.
        """
        if prepared.executor.kind in OWN_WORD or not self._may_have_evidence(head):
            return PriorAttempts(is_shared=is_shared)
        if self.streaks is None:
            self.streaks = Streaks(self.store)
        self.streaks.read(head.revision)
        name, step = prepared.place.step, prepared.step
        last_streak = self.streaks.find_last(name)
        notes = (
            format_missing_note(self.streaks.find_missing(name)),
            repetition_note(last_streak, step),
        )
        return PriorAttempts(tuple(filter(None, notes)), last_streak, is_shared)

    def _may_have_evidence(self, head: Head) -> bool:
        """Return whether an earlier agent may have left evidence: whether any usage was counted."""
        usage = head.usage
        has_used = usage.output_tokens or usage.cost_usd or usage.unpriced
        return self.streaks is not None or bool(has_used)

    def _follow(self, revision: int, results: Mapping[str, AttemptResult]) -> None:
        """Note the evidence of the attempts whose *results* came with the change to *revision*."""
        if self.streaks is None:
            self.streaks = Streaks(self.store)
        self.streaks.follow(revision, results)

    @abstractmethod
    def run_attempt(
        self, head: Head, token: int, budget: Allowance, cancellation: Cancellation
    ) -> tuple[AttemptResult, BaseException | None]:
        """Run the attempt with *token*, a claim of *head*; another process records its end.

        Returns its result, and the exception that ended it, if any. *cancellation* ends the
        attempt, and is closed.

        Raises:
            StaleClaim: *head* has no such claim.
            SequencerError: it can't start; nothing has started.
        """

    @abstractmethod
    def list_executors(self, head: Head, claim: Claim) -> Sequence[Executor | None]:
        """Return the executors that may work for *claim*, including the router's.

        None stands for an executor that is not known.
        """

    def _read_usage(self, head: Head, expired_tokens: Collection[int]) -> dict[int, Usage]:
        """Return how much the attempts with *expired_tokens* are known to have used."""
        leases, usage_by_token = open_leases(self.store.state_path), dict[int, Usage]()
        for claim in head.claims:
            if claim.token in expired_tokens:
                usage = leases.read_usage(claim)
                if not usage.cost_usd and all(map(is_free, self.list_executors(head, claim))):
                    usage = usage.replace(unpriced=0)
                usage_by_token[claim.token] = usage
        return usage_by_token

    def clean_up_after(self, attempt: Attempt, usage: Usage, outcome: Outcome | None) -> None:
        """Clean up after *attempt*, whose end is recorded, and report it if it was accepted.

        Its usage was kept in case this process dies. *outcome* is None if it was not accepted.
        """
        if usage.cost_usd or usage.unpriced or usage.input_tokens or usage.output_tokens:
            open_leases(self.store.state_path).remove_usage(attempt.claim.token)
        if outcome is not None and attempt.began_at is not None:
            self.performer.emit(AttemptAccepted(attempt, outcome))

    def _capacity(self, head: Head, slots: int, tokens: frozenset[int], **more: Any) -> Capacity:
        """Return the capacity for *slots* claims, and for taking over *tokens*."""
        store = self.store
        clock = round(boottime(), 3)
        if tokens:
            more["used"] = self._read_usage(head, tokens)
        return Capacity(store.owner(), store.ttl_s, clock, slots, tokens, self.limits, **more)
