"""Whether the records of a journal are one history, or two that somebody has merged.

The ordinary reader takes the first line with the next revision. That keeps writers of one
journal apart; in a file that git made of two branches it goes on from the end of the longer
one, with steps of both. Each record says what it was built on, so `check` can tell.

Not promised: that every merge is seen. Two branches in which nothing was measured are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sequencer.store.journal import facts_of

MARKS = (b"<<<<<<<", b"=======", b">>>>>>>")
"""What git puts into a file that it could not merge."""
_BY_HAND = frozenset({"edited", "reset", "adopted", "initialised"})
"""Events after which any field may have any value."""
_USED = ("cost_usd", "seconds")
_ROUNDING = 5e-6
"""A head counts millionths of a second."""
_GRANTS = frozenset({"claimed", "asked"})
_BY_HOLDER = frozenset({"succeeded", "failed", "released", "taken-over"})


def mark_of(line: bytes) -> str | None:
    """Return what is wrong with *line* if git has left it in a conflict."""
    is_mark = line.startswith(MARKS)
    return f"git has left {line[:7].decode()!r} of a merge" if is_mark else None


def misfit(head: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    """Return why *record* was not built on *head*, the one before it; None if it may have been."""
    facts = facts_of(dict(record))
    if any(fact.get("event") in _BY_HAND for fact in facts):
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
    return f"it is of the run {new}, and the one before it of {old}"


def _elsewhere(head: Mapping[str, Any], fact: Mapping[str, Any]) -> str | None:
    """Return how *fact* is about another place than the run's, or than its own claim's."""
    at = head.get("step_index")
    if head.get("flow") is not None and fact.get("event") != "claimed":
        # Nodes run side by side: each claim keeps the step_index at which it was granted.
        claims = head.get("claims")
        held = [c for c in claims if isinstance(c, dict)] if isinstance(claims, list) else []
        own = [c.get("step_index") for c in held if c.get("token") == fact.get("token")]
        at = own[0] if own else fact.get("step_index")
    if fact.get("step_index") == at:
        return None
    return (
        f"it is about step_index {fact.get('step_index')}, and the one before it leaves "
        f"the run at {at}"
    )


def _unknown_token(head: Mapping[str, Any], facts: list[dict[str, Any]]) -> str | None:
    """Return which token is granted out of turn, or used though nobody holds it."""
    newest, claims = head.get("token"), head.get("claims")
    if not isinstance(newest, int) or not isinstance(claims, list):
        return None
    held = {claim.get("token") for claim in claims if isinstance(claim, dict)}
    for fact in facts:
        token = fact.get("token")
        if fact.get("event") in _GRANTS:
            newest += 1
            held.add(newest)
            if token != newest:
                return f"it grants token {token}, and the next one is {newest}"
        elif head.get("flow") is not None and not fact.get("attempt"):
            # A person's node, or one that does no work: no claim was needed to end it.
            continue
        elif fact.get("event") in _BY_HOLDER and token not in held:
            return f"it ends token {token}, which the one before it does not hold"
    return None


def _unexplained(
    head: Mapping[str, Any], record: Mapping[str, Any], facts: list[dict[str, Any]]
) -> str | None:
    """Return which counter has grown by something that no fact of *record* tells."""
    outcomes = [fact.get("outcome") for fact in facts if fact.get("event") != "claimed"]
    told = [outcome.get("usage") for outcome in outcomes if isinstance(outcome, dict)]
    if len(told) != len(outcomes) or not all(isinstance(usage, dict) for usage in told):
        return None
    before, after = head.get("usage"), record["head"].get("usage")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return None
    for name in _USED:
        grown = after.get(name, 0) - before.get(name, 0)
        spent = sum(usage.get(name, 0) for usage in told if usage is not None)
        if abs(grown - spent) > _ROUNDING:
            return f"usage.{name} has grown by {grown:g}, and what it tells of has used {spent:g}"
    return None
