"""Does each record continue the one before it?

Each record says what it was built on, so a file that git made of two branches shows. Pure.

Not promised: that every merge is seen. Two branches in which nothing was measured are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sequencer.history.facts import RecordedFact, StartKind, read
from sequencer.store.journal import Scan, facts_of

MARKS = (b"<<<<<<<", b"=======", b">>>>>>>")
"""What git puts into a file that it could not merge."""
_USED = ("cost_usd", "seconds")
_ROUNDING = 5e-6
"""A head counts millionths of a second."""


def misfits(found: Scan, data: bytes) -> tuple[tuple[int, str], ...]:
    """Return the offset of each place in *data* where two histories meet, and how that is known."""
    marks = [(offset, mark_of(data[offset : offset + 8])) for offset, _ in found.skipped]
    built = [
        (record.offset, misfit(before.data["head"], record.data))
        for before, record in pairwise(found.winners)
        if record.revision == before.revision + 1
    ]
    return tuple(sorted((offset, why) for offset, why in (*marks, *built) if why is not None))


def mark_of(line: bytes) -> str | None:
    """Return what is wrong with *line* if git has left it in a conflict."""
    is_mark = line.startswith(MARKS)
    return f"git left {line[:7].decode()!r} from a merge" if is_mark else None


def misfit(head: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    """Return why *record* was not built on *head*, the one before it; None if it may have been."""
    facts = [*read(facts_of(dict(record)))]
    if any(fact.meaning.sets_fields for fact in facts):
        return None
    return (
        _of_another_run(head, record["head"])
        or _elsewhere(head, facts[0])
        or _unknown_token(head, facts)
        or _unexplained(head, record, facts)
    )


def _of_another_run(head: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    old, new = head.get("run_id"), after.get("run_id")
    if old is None or new is None or old == new:
        return None
    return f"it is of run {new}, but the record before it is of run {old}"


def _elsewhere(head: Mapping[str, Any], fact: RecordedFact) -> str | None:
    """Return how *fact* is about another place than the run's, or than its own claim's."""
    at = head.get("step_index")
    if head.get("flow") is not None and fact.meaning.starts is not StartKind.ATTEMPT:
        # Nodes run side by side: each claim keeps the step_index at which it was granted.
        claims = head.get("claims")
        held = [c for c in claims if isinstance(c, dict)] if isinstance(claims, list) else []
        own = [c.get("step_index") for c in held if c.get("token") == fact.token]
        at = own[0] if own else fact.step_index
    if fact.step_index == at:
        return None
    return (
        f"it is about step_index {fact.step_index}, but the record before it leaves the run at {at}"
    )


def _unknown_token(head: Mapping[str, Any], facts: Sequence[RecordedFact]) -> str | None:
    """Return which token is granted out of turn, or used though nobody holds it."""
    newest, claims = head.get("token"), head.get("claims")
    if not isinstance(newest, int) or not isinstance(claims, list):
        return None
    held = {claim.get("token") for claim in claims if isinstance(claim, dict)}
    for fact in facts:
        token, meaning = fact.token, fact.meaning
        if meaning.starts in (StartKind.ATTEMPT, StartKind.QUESTION):
            newest += 1
            held.add(newest)
            if token != newest:
                return f"it grants token {token}, but the next token is {newest}"
        elif head.get("flow") is not None and not fact.attempt:
            # A person's node, or one that does no work: no claim was needed to end it.
            continue
        elif meaning.by_holder and token not in held:
            return f"it ends token {token}, which the record before it does not hold"
    return None


def _unexplained(
    head: Mapping[str, Any], record: Mapping[str, Any], facts: Sequence[RecordedFact]
) -> str | None:
    """Return which counter has grown by something that no fact of *record* tells."""
    told = [
        fact.details.get("usage") for fact in facts if fact.meaning.starts is not StartKind.ATTEMPT
    ]
    if not all(isinstance(usage, dict) for usage in told):
        return None
    before, after = head.get("usage"), record["head"].get("usage")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return None
    for name in _USED:
        grown = after.get(name, 0) - before.get(name, 0)
        spent = sum(usage.get(name, 0) for usage in told if usage is not None)
        if abs(grown - spent) > _ROUNDING:
            return f"usage.{name} grew by {grown:g}, but its events used {spent:g}"
    return None
