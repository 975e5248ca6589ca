"""Reads a run's journal, and what other processes do with the run, from the server's events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sequencer.engine.dispatch import RemoteAttempt
from sequencer.engine.events import AttemptElsewhere, RunEvent
from sequencer.history.facts import read_facts
from sequencer.model.evidence import read_evidence
from sequencer.model.head import Head
from sequencer.model.outcome import Outcome, OutcomeStatus, read_usage
from sequencer.plugins.temporal.wire import (
    BEFORE,
    FACTS,
    HEAD,
    MERGED,
    RUN,
    amend_report,
    unpack_fact,
    worker_name,
)

Notify = Callable[[str | None, RunEvent], None]
"""Gets the name of a run and an event of one of its attempts."""


class RunSeen(Struct, frozen=True):
    """A run as the server described it."""

    memo: dict[str, Any]
    execution: str
    is_open: bool
    queue: str
    """Queue of the workers that run its workflow."""
    pending: Mapping[int, str]
    """Running attempts: token -> the worker's `identity`, empty if no worker has taken it yet."""


def decode_payload(payload: Any) -> Any:
    """Return the value in the *payload* of an event."""
    return json.loads(payload.data) if payload.data else None


class EventReader:
    """Builds the journal from the events of a run, read in their order."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        """The journal's records, as ``history --json`` prints them."""
        self.made: dict[int, RemoteAttempt] = {}
        """Attempts that ended with a report, by token."""
        self.makers: dict[int, str] = {}
        """Processes that took attempts, by token."""
        self.scheduled: dict[int, int] = {}
        """Id of the event that scheduled an attempt -> the attempt's token."""
        self.reports: dict[int, dict[str, Any]] = {}
        """Reports of attempts, by token."""
        self._attempts: dict[int, dict[str, Any]] = {}
        """The records in the reports, by token."""
        self.memo: dict[str, Any] = {}
        """Both parts of the newest head."""
        self.outputs: dict[str, str] = {}
        """Texts from people and from earlier executions, by the names of their results."""
        self.work_orders: dict[str, dict[str, Any]] = {}
        """All work orders that were issued, by id."""

    @property
    def revision(self) -> int:
        """Return the revision of the newest head that was read; 0 if none was."""
        revision: int = self.memo[HEAD]["revision"] if HEAD in self.memo else 0
        return revision

    def read(self, event: Any) -> list[dict[str, Any]]:
        """Take in *event*, and return its facts."""
        kind = event.WhichOneof("attributes")
        attributes = getattr(event, kind)
        if kind == "activity_task_scheduled_event_attributes":
            self.scheduled[event.event_id] = int(attributes.activity_id)
        elif kind == "activity_task_started_event_attributes":
            self.makers[self.scheduled[attributes.scheduled_event_id]] = attributes.identity
        elif kind == "activity_task_completed_event_attributes":
            token = self.scheduled[attributes.scheduled_event_id]
            report = decode_payload(attributes.result.payloads[0])
            if MERGED in report:
                report = amend_report(self.reports[token], report[MERGED])
            self.reports[token] = report
            self._attempts[token] = report["record"]
        elif kind == "workflow_execution_update_accepted_event_attributes":
            for payload in attributes.accepted_request.input.args.payloads:
                argument = decode_payload(payload)
                if attributes.accepted_request.input.name == "work":
                    self.work_orders[argument["id"]] = argument
                else:
                    change = argument if isinstance(argument, dict) else {}
                    self.outputs |= change.get("outputs", {})
        elif kind == "workflow_execution_started_event_attributes":
            state = (
                decode_payload(attributes.input.payloads[0]) if attributes.input.payloads else {}
            )
            self.outputs |= state.get("outputs", {})
            self.work_orders |= {order["id"]: order for order in state.get("permits", ())}
            past = state.get(BEFORE, [])
            self.records += past
            return [*past, *self._facts(attributes.memo.fields)]
        elif kind == "workflow_properties_modified_event_attributes":
            return self._facts(attributes.upserted_memo.fields)
        return []

    def _facts(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        if FACTS not in fields or HEAD not in fields:
            return []
        self.memo |= {key: decode_payload(fields[key]) for key in (RUN, HEAD) if key in fields}
        head = self.memo[HEAD]
        common_fields = {"revision": head["revision"], "at": head["last_update"]}
        facts = [
            {**common_fields, **unpack_fact(fact, self._attempts)}
            for fact in decode_payload(fields[FACTS])
        ]
        for fact in facts:
            log = (fact["outcome"] or {}).get("log")
            if log and fact["token"] in self.makers:
                host = worker_name(self.makers[fact["token"]]).partition("@")[2]
                place = fact["step"], fact["step_index"], fact["attempt"]
                self.made[fact["token"]] = RemoteAttempt(*place, fact["token"], host, log)
        self.records += facts
        return facts

    def pop_records(self) -> Iterator[dict[str, Any]]:
        """Yield the records and forget them, and forget the attempts that they end."""
        self.outputs.clear()
        while self.records:
            fact = self.records.pop(0)
            yield fact
            if _is_end(fact):
                for by_token in (self.makers, self.made, self.reports, self._attempts):
                    by_token.pop(fact["token"], None)


class AttemptReporter:
    """Reports each start and end of another process's attempt once."""

    def __init__(self, head: Head, own: str) -> None:
        """Report what happens after *head*, except attempts by the process *own*."""
        self._revision, self._own = head.revision, own
        self._ended: set[int] = set()
        self.running: dict[int, str] = {}
        """Workers of the attempts whose start was reported but not their end, by token."""

    def report_starts(self, head: Head, pending: Mapping[int, str]) -> Iterator[AttemptElsewhere]:
        """Yield the start of each attempt of *head* that another worker in *pending* has taken."""
        for claim in head.claims:
            maker = pending.get(claim.token, "")
            if maker not in ("", self._own, self.running.get(claim.token)):
                self.running[claim.token] = maker
                yield AttemptElsewhere(
                    claim.step, claim.step_index, claim.attempt, worker_name(maker)
                )

    def report_ends(self, reader: EventReader) -> Iterator[AttemptElsewhere]:
        """Yield the ends of attempts in the records of *reader*, which forgets the records.

        An attempt that started and ended since the last look is yielded twice, start first.
        """
        for fact in reader.pop_records():
            token = fact["token"]
            maker = self.running.get(token) or reader.makers.get(token, "")
            is_end = _is_end(fact) and fact["revision"] > self._revision
            if not is_end or token in self._ended or maker in ("", self._own):
                continue
            place = fact["step"], fact["step_index"], fact["attempt"]
            attempt = AttemptElsewhere(*place, worker_name(maker))
            if token not in self.running:
                yield attempt
            self.running.pop(token, None)
            self._ended.add(token)
            yield replace(attempt, outcome=_parse_outcome_record(fact["outcome"] or {}))


def _is_end(fact: Mapping[str, Any]) -> bool:
    """Return whether *fact* ends one attempt, or all of them."""
    (record,) = read_facts([fact])
    return record.meaning.ends is not None or record.meaning.cancels


def _parse_outcome_record(record: Mapping[str, Any]) -> Outcome:
    return Outcome(
        status=OutcomeStatus(record.get("status", OutcomeStatus.INTERRUPTED)),
        error=record.get("error") or record.get("note"),
        usage=read_usage(record.get("usage", {})),
        denials=tuple(record.get("denials", ())),
        evidence=read_evidence(record),
    )
