"""What the server's events tell of a run: its journal, and what other processes do with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from sequencer.engine.dispatch import RemoteAttempt
from sequencer.engine.events import MadeElsewhere, RunEvent
from sequencer.history.facts import read
from sequencer.model.evidence import evidence_of
from sequencer.model.head import Head
from sequencer.model.outcome import Outcome, OutcomeStatus, used
from sequencer.plugins.temporal.wire import (
    BEFORE,
    FACTS,
    HEAD,
    MERGED,
    RUN,
    amended,
    fact_of,
    worker_name,
)

Tell = Callable[[str | None, RunEvent], None]
"""Hears, with the name of its run, what happens in an attempt."""


class RunSeen(Struct, frozen=True):
    """A run as the server has told of it."""

    memo: dict[str, Any]
    execution: str
    is_open: bool
    queue: str
    """Of who decides over it."""
    pending: Mapping[int, str]
    """Who makes attempts, by their tokens; empty for one that no worker has taken yet."""


def plain(payload: Any) -> Any:
    """Return what *payload* of an event holds."""
    return json.loads(payload.data) if payload.data else None


class EventReader:
    """Makes the journal out of the events of a run, which come in their order."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        """The journal's, as ``history --json`` prints them."""
        self.made: dict[int, RemoteAttempt] = {}
        """Attempts that have ended with a report, by tokens."""
        self.makers: dict[int, str] = {}
        """Processes that have made attempts, by tokens."""
        self.scheduled: dict[int, int] = {}
        """Event that has scheduled an attempt -> its token."""
        self.reports: dict[int, dict[str, Any]] = {}
        """By tokens."""
        self._attempts: dict[int, dict[str, Any]] = {}
        """The records in them."""
        self.memo: dict[str, Any] = {}
        """What the newest event has left of the head."""
        self.outputs: dict[str, str] = {}
        """What people have said, by the names of their results."""
        self.permits: dict[str, dict[str, Any]] = {}
        """What was issued, by ids."""

    @property
    def revision(self) -> int:
        """Return the revision of the newest head that was read; 0 before there was one."""
        found: int = self.memo[HEAD]["revision"] if HEAD in self.memo else 0
        return found

    def read(self, event: Any) -> list[dict[str, Any]]:
        """Return the facts that *event* tells of."""
        which = event.WhichOneof("attributes")
        told = getattr(event, which)
        if which == "activity_task_scheduled_event_attributes":
            self.scheduled[event.event_id] = int(told.activity_id)
        elif which == "activity_task_started_event_attributes":
            self.makers[self.scheduled[told.scheduled_event_id]] = told.identity
        elif which == "activity_task_completed_event_attributes":
            token = self.scheduled[told.scheduled_event_id]
            report = plain(told.result.payloads[0])
            if MERGED in report:
                report = amended(self.reports[token], report[MERGED])
            self.reports[token] = report
            self._attempts[token] = report["record"]
        elif which == "workflow_execution_update_accepted_event_attributes":
            for payload in told.accepted_request.input.args.payloads:
                given = plain(payload)
                if told.accepted_request.input.name == "work":
                    self.permits[given["id"]] = given
                else:
                    self.outputs |= given.get("outputs", {}) if isinstance(given, dict) else {}
        elif which == "workflow_execution_started_event_attributes":
            state = plain(told.input.payloads[0]) if told.input.payloads else {}
            self.outputs |= state.get("outputs", {})
            self.permits |= {one["id"]: one for one in state.get("permits", ())}
            past = state.get(BEFORE, [])
            self.records += past
            return [*past, *self._facts(told.memo.fields)]
        elif which == "workflow_properties_modified_event_attributes":
            return self._facts(told.upserted_memo.fields)
        return []

    def _facts(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        if FACTS not in fields or HEAD not in fields:
            return []
        self.memo |= {key: plain(fields[key]) for key in (RUN, HEAD) if key in fields}
        head = self.memo[HEAD]
        shared = {"revision": head["revision"], "at": head["last_update"]}
        facts = [{**shared, **fact_of(one, self._attempts)} for one in plain(fields[FACTS])]
        for fact in facts:
            log = (fact["outcome"] or {}).get("log")
            if log and fact["token"] in self.makers:
                host = worker_name(self.makers[fact["token"]]).partition("@")[2]
                place = fact["step"], fact["step_index"], fact["attempt"]
                self.made[fact["token"]] = RemoteAttempt(*place, fact["token"], host, log)
        self.records += facts
        return facts

    def taken(self) -> Iterator[dict[str, Any]]:
        """Yield the records and forget them, each with its attempt once that has ended."""
        self.outputs.clear()
        while self.records:
            fact = self.records.pop(0)
            yield fact
            if _is_end(fact):
                for known in (self.makers, self.made, self.reports, self._attempts):
                    known.pop(fact["token"], None)


class Elsewhere:
    """The attempts of other processes that start and end, each told once."""

    def __init__(self, head: Head, own: str) -> None:
        """Tell what happens after *head*; attempts by *own*, a process, are known."""
        self._revision, self._own = head.revision, own
        self._ended: set[int] = set()
        self.running: dict[int, str] = {}
        """Who makes attempts whose start was told, and their end was not, by tokens."""

    def starts(self, head: Head, pending: Mapping[int, str]) -> Iterator[MadeElsewhere]:
        """Yield the claims of *head* that others, named in *pending*, are known to have begun."""
        for one in head.claims:
            by = pending.get(one.token, "")
            if by not in ("", self._own, self.running.get(one.token)):
                self.running[one.token] = by
                yield MadeElsewhere(one.step, one.step_index, one.attempt, worker_name(by))

    def ends(self, reader: EventReader) -> Iterator[MadeElsewhere]:
        """Yield what the records are about that *reader* has read, which forgets them."""
        for fact in reader.taken():
            token = fact["token"]
            by = self.running.get(token) or reader.makers.get(token, "")
            is_end = _is_end(fact) and fact["revision"] > self._revision
            if not is_end or token in self._ended or by in ("", self._own):
                continue
            place = fact["step"], fact["step_index"], fact["attempt"]
            begun = MadeElsewhere(*place, worker_name(by))
            if token not in self.running:
                yield begun
            self.running.pop(token, None)
            self._ended.add(token)
            yield begun._replace(outcome=_outcome_of(fact["outcome"] or {}))


def _is_end(fact: Mapping[str, Any]) -> bool:
    """Return whether *fact* ends an attempt, or all of them."""
    (recorded,) = read([fact])
    return recorded.meaning.ends is not None or recorded.meaning.cancels


def _outcome_of(record: Mapping[str, Any]) -> Outcome:
    return Outcome(
        status=OutcomeStatus(record.get("status", OutcomeStatus.INTERRUPTED)),
        error=record.get("error") or record.get("note"),
        usage=used(record.get("usage", {})),
        denials=tuple(record.get("denials", ())),
        evidence=evidence_of(record),
    )
