"""Edits of state.json by hand, and ``set``: what a person may write into a head.

An agent can write there too, so an edit decides nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sequencer.errors import EditRefused, command
from sequencer.frozen.fields import ValidationError
from sequencer.model.answers import redacted
from sequencer.model.head import MAX_COUNTER, MOVED, OWN_EXTRAS, Head, Status
from sequencer.model.transitions import (
    Event,
    Fact,
    StepRef,
    Transition,
    at_rest,
    changed,
    fact_at,
    resting_status,
    with_end,
)

Placed = Callable[[Head], StepRef | None]
"""Where a head stands in its workflow; None: that can't be said."""

EDITABLE = frozenset(
    {"exit", "exit_reason", "failures_in_row", "last_prompt", "not_before", "status", "step_index"}
)
"""Known fields that `set` may change; others are the program's own."""


_DATE = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
    r"(?:[T ](?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?",
    re.ASCII,
)
"""ISO 8601 as people and programs write it; the calendar is not known here."""


_ABSENT = object()
MAX_NAMED = 5
"""Of the refused fields, in a notice."""
STOPS = frozenset({"exit", "exit_reason"})
MAX_REASON_CHARS = 500
"""Of a stop in the file; it is shown wherever the run is."""
_COMMANDS = {
    "step_index": "set step_index=N",
    "iteration": "set step_index=N",
    "expected_step": "set step_index=N",
    "status": "stop --pause",
    "pause_requested": "stop --pause",
    "exit": "resume",
    "exit_reason": "stop --reason TEXT",
    "failures_in_row": "retry",
    "attempt": "retry",
    "not_before": "set not_before=DATE",
    "not_before_reason": "set not_before=DATE",
    "not_before_since": "set not_before=DATE",
    "claims": "takeover --force",
    "gate": "answer",
    "told": "tell",
    "loop": "skip",
    "flow": "rewind NODE",
    "workflow_name": "adopt",
    "workflow_digest": "adopt",
    "params": "adopt",
    "has_definition": "adopt",
    "last_prompt": "set last_prompt=NAME",
    MOVED: "set moved=null",
}
"""Field of a head -> which command changes it; the others are the program's own."""


class FileEdit(NamedTuple):
    """What somebody has written into state.json, in two parts."""

    content: dict[str, Any]
    """The accepted content with what may be changed there."""
    refused: tuple[str, ...]
    """Fields that are not changed there."""

    def hint(self, run_name: str | None) -> str:
        """Return which commands change the refused fields, and which fields none changes."""
        found = (_COMMANDS[name] for name in self.refused if name in _COMMANDS)
        listed = ", ".join(command(run_name, text) for text in dict.fromkeys(found))
        own = ", ".join([name for name in self.refused if name not in _COMMANDS][:MAX_NAMED])
        no_command = f"no command changes {own}, which only the program writes" if own else ""
        return "; ".join(filter(None, (f"use {listed}" if listed else "", no_command)))


def edit_of(
    accepted: Mapping[str, Any], content: Mapping[str, Any], redact: Callable[[str], str] = str
) -> FileEdit:
    """Return what *content* of state.json changes in the head's *accepted* content.

    *redact* removes secrets from it, as from what people write into a command.

    A person may stop the run there, say why, and keep notes in fields that the program does not
    know. An agent can write there too, so everything else has a command: it opens no gate, lets
    no held run continue, moves nothing and lowers no counter.
    """
    stop, notes, refused = dict[str, Any](), dict[str, Any](), []
    is_stop, is_over = content.get("exit") is True, accepted.get("status") == Status.COMPLETE
    for name in [*accepted, *(content.keys() - accepted.keys())]:
        value = content.get(name, _ABSENT)
        if name in accepted and value is not _ABSENT and _is_same(accepted[name], value):
            continue
        is_reason = name == "exit_reason" and not is_over and _is_reason(value)
        if is_stop and (name == "exit" or is_reason):
            stop[name] = value if value is _ABSENT else redacted(value, redact)
        elif name not in Head.model_fields and name not in OWN_EXTRAS:
            notes[name] = value if value is _ABSENT else redacted(value, redact)
        else:
            refused.append(name)
    # A file that is wrong elsewhere may have lost the name of a field, which is no note.
    new = {**accepted, **stop, **({} if refused else notes)}
    return FileEdit({k: v for k, v in new.items() if v is not _ABSENT}, tuple(refused))


def _is_reason(value: object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= MAX_REASON_CHARS)


def _is_same(one: object, other: object) -> bool:
    """Return whether both are the same JSON; Python takes true for 1 and 3.0 for 3."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def accept_file(head: Head, edited: Head, *, at: str) -> Transition:
    """Take over what somebody has written into state.json, as far as it may be changed there."""
    return Transition(changed(edited, at), (_fact_of(head, edited),))


def _fact_of(head: Head, edited: Head) -> Fact:
    """Return that a person has changed some fields of *head*, by name."""
    before, after = head.model_dump(), edited.model_dump()
    fields = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    return fact_at(Event.EDITED, head, f"by hand: {', '.join(fields)}")


def _accept(head: Head, edited: Head, *, at: str, placed: Placed) -> Transition:
    """Take over one field that a person has set with a command.

    Raises:
        EditRefused: it decides something, or states what is not so.
    """
    _ensure_same_run(head, edited)
    _ensure_still_held(head, edited)
    _ensure_room_to_count(edited)
    if edited.not_before != head.not_before:
        _ensure_date(edited.not_before)
        # A person means the date itself, whenever it was written down.
        edited = edited.replace(not_before_since=None)
    fact = _fact_of(head, edited)
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
    """Refuse another step_index in a graph: its progress is its marking, which counts the steps."""
    if head.flow is not None and edited.step_index != head.step_index:
        raise EditRefused(
            "step_index can't be set: a graph's progress is in its nodes",
            hint="'sequencer rewind NODE' goes back to a node, 'skip NODE' leaves one out",
        )


def _ensure_room_to_count(edited: Head) -> None:
    """Refuse counters so large that the transitions that follow could not be written down."""
    for field in ("token", "step_index", "attempt", "failures_in_row"):
        if getattr(edited, field) > MAX_COUNTER // 2:
            raise EditRefused(
                f"{field} {getattr(edited, field)} is too large",
                hint=f"the largest that can be set is {MAX_COUNTER // 2}",
            )


def _ensure_date(text: str | None) -> None:
    """Refuse a date that nobody could wait for: the step would start at once."""
    if text and not _DATE.fullmatch(text):
        raise EditRefused(
            f"not_before {text!r} is not a date",
            hint="write it like 2027-01-31T08:00:00Z",
        )


def edit_field(
    head: Head, field: str, value: Any, *, at: str, placed: Placed = lambda _: None
) -> Transition:
    """Set one field, known and editable or unknown, as if it had been edited in the file.

    *placed* says which step is expected at another step_index; where it can't, the edit is
    believed.

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
    if field in OWN_EXTRAS and not (field == MOVED and value is None):
        raise EditRefused(f"{field} can't be set by hand")
    if field == "exit_reason" and head.status is Status.COMPLETE:
        raise EditRefused("exit_reason says how the run has ended, which stays as it is")
    return _accept(head, edited, at=at, placed=placed)


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
                f"status went from {head.status} to "
                f"{edited.status}, but the run is {follows} by its other fields",
                hint=f"'sequencer {_BRINGS_ABOUT[edited.status]}",
            )
    if is_end or new.status is Status.COMPLETE:
        return new.replace(status=Status.COMPLETE, pause_requested=False)
    if new.status is Status.PAUSED:
        return new.replace(pause_requested=False)
    is_other = any(getattr(new, name) != getattr(head, name) for name in _BEHIND_A_STATUS)
    return at_rest(new) if is_other else new


def _refuse_decision(field: str, change: str, verbs: str) -> None:
    raise EditRefused(
        f"{field} {change}, which is a decision",
        hint=f"'sequencer {verbs}' decides",
    )
