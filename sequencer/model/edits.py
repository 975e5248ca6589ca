"""Manual edits of state.json, and ``set``: what a person may write into a head.

An agent can write there too, so no edit counts as a decision of a person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from sequencer.errors import EditRefused, format_command
from sequencer.frozen.fields import ValidationError
from sequencer.model.answers import redact_json
from sequencer.model.head import MOVED, OWN_EXTRAS, Head, Status
from sequencer.model.limits import FIRST_TIME, LAST_TIME, parse_time
from sequencer.model.outcome import Usage
from sequencer.model.transitions import (
    Event,
    Fact,
    StepRef,
    Transition,
    build_fact,
    drop_claims,
    move_head,
    refresh_status,
    resting_status,
    update_head,
    with_completion_fact,
)
from sequencer.model.whole_numbers import MAX_COUNTER

Locate = Callable[[Head], StepRef | None]
"""Returns where a head is in its workflow; None: that is unknown."""

EDITABLE = frozenset(
    {"exit", "exit_reason", "failures_in_row", "last_prompt", "not_before", "status", "step_index"}
)
"""Known fields that `set` may change; only the program writes the others."""
_COUNTERS = ("token", "step_index", "attempt", "failures_in_row")
_MAX_SET = MAX_COUNTER // 2
"""The largest value that a person may give a counter: the run must be able to count up from it."""
_RANGE = f"whole numbers from 0 to {_MAX_SET} can be set"
_DATE = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
    r"(?:[T ](?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?",
    re.ASCII,
)
"""ISO 8601 as people and programs write it; `_ensure_date` also checks the days of a month."""


_ABSENT = object()
MAX_NAMED = 5
"""A notice names at most this many refused fields."""
STOPS = frozenset({"exit", "exit_reason"})
MAX_REASON_CHARS = 500
"""Limit for the reason of a stop in the file, because many views show it."""
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
"""Field of a head -> the command that changes it; only the program writes the others."""


class FileEdit(Struct, frozen=True):
    """A manual edit of state.json, in two parts."""

    content: dict[str, Any]
    """The accepted content with the permitted changes."""
    refused: tuple[str, ...]
    """Fields that an edit of the file may not change."""

    def format_hint(self, run_name: str | None) -> str:
        """Return the commands that change the refused fields, and the fields without a command."""
        commands = (_COMMANDS[name] for name in self.refused if name in _COMMANDS)
        commands_text = ", ".join(
            format_command(run_name, text) for text in dict.fromkeys(commands)
        )
        other_names = ", ".join(
            [name for name in self.refused if name not in _COMMANDS][:MAX_NAMED]
        )
        other_hint = (
            f"no command changes {other_names}, which only the program writes"
            if other_names
            else ""
        )
        return "; ".join(
            filter(None, (f"use {commands_text}" if commands_text else "", other_hint))
        )


def compute_edit(
    accepted: Mapping[str, Any], content: Mapping[str, Any], redact: Callable[[str], str] = str
) -> FileEdit:
    """Return how *content* of state.json changes the *accepted* content of the head.

    *redact* removes secrets from the changes, as it does from the texts of commands.

    In the file, a person may stop the run, say why, and keep notes in fields that the program does
    not know. An agent can write there too, so everything else needs a command: an edit of the file
    opens no gate, resumes no run, moves nothing and lowers no counter.
    """
    stop, notes, refused_names = dict[str, Any](), dict[str, Any](), []
    is_stop, is_over = content.get("exit") is True, accepted.get("status") == Status.COMPLETE
    for name in [*accepted, *(content.keys() - accepted.keys())]:
        value = content.get(name, _ABSENT)
        if name in accepted and value is not _ABSENT and _is_same(accepted[name], value):
            continue
        is_reason = name == "exit_reason" and not is_over and _is_reason(value)
        if is_stop and (name == "exit" or is_reason):
            stop[name] = value if value is _ABSENT else redact_json(value, redact)
        elif name not in Head.model_fields and name not in OWN_EXTRAS:
            notes[name] = value if value is _ABSENT else redact_json(value, redact)
        else:
            refused_names.append(name)
    # If the file has other errors, an unknown field may be a misspelled one instead of a note.
    new_content = {**accepted, **stop, **({} if refused_names else notes)}
    return FileEdit(
        {key: value for key, value in new_content.items() if value is not _ABSENT},
        tuple(refused_names),
    )


def _is_reason(value: object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= MAX_REASON_CHARS)


def _is_same(first: object, second: object) -> bool:
    """Return whether both are the same JSON; for Python, true equals 1 and 3.0 equals 3."""
    return first == second and json.dumps(first, sort_keys=True) == json.dumps(
        second, sort_keys=True
    )


def accept_file(head: Head, edited: Head, *, at: str) -> Transition:
    """Accept a manual edit of state.json, reduced to its permitted changes."""
    return Transition(update_head(edited, at), (_build_edit_fact(head, edited),))


def _build_edit_fact(head: Head, edited_head: Head) -> Fact:
    """Return the fact that a person has changed some fields of *head*; it names the fields."""
    old_fields, new_fields = head.model_dump(), edited_head.model_dump()
    fields = sorted(
        name
        for name in old_fields.keys() | new_fields.keys()
        if old_fields.get(name) != new_fields.get(name)
    )
    return build_fact(Event.EDITED, head, f"by hand: {', '.join(fields)}")


def _accept(
    head: Head, edited_head: Head, used: Mapping[int, Usage], *, at: str, locate: Locate
) -> Transition:
    """Accept one field that a person has set with a command.

    A new step_index drops every claim; *used* is the known usage of their attempts, by token.

    Raises:
        EditRefused: the change is a decision, or contradicts the rest of the head.
    """
    _ensure_graph_position(head, edited_head)
    _ensure_no_decision(head, edited_head)
    _ensure_counters_can_grow(edited_head)
    if edited_head.exit_reason != head.exit_reason and not _is_reason(edited_head.exit_reason):
        raise EditRefused(f"exit_reason has more than {MAX_REASON_CHARS} characters")
    if edited_head.not_before != head.not_before:
        _ensure_date(edited_head.not_before)
        # A person means the date itself, no matter when it was set.
        edited_head = edited_head.replace(not_before_since=None)
    fact, lost_facts = _build_edit_fact(head, edited_head), tuple[Fact, ...]()
    new_head = update_head(edited_head, at, iteration=edited_head.step_index + 1)
    if edited_head.step_index == head.step_index:
        new_head = settle_status(
            head, edited_head, new_head.replace(expected_step=head.expected_step), is_end=False
        )
    else:
        # An attempt at the step that the run leaves must become stale.
        new_head, lost_facts = drop_claims(new_head, used, f"set step_index={new_head.step_index}")
        current_ref = locate(new_head.replace(loop=None))
        target = current_ref or StepRef(new_head.step_index, new_head.expected_step, "")
        # Failures, attempts and a pause are about the step that the run leaves.
        new_head = move_head(new_head, at, target, gate=None)
        new_head = settle_status(
            head, edited_head, new_head, is_end=current_ref is not None and current_ref.is_end
        )
    facts = (fact,) if head.status is Status.COMPLETE else with_completion_fact(fact, new_head)
    return Transition(new_head, (*lost_facts, *facts))


def _ensure_graph_position(head: Head, edited_head: Head) -> None:
    """Refuse a new step_index for a graph: its marking is its progress and counts the steps."""
    if head.flow is not None and edited_head.step_index != head.step_index:
        raise EditRefused(
            "step_index can't be set: a graph's progress is in its nodes",
            hint="'sequencer rewind NODE' goes back to a node, 'skip NODE' leaves one out",
        )


def _ensure_counters_can_grow(edited_head: Head) -> None:
    """Refuse counters that are so large that later transitions would exceed the limit."""
    for field in _COUNTERS:
        number = getattr(edited_head, field)
        if number > _MAX_SET:
            raise EditRefused(f"{field} {number} is too large", hint=_RANGE)


def _ensure_date(text: str | None) -> None:
    """Refuse a malformed or impossible date: with it, the step would start immediately.

    A date at either end of the calendar is refused too, because not every time zone has it.
    """
    if not text:
        return
    moment = parse_time(text) if _DATE.fullmatch(text) else None
    if moment is None or moment in (FIRST_TIME, LAST_TIME):
        raise EditRefused(
            f"not_before {text!r} is not a date",
            hint="write it like 2027-01-31T08:00:00Z",
        )


def edit_field(
    head: Head,
    field: str,
    value: Any,
    *,
    at: str,
    locate: Locate = lambda _: None,
    used: Mapping[int, Usage] = MappingProxyType({}),
) -> Transition:
    """Set one field, known and editable or unknown, as if it had been edited in the file.

    *locate* returns the step that is expected at a new step_index. If it returns None, the edit is
    accepted. *used* is the known usage of the attempts that lose their claims, by token.

    Raises:
        EditRefused: only the program writes the field, or it can't have this value.
    """
    if field in Head.model_fields and field not in EDITABLE:
        raise EditRefused(
            f"{field} can't be set by hand", hint=f"editable: {', '.join(sorted(EDITABLE))}"
        )
    try:
        edited_head = Head.model_validate({**head.model_dump(), field: value})
    except ValidationError as error:
        hint = _RANGE if field in _COUNTERS else None
        raise EditRefused(error.messages()[0], hint=hint) from None
    if field in OWN_EXTRAS and not (field == MOVED and value is None):
        raise EditRefused(f"{field} can't be set by hand")
    if field == "exit_reason" and head.status is Status.COMPLETE:
        raise EditRefused("exit_reason says how the run has ended, which stays as it is")
    return _accept(head, edited_head, used, at=at, locate=locate)


_FIELDS_OF_A_STATUS = ("status", "step_index", "failures_in_row", "pause_requested")
_HELD = {
    Status.WAITING_APPROVAL: "answer",
    Status.PAUSED: "resume",
    Status.COMPLETE: "rewind' or 'reset",
}
"""Status in which the run needs a person -> the command that lets it continue."""
_LEADS_TO = {
    Status.IDLE: "reset' starts a new run",
    Status.RUNNING: "run' runs the step",
    Status.WAITING_NEXT: "retry' forgets failures, 'takeover --force' drops a claim",
    Status.WAITING_APPROVAL: "stop --pause' holds the run; 'requires_approval' asks a person",
    Status.FAILED: "skip --as-failed' marks the step as failed",
    Status.COMPLETE: "stop' ends the run after the running step",
}
"""Status that can't be set -> the command that leads to it, or to what the person wants."""


def _ensure_no_decision(head: Head, edited_head: Head) -> None:
    """Refuse to pass a gate, and to leave a status in which the run needs a person."""
    # Going back does not pass the gate: the step that asks runs again, and asks again.
    is_past = head.is_at_gate and edited_head.step_index > head.step_index
    if edited_head.gate != head.gate or is_past:
        _refuse_decision("gate", "changed", _HELD[Status.WAITING_APPROVAL])
    # Without its gate, this status has no meaning, so it may be changed.
    means_nothing = head.status is Status.WAITING_APPROVAL and not head.is_at_gate
    if edited_head.status != head.status and head.status in _HELD and not means_nothing:
        change = f"went from {head.status} to {edited_head.status}"
        _refuse_decision("status", change, _HELD[head.status])
    if edited_head.step_index != head.step_index and head.status is Status.COMPLETE:
        _refuse_decision("step_index", "changed in a complete run", _HELD[Status.COMPLETE])


def settle_status(head: Head, edited: Head, new: Head, *, is_end: bool) -> Head:
    """Return *new*, the result of *edited* for *head*, with the status that its fields imply.

    An edit can set a pause and an end; while a step runs, the pause is only requested. Every
    other status is a fact, and readers of the file would trust an edit that contradicts it.
    *is_end*: no step is left.

    Raises:
        EditRefused: *edited* has a status that its other fields contradict.
    """
    if new.claims and edited.status is Status.PAUSED:
        # As `pause` does: the running step is not lost.
        return new.replace(status=Status.RUNNING, pause_requested=True)
    next_status = Status.RUNNING if new.claims else resting_status(new)
    if edited.status not in (head.status, next_status):
        can_end = not new.claims and not new.is_at_gate
        can_be = {Status.PAUSED: True, Status.COMPLETE: can_end}
        if not can_be.get(edited.status, False):
            raise EditRefused(
                f"status went from {head.status} to "
                f"{edited.status}, but the run is {next_status} by its other fields",
                hint=f"'sequencer {_LEADS_TO[edited.status]}",
            )
    if is_end or new.status is Status.COMPLETE:
        return new.replace(status=Status.COMPLETE, pause_requested=False)
    if new.status is Status.PAUSED:
        return new.replace(pause_requested=False)
    has_changed = any(getattr(new, name) != getattr(head, name) for name in _FIELDS_OF_A_STATUS)
    return refresh_status(new) if has_changed else new


def _refuse_decision(field: str, change: str, verbs: str) -> None:
    raise EditRefused(
        f"{field} {change}, which is a decision",
        hint=f"'sequencer {verbs}' decides",
    )
