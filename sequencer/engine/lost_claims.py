"""What is kept and counted of an attempt whose claim another process or a person took away.

Its result is refused, but its agent has worked and was paid. The run counts both exactly once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator

from sequencer.engine.attempt import Attempt
from sequencer.engine.changes import Changes
from sequencer.errors import format_command
from sequencer.history.facts import EndState, RecordedFact, read_facts
from sequencer.model import transitions
from sequencer.model.head import Head
from sequencer.model.kind import AttemptResult
from sequencer.model.limits import format_utc_s
from sequencer.model.outcome import Outcome, read_usage
from sequencer.model.sequence.sequence_kind import SequenceChange
from sequencer.store import results
from sequencer.store.protocol import Store

_NOT_CHARGED = ("gate", "verdict", "work")
"""Keys of a record that say what the run does with a result; a refused one has none of them."""


def note_counted(store: Store, owed: Iterable[Attempt], head: Head | None) -> None:
    """Note in each of *owed* the usage that was counted when it lost its claim in *head*."""
    lost_tokens = {
        attempt.claim.token: attempt
        for attempt in owed
        if head is not None and head.find_claim(attempt.claim.token) is None
    }
    for fact in read_facts(store.history()) if lost_tokens else ():
        if fact.meaning.ends is EndState.LOST and (attempt := lost_tokens.get(fact.token)):
            attempt.counted = read_usage(fact.details.get("usage") or {})


def describe_losses(store: Store, attempts: Iterable[Attempt]) -> Iterator[str]:
    """Yield a sentence for each of *attempts* whose claim was taken over before it was recorded."""
    refused = [attempt for attempt in attempts if attempt.recorded_result is None]
    head = store.view().head if refused else None
    if head is None:
        return
    by_token = {item.claim.token: item for item in refused if item.run_id == head.run_id}
    for fact in read_facts(store.history()):
        if fact.meaning.ends is EndState.LOST and fact.token in by_token:
            yield (
                f"{fact.step!r} was taken over while it ran here, so its result does not count; "
                f"{format_command(head.run_name, 'history')} has the record"
            )


def find_debts(
    store: Store, attempts: Iterable[Attempt], tries: Collection[Attempt], head: Head | None
) -> list[Attempt]:
    """Return which of *attempts* the run must charge if they no longer have a claim.

    Those in *tries* may still have one when they are recorded.
    """
    # An earlier try of the record may have been accepted, so its cost may be counted already.
    debts = [attempt for attempt in attempts if attempt.has_debt and not attempt.record_was_tried]
    # A take-over ends a claim that is still in the head, and counts its usage.
    tokens = frozenset(claim.token for claim in head.claims) if head else frozenset[int]()
    debts = [debt for debt in debts if debt in tries or debt.claim.token not in tokens]
    note_counted(store, debts, head)
    return [debt for debt in debts if debt.has_debt]


def charge_lost_attempt(changes: Changes, attempt: Attempt, result: AttemptResult) -> bool:
    """Count the usage of *result*, although the claim of *attempt* is gone; return if it counts.

    Nothing is counted in a run that was started over or replaced, or if the end of the attempt
    was recorded before.

    Raises:
        SequencerError: it can't be recorded.
    """
    store, claim = changes.store, attempt.claim
    head = store.view().head
    if not attempt.has_debt or head is None or not _has_lost_claim(head, attempt):
        return False
    if any(_is_own_end(fact, claim.token) for fact in read_facts(store.history())):
        return False
    note_counted(store, [attempt], head)
    if not attempt.has_debt:
        return False
    uncounted_usage = result.outcome.usage.minus(attempt.counted)
    record = {key: value for key, value in result.record.items() if key not in _NOT_CHARGED}
    record |= {
        "reason": transitions.CLAIM_LOST,
        "usage": uncounted_usage.model_dump(exclude_defaults=True),
    }

    def charge(change: SequenceChange) -> None:
        at = format_utc_s(change.now)
        transition = transitions.charge(change.head, claim, uncounted_usage, record, at=at)
        change.head = transition.head
        change.facts += transition.facts

    changes.update(charge, lambda _: None, run_id=attempt.run_id, lease_s=claim.ttl_s)
    return True


def _has_lost_claim(head: Head, attempt: Attempt) -> bool:
    """Return whether *head* continues the run of *attempt* without its claim."""
    token = attempt.claim.token
    # If an older state of the run was restored, its tokens end before this one.
    return head.run_id == attempt.run_id and token <= head.token and not head.find_claim(token)


def _is_own_end(fact: RecordedFact, token: int) -> bool:
    """Return whether *fact* is the record in which the holder of *token* ended its claim."""
    meaning = fact.meaning
    is_end = meaning.ends is not None and meaning.ends is not EndState.LOST
    return is_end and meaning.by_holder and fact.token == token


def keep_stale_output(store: Store, attempt: Attempt, outcome: Outcome) -> None:
    """Keep the output of *attempt*, which the run refused."""
    head = store.view().head
    if head is not None and head.run_id != attempt.run_id:
        # The attempt with this index and token belongs to that run.
        return
    # If the run's files are gone, this folder must stay, or the next process starts it over.
    if outcome.output or head is None:
        folder = attempt.result_path.parent
        # That the step was lost matters more to the caller than an error of the disk.
        with contextlib.suppress(OSError):
            results.write_output(folder, outcome.output.encode("utf-8", "replace"))
