"""Read the facts of a journal, with the one table that says what each event means.

Code that needs the effect of a fact on an attempt, a step or a run uses `MEANINGS`; no other code
compares events for that. docs/reference/files.md has the format of a fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert, defstruct

from sequencer.model.outcome import Usage
from sequencer.model.transitions import CLAIM_LOST, Event, Fact

_NO_FACT = ("head", "also", "writing")
"""Keys of a record that are not part of its first fact."""


class StartKind(StrEnum):
    """What an event starts."""

    ATTEMPT = "attempt"
    """An agent works."""
    QUESTION = "question"
    """A person is asked."""
    PASSAGE = "passage"
    """A node that does no work was reached."""


class EndState(StrEnum):
    """How an attempt, a question or a passage ended."""

    DONE = "done"
    PASSED = "passed"
    """A node that does no work was left."""
    ANSWERED = "answered"
    EXPIRED = "expired"
    """No one answered in time; the run continues as the question says."""
    SKIPPED = "skipped"
    """A person continued without it."""
    FAILED = "failed"
    REFUSED = "refused"
    """A judging step said no."""
    RELEASED = "released"
    """The attempt was given up; nothing failed."""
    LOST = "lost"
    """Its process had died, or a person took the step away from it."""
    CANCELLED = "cancelled"
    """Something else ended it: an error elsewhere, a limit, a person."""


class Meaning(Struct, frozen=True, kw_only=True):
    """What one event means."""

    starts: StartKind | None = None
    ends: EndState | None = None
    accepts: bool = False
    """The step's turn is over, and the run continues after it."""
    is_output: bool = False
    """The fact has the answer of an agent that completed its task."""
    starts_over: bool = False
    """All facts before it no longer count."""
    resets: bool = False
    """A person started the run over; the outcome names the run that ended."""
    leaves_step: bool = False
    """Afterwards a sequence is at another step, or starts again at this one."""
    decides_gate: bool = False
    """A person has decided at the step's gate."""
    ends_run: bool = False
    cancels: bool = False
    """It ends the nodes that its outcome names."""
    changes_course: bool = False
    """A person changed something, so the next attempt does not count as a repetition."""
    sets_fields: bool = False
    """Any field of the head may have any value afterwards."""
    is_edit: bool = False
    """A person edited state.json."""
    by_hand: bool = False
    """A person reports the end of a step, whether someone worked at it or not."""
    by_holder: bool = False
    """Only a process that holds the claim, or takes it over, reports it."""
    is_late_charge: bool = False
    """It only counts the usage of an attempt that had already lost its claim."""
    moves_nothing: bool = False
    """The run is where it was before."""
    holds_run: bool | None = None
    """A person stopped or paused the run (True), or may have let it continue (False)."""
    takes_token: bool = False
    """In a graph, it uses up a token, under which the text of the person is stored."""
    title: str = ""
    """The text for it in `history`, on the board and in posted results; its step and note follow.
    Empty: they leave it out, or have their own text for it (`trace`, `words`, `results`)."""


MEANINGS: Mapping[Event, Meaning] = {
    Event.INITIALISED: Meaning(starts_over=True, leaves_step=True, sets_fields=True),
    Event.RESET: Meaning(starts_over=True, resets=True, leaves_step=True, sets_fields=True),
    Event.CLAIMED: Meaning(starts=StartKind.ATTEMPT),
    Event.ASKED: Meaning(starts=StartKind.QUESTION),
    Event.STARTED: Meaning(starts=StartKind.PASSAGE),
    Event.SUCCEEDED: Meaning(
        ends=EndState.DONE, accepts=True, is_output=True, leaves_step=True, by_holder=True
    ),
    Event.FIXED: Meaning(ends=EndState.DONE, accepts=True, is_output=True, by_holder=True),
    Event.INVALID: Meaning(ends=EndState.REFUSED, is_output=True, by_holder=True),
    Event.FAILED: Meaning(ends=EndState.FAILED, by_holder=True),
    Event.RELEASED: Meaning(ends=EndState.RELEASED, by_holder=True),
    Event.TAKEN_OVER: Meaning(ends=EndState.LOST, by_holder=True),
    Event.PASSED: Meaning(ends=EndState.PASSED, accepts=True),
    Event.ANSWERED: Meaning(ends=EndState.ANSWERED, accepts=True, changes_course=True),
    Event.EXPIRED: Meaning(ends=EndState.EXPIRED, accepts=True),
    Event.STAMPED: Meaning(
        ends=EndState.DONE, accepts=True, leaves_step=True, by_hand=True, takes_token=True
    ),
    Event.SKIPPED: Meaning(ends=EndState.SKIPPED, leaves_step=True, by_hand=True),
    Event.APPROVED: Meaning(decides_gate=True),
    Event.REJECTED: Meaning(decides_gate=True),
    Event.FEEDBACK: Meaning(decides_gate=True, changes_course=True),
    Event.REWOUND: Meaning(leaves_step=True, changes_course=True),
    Event.RESUMED: Meaning(changes_course=True, holds_run=False),
    Event.ADOPTED: Meaning(changes_course=True, sets_fields=True),
    Event.TOLD: Meaning(changes_course=True, moves_nothing=True, takes_token=True),
    Event.DIVERTED: Meaning(cancels=True),
    Event.EXHAUSTED: Meaning(cancels=True),
    Event.TIMED_OUT: Meaning(cancels=True),
    Event.CANCELLED: Meaning(cancels=True),
    Event.COMPLETED: Meaning(ends_run=True),
    Event.EDITED: Meaning(sets_fields=True, is_edit=True, holds_run=False),
    Event.PAUSED: Meaning(holds_run=True),
    Event.LOOPED: Meaning(),
    Event.GROWN: Meaning(),
    Event.WARNED: Meaning(title="warning"),
}
"""What each event means."""
_STAMPED_AS_FAILED = Meaning(ends=EndState.FAILED, leaves_step=True, by_hand=True)
_STOPPED = Meaning(sets_fields=True, is_edit=True, holds_run=True)
_CHARGED_LATE = Meaning(
    ends=EndState.RELEASED, moves_nothing=True, by_holder=True, is_late_charge=True
)
_UNKNOWN = Meaning()
"""The meaning of an event that a later version added."""
_EVENTS: Mapping[str, Any] = {str(event): event for event in Event}
_BY_NAME: Mapping[str, Meaning] = {str(event): meaning for event, meaning in MEANINGS.items()}
_NOTHING: Mapping[str, Any] = MappingProxyType({})


_Usage: type[Struct] = defstruct(
    "_Usage",
    [(name, Annotated[type(zero), Meta(ge=0)], zero) for name, zero in vars(Usage()).items()],
)
_Names = Sequence[str] | None


class _Details(Struct, rename={"sources": "from"}):
    """The details that readers depend on, with their types; all others are only displayed."""

    usage: _Usage | None = None  # type: ignore[valid-type]
    began_at: datetime | None = None
    again: _Names | bool = None
    cancelled: _Names = None
    sources: _Names = None
    tasks: _Names = None
    to: str | None = None
    denials: Sequence[Any] | None = None
    left: Mapping[str, Any] | None = None
    output_cut_from: int | None = None
    quota: Mapping[str, Any] | None = None
    verdict: Mapping[str, Any] | None = None
    work: Mapping[str, Any] | None = None


_EARLIEST = "1970-01-01T00:00:00Z"
_FIELD = re.compile(r"at `\$\.(\w+)")
"""Where msgspec names the field that has another type."""


class RecordedFact(Fact, frozen=True, kw_only=True):
    """A fact from the journal."""

    revision: int
    at: str
    """ISO 8601 UTC, whole seconds."""
    details: Mapping[str, Any]
    """The outcome; empty if there is none."""
    meaning: Meaning
    host: str = ""
    """The machine that claimed the step; only claims have one."""
    problem: str | None = None
    """What is wrong with the values that `details` leaves out; None: they are all there."""


def read_facts(facts: Iterable[Mapping[str, Any]]) -> Iterator[RecordedFact]:
    """Yield *facts*, in the form of ``history --json``, as structs.

    Values of wrong types are left out: the checksum of a record that a person edited may be right.
    """
    for fact in facts:
        event, outcome = fact.get("event") or "", fact.get("outcome")
        details, problem, at = outcome if isinstance(outcome, dict) else {}, None, fact.get("at")
        try:
            convert(details, _Details)
        except ValidationError:
            details, problem = _drop_wrong_values(details)
        try:
            datetime.fromisoformat(at or "")
        except (TypeError, ValueError):
            at = _EARLIEST
        yield RecordedFact(
            event=_EVENTS.get(event, event),
            step=fact.get("step") or "",
            step_index=fact.get("step_index") or 0,
            token=fact.get("token") or 0,
            attempt=fact.get("attempt") or 0,
            outcome=details or None,
            revision=fact.get("revision") or 0,
            at=str(at),
            details=details,
            meaning=find_meaning(event, details),
            host=fact.get("host") or "",
            problem=problem,
        )


def _drop_wrong_values(details: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return *details* without the values of wrong types, and which of them has one."""
    problem = None
    while True:
        try:
            convert(details, _Details)
        except ValidationError as error:
            match = _FIELD.search(str(error))
            if match is None:
                raise
            details = {name: value for name, value in details.items() if name != match[1]}
            problem = problem or f"its {match[1]} has a value of the wrong type"
        else:
            return details, problem


def find_meaning(event: str, details: Mapping[str, Any] = _NOTHING) -> Meaning:
    """Return the meaning of *event*, whose outcome *details* may change it.

    A step that a person stamped as failed has failed. A release of a lost claim only counts what
    its attempt has used. The note of an edit says whether it stopped the run.
    """
    verb = str(details.get("note", "")).partition(":")[0]
    if event == Event.STAMPED and verb == "fail":
        return _STAMPED_AS_FAILED
    if event == Event.EDITED and verb == "stop":
        return _STOPPED
    if event == Event.RELEASED and details.get("reason") == CLAIM_LOST:
        return _CHARGED_LATE
    return _BY_NAME.get(event, _UNKNOWN)


def list_facts(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of *record* as ``history --json`` prints them, one or more."""
    shared_fields = {"revision": record["revision"], "at": record["at"]}
    first_fact = {
        key: value
        for key, value in record.items()
        if key not in _NO_FACT and key not in shared_fields
    }
    facts = [{**shared_fields, **fact} for fact in (first_fact, *record.get("also", ()))]
    for fact in facts:
        if find_meaning(fact["event"]).starts is StartKind.ATTEMPT:
            # The fact does not name the host; the claim in the new head does.
            fact["host"] = _find_host(record["head"].get("claims"), fact["token"])
    return facts


def _find_host(claims: Any, token: Any) -> str | None:
    """Return the host in the claim with *token* of *claims*, an unchecked field of a head."""
    for claim in claims if isinstance(claims, list) else ():
        if isinstance(claim, dict) and claim.get("token") == token:
            owner = claim.get("owner")
            host = owner.get("host") if isinstance(owner, dict) else None
            return host if isinstance(host, str) else None
    return None


def was_lost_on_hold(facts: Iterable[RecordedFact], token: int) -> bool:
    """Return whether a person took the claim *token* away from a run they had stopped or paused."""
    is_on_hold = False
    for fact in facts:
        if fact.meaning.holds_run is not None:
            is_on_hold = fact.meaning.holds_run
        elif fact.token == token and fact.meaning.ends is EndState.LOST:
            return is_on_hold
    return False


def find_end_index(facts: Iterable[Fact]) -> int | None:
    """Return the step_index of the newest of *facts* that ends a run; None: none does.

    That is the step after which, or at whose gate, the run ended. The order of the steps does not
    matter: a hook or the kind of the workflow may decide it.
    """
    end_index = None
    for fact in facts:
        if find_meaning(fact.event).ends_run:
            end_index = fact.step_index
    return end_index
