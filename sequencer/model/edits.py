"""Edits of state.json by hand, and ``set``: what a person may write into a head.

An agent can write there too, so an edit decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sequencer.errors import EditRefused
from sequencer.frozen.fields import ValidationError
from sequencer.model.head import MAX_COUNTER, MOVED, Head, Status
from sequencer.model.limits import parse_time
from sequencer.model.transitions import (
    Event,
    Place,
    Transition,
    at_rest,
    changed,
    fact_at,
    resting_status,
    with_end,
)

Placed = Callable[[Head], Place | None]
"""Where a head stands in its workflow; None: that can't be said."""

EDITABLE = frozenset(
    {"exit", "exit_reason", "failures_in_row", "last_prompt", "not_before", "status", "step_index"}
)
"""Known fields that `set` may change; others are the program's own."""


FURTHEST = timedelta(days=1)
"""No edit of state.json keeps a run waiting for longer; `set` does."""
_DATE = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
    r"(?:[T ](?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?",
    re.ASCII,
)
"""ISO 8601 as people and programs write it; the calendar is not known here."""


def accept_edit(
    head: Head,
    edited: Head,
    *,
    at: str,
    by_command: bool = False,
    placed: Placed = lambda _: None,
    now: str | None = None,
) -> Transition:
    """Take over what somebody wrote into state.json by hand.

    An agent can write there too, so an edit decides nothing: it opens no gate, lets no held
    run continue, lowers no counter and changes no definition. *by_command*: a person has
    typed `set`, which may lower counters, and wait for any date. In an edit, a date more than
    a day after *now* (None: *at*) counts as now: it would keep the run still for years, and
    nobody would be told. *placed* says which step is expected at another step_index; where it
    can't, the edit is believed.

    Raises:
        EditRefused: the edit decides something; or it changes the run's identity or lowers a
            counter that must never go back: two holders would believe in one token; or it
            states what is not so.
    """
    _ensure_same_run(head, edited)
    ensure_nothing_decided(head, edited, by_command=by_command)
    _ensure_room_to_count(edited)
    if edited.not_before != head.not_before:
        _ensure_date(edited.not_before)
        if not by_command and _is_far(edited.not_before, now or at):
            edited = edited.replace(not_before=at)
        # A person means the date itself, whenever it was written down.
        edited = edited.replace(not_before_since=None)
    before, after = head.model_dump(), edited.model_dump()
    fields = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    fact = fact_at(Event.EDITED, head, f"by hand: {', '.join(fields)}")
    new = changed(edited, at, iteration=edited.step_index + 1)
    if edited.step_index == head.step_index:
        new = settled(head, edited, new.replace(expected_step=head.expected_step), is_end=False)
    else:
        # Whoever runs the step that was left has to find itself stale.
        new = new.replace(attempt=0, claims=(), gate=None, loop=None)
        here = placed(new)
        if here is not None:
            new = new.replace(expected_step=here.step)
        new = settled(head, edited, new, is_end=here is not None and here.is_end)
    return Transition(new, (fact,) if head.status is Status.COMPLETE else with_end(fact, new))


def _ensure_same_run(head: Head, edited: Head) -> None:
    """Refuse another identity, and counters that would let two holders believe in one token."""
    problems = [
        f"{field} went from {getattr(head, field)!r} to {getattr(edited, field)!r}"
        for field in ("run_id", "run_name", "schema_version", "journal_offset", "claims")
        if getattr(head, field) != getattr(edited, field)
    ]
    problems += [
        f"{field} went back from {getattr(head, field)} to {getattr(edited, field)}"
        for field in ("token", "revision")
        if getattr(edited, field) < getattr(head, field)
    ]
    # A graph's progress is its marking, which counts the steps.
    of_a_graph = ("flow", "step_index") if head.flow is not None else ("flow",)
    problems += [
        f"{field} can't be edited by hand"
        for field in of_a_graph
        if getattr(head, field) != getattr(edited, field)
    ]
    if problems:
        raise EditRefused(
            f"an edit by hand is refused: {'; '.join(problems)}",
            hint="undo it, or 'sequencer repair' restores the last accepted state",
        )


def _ensure_room_to_count(edited: Head) -> None:
    """Refuse counters so large that the transitions that follow could not be written down."""
    for field in ("token", "step_index", "attempt", "failures_in_row"):
        if getattr(edited, field) > MAX_COUNTER // 2:
            raise EditRefused(
                f"an edit by hand is refused: {field} {getattr(edited, field)} is too large",
                hint=f"the largest that can be set is {MAX_COUNTER // 2}",
            )


def _ensure_date(text: str | None) -> None:
    """Refuse a date that nobody could wait for: the step would start at once."""
    if text and not _DATE.fullmatch(text):
        raise EditRefused(
            f"an edit by hand is refused: not_before {text!r} is not a date",
            hint="write it like 2027-01-31T08:00:00Z",
        )


def _is_far(text: str | None, now: str) -> bool:
    due, present_time = parse_time(text or ""), parse_time(now)
    return due is not None and present_time is not None and due > present_time + FURTHEST


def edit_field(
    head: Head, field: str, value: Any, *, at: str, placed: Placed = lambda _: None
) -> Transition:
    """Set one field, known and editable or unknown, as if it had been edited in the file.

    *placed*: see `accept_edit`.

    Raises:
        EditRefused: the field is the program's own, or can't have this value.
    """
    if field in Head.model_fields and field not in EDITABLE:
        raise EditRefused(
            f"{field} can't be set by hand", hint=f"editable: {', '.join(sorted(EDITABLE))}"
        )
    try:
        edited = Head.model_validate({**head.model_dump(), field: value})
    except ValidationError as error:
        raise EditRefused(error.told()[0]) from None
    try:
        return accept_edit(head, edited, at=at, by_command=True, placed=placed)
    except EditRefused as refusal:
        # Nothing was written that could be undone.
        hint = None if refusal.hint is None else refusal.hint.removeprefix("undo it; ")
        raise EditRefused(refusal.message, hint=hint) from None


_OF_THE_DEFINITION = ("workflow_name", "workflow_digest", "params", "has_definition")
_BEHIND_A_STATUS = ("status", "step_index", "failures_in_row", "pause_requested")
_HELD = {
    Status.WAITING_APPROVAL: "answer",
    Status.PAUSED: "resume",
    Status.COMPLETE: "rewind' or 'reset",
}
"""Status that is held -> who lets the run continue."""
_BRINGS_ABOUT = {
    Status.IDLE: "reset' starts a new run",
    Status.RUNNING: "run' runs the step",
    Status.WAITING_NEXT: "retry' forgets failures, 'takeover --force' drops a claim",
    Status.WAITING_APPROVAL: "stop --pause' holds the run; 'requires_approval' asks a person",
    Status.FAILED: "skip --as-failed' marks the step as failed",
    Status.COMPLETE: "stop' ends the run when the step that runs has ended",
}
"""Status that can't be stated -> which command leads to it, or to what was meant."""


def ensure_nothing_decided(head: Head, edited: Head, *, by_command: bool) -> None:
    """Return if *edited* opens no gate of *head*, lowers no counter and changes no definition.

    *by_command*: a person has typed `set`, which may lower the counters of failures.

    Raises:
        EditRefused: it does; the command that decides is named.
    """
    _ensure_still_held(head, edited)
    for name in _OF_THE_DEFINITION:
        if getattr(edited, name) != getattr(head, name):
            _refuse_decision(name, "changed", "adopt")
    if edited.loop != head.loop:
        _refuse_decision("loop", "changed", "skip")
    if edited.told != head.told:
        _refuse_decision("told", "changed", "tell")
    if edited.model_extra.get(MOVED) != head.model_extra.get(MOVED) and not by_command:
        _refuse_decision("moved", "changed", "sync --to")
    if edited.work != head.work:
        raise EditRefused(
            "an edit by hand is refused: work changed",
            hint="undo it; 'sequencer sync' shows which code the run is at",
        )
    if not by_command:
        _ensure_not_released(head, edited)
    _ensure_nothing_unused(head, edited)


def _ensure_still_held(head: Head, edited: Head) -> None:
    """Refuse a way past a gate, or out of a status in which a person holds the run."""
    # Back is no way past it: the step that asks runs again, and asks.
    is_past = head.is_at_gate and edited.step_index > head.step_index
    if edited.gate != head.gate or is_past:
        _refuse_decision("gate", "changed", _HELD[Status.WAITING_APPROVAL])
    # A gate that is gone leaves a status behind that means nothing.
    means_nothing = head.status is Status.WAITING_APPROVAL and not head.is_at_gate
    if edited.status != head.status and head.status in _HELD and not means_nothing:
        change = f"went from {head.status} to {edited.status}"
        _refuse_decision("status", change, _HELD[head.status])
    if edited.step_index != head.step_index and head.status is Status.COMPLETE:
        _refuse_decision("step_index", "changed in a complete run", _HELD[Status.COMPLETE])


def settled(head: Head, edited: Head, new: Head, *, is_end: bool) -> Head:
    """Return *new*, which *edited* makes of *head*, with the status that its fields give it.

    A pause and an end can be stated, where a step runs a pause asked for; anything else is
    what has happened, and an edit that says otherwise would be believed by whoever reads the
    file. *is_end*: no step is left.

    Raises:
        EditRefused: *edited* states a status that its other fields contradict.
    """
    if new.claims and edited.status is Status.PAUSED:
        # As `pause` does: the step that runs is not lost for it.
        return new.replace(status=Status.RUNNING, pause_requested=True)
    follows = Status.RUNNING if new.claims else resting_status(new)
    if edited.status not in (head.status, follows):
        can_end = not new.claims and not new.is_at_gate
        can_be = {Status.PAUSED: True, Status.COMPLETE: can_end}
        if not can_be.get(edited.status, False):
            raise EditRefused(
                f"an edit by hand is refused: status went from {head.status} to "
                f"{edited.status}, but the run is {follows} by its other fields",
                hint=f"undo it; 'sequencer {_BRINGS_ABOUT[edited.status]}",
            )
    if is_end or new.status is Status.COMPLETE:
        return new.replace(status=Status.COMPLETE, pause_requested=False)
    if new.status is Status.PAUSED:
        return new.replace(pause_requested=False)
    is_other = any(getattr(new, name) != getattr(head, name) for name in _BEHIND_A_STATUS)
    return at_rest(new) if is_other else new


def _ensure_not_released(head: Head, edited: Head) -> None:
    for name in ("exit", "pause_requested"):
        if getattr(head, name) and not getattr(edited, name):
            _refuse_decision(name, "went from true to false", "resume")
    # Of another step the attempts are counted from 0.
    is_moved = edited.step_index != head.step_index
    for name in ("failures_in_row",) if is_moved else ("failures_in_row", "attempt"):
        if getattr(edited, name) < getattr(head, name):
            change = f"went back from {getattr(head, name)} to {getattr(edited, name)}"
            _refuse_decision(name, change, "retry")


def _ensure_nothing_unused(head: Head, edited: Head) -> None:
    used, told = head.usage.model_dump(), edited.usage.model_dump()
    for name, amount in used.items():
        if _is_lower(told.get(name), amount):
            raise EditRefused(
                f"an edit by hand is refused: usage.{name} went back from {amount} "
                f"to {told.get(name)}",
                hint="undo it; 'sequencer reset' starts a new run, which has used nothing",
            )


def _is_lower(now: Any, before: Any) -> bool:
    return isinstance(before, (int, float)) and not (
        isinstance(now, (int, float)) and now >= before
    )


def _refuse_decision(field: str, change: str, verbs: str) -> None:
    raise EditRefused(
        f"an edit by hand is refused: {field} {change}, which is a decision",
        hint=f"undo it; 'sequencer {verbs}' decides",
    )
