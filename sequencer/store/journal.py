"""The journal's line format, and which of its lines count.

A line is one JSON object with a checksum over everything before it. Of several lines with
the next revision the first in the file wins, every other one is skipped by every reader:
that makes an append a compare-and-swap. A line that can't be read is skipped; if it held
an accepted record, the revisions have a gap, and that is refused.

Stdlib only: the idle `tick` reads the journal without loading anything heavy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from sequencer.errors import CorruptState, NewerSchema
from sequencer.store.strictjson import parse_object

if TYPE_CHECKING:
    from sequencer.model.transitions import Fact

CLOSING = b"#\n"
"""What a writer puts behind a torn line. A newline alone would make a line count that lacks
nothing else, after it was taken for torn."""
_SEAL = b',"checksum":"'
_CHECKSUM_HEX = 16
WRITING = "writing"
_NO_FACT = ("head", "also", WRITING)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_FACT_KEYS = frozenset({"event", "step", "step_index", "token", "attempt", "outcome"})
_TAIL_BYTES = len(_SEAL) + _CHECKSUM_HEX + len(b'"}')


@dataclass(frozen=True, slots=True)
class Record:
    """One winning line."""

    revision: int
    offset: int
    """Where the line starts in its file, in bytes."""
    line: bytes
    """Without the newline."""
    data: dict[str, Any]

    @property
    def end(self) -> int:
        """Return the offset behind the newline."""
        return self.offset + len(self.line) + 1


@dataclass(frozen=True, slots=True)
class Scan:
    """What a stretch of journal holds."""

    winners: tuple[Record, ...]
    size: int
    """Offset behind the last byte that was read."""
    is_torn: bool
    """The last line has no newline: its writer was stopped in mid-write."""
    skipped: tuple[tuple[int, str], ...] = ()
    """Offset and reason of each line that does not count."""


def checksum(body: bytes) -> str:
    """Return the checksum of a line's *body*, the bytes before the checksum's own key."""
    return blake2b(body, digest_size=_CHECKSUM_HEX // 2).hexdigest()


def fact_fields(fact: Fact) -> dict[str, Any]:
    """Return *fact* as a line has it."""
    return {
        "event": str(fact.event),
        "step": fact.step,
        "step_index": fact.step_index,
        "token": fact.token,
        "attempt": fact.attempt,
        "outcome": fact.outcome,
    }


def encode(
    revision: int,
    at: str,
    facts: Sequence[dict[str, Any]],
    head_json: bytes,
    writing: str | None = None,
) -> bytes:
    """Return the line for a transition, newline included.

    *facts*, one or more, have the keys event, step, step_index, token, attempt, outcome.
    *writing* tells this line from every other, where two writers may decide the same.
    """
    first, *rest = facts
    fields = {"revision": revision, "at": at, **first}
    if rest:
        fields["also"] = rest
    if writing is not None:
        fields[WRITING] = writing
    # An agent's output may hold half a surrogate pair, which no UTF-8 file can.
    start = _ENCODER.encode(fields).encode("utf-8", "replace")
    body = start[:-1] + b',"head":' + head_json
    return body + _SEAL + checksum(body).encode() + b'"}\n'


def decode(line: bytes) -> dict[str, Any]:
    """Return the record that *line* holds.

    Raises:
        ValueError: it is torn or damaged.
        NewerSchema: it is as it was written, but no record that this version knows.
    """
    body, tail = line[:-_TAIL_BYTES], line[-_TAIL_BYTES:]
    if not (tail.startswith(_SEAL) and tail.endswith(b'"}')):
        message = "torn: the checksum is missing"
        raise ValueError(message)
    if tail[len(_SEAL) : -2].decode("ascii", "replace") != checksum(body):
        message = "damaged: the checksum does not match"
        raise ValueError(message)
    data = parse_object(body + b"}", max_bytes=4 * 1024 * 1024)
    if not _is_record(data):
        raise NewerSchema(
            f"a line of the journal is whole, but no record that this version knows: {line[:80]!a}",
            hint="update sequencer on this machine; if no newer version wrote it, remove the line",
        )
    return data


def _is_record(data: dict[str, Any]) -> bool:
    """Return whether *data* has what every reader of a record relies on."""
    also = data.get("also", [])
    return (
        type(data.get("revision")) is int
        and isinstance(data.get("at"), str)
        and isinstance(data.get("head"), dict)
        and isinstance(also, list)
        and all(isinstance(fact, dict) and fact.keys() >= _FACT_KEYS for fact in (data, *also))
    )


def scan(data: bytes, offset: int, expected: int | None, where: str) -> Scan:
    """Return the winners among the lines of *data*, which starts at *offset* of its file.

    *expected* is the revision of the first winner; None takes that of the first line
    that can be read.

    Raises:
        CorruptState: an accepted record is missing between two others.
    """
    winners: list[Record] = []
    skipped: list[tuple[int, str]] = []
    start = 0
    while (newline := data.find(b"\n", start)) >= 0:
        line, at = data[start:newline], offset + start
        start = newline + 1
        try:
            record = decode(line)
        except ValueError as error:
            if line:
                skipped.append((at, str(error)))
            continue
        revision = record["revision"]
        if expected is None:
            expected = revision
        if revision > expected:
            lost = (
                f"revision {expected}"
                if revision == expected + 1
                else (f"revisions {expected} to {revision - 1}")
            )
            raise CorruptState(
                f"{lost} missing before byte {at}",
                where=where,
                hint="'sequencer repair' shows what can be saved",
            )
        if revision < expected:
            skipped.append((at, f"revision {revision} was already taken"))
            continue
        winners.append(Record(revision, at, line, record))
        expected = revision + 1
    is_torn = start < len(data)
    if is_torn:
        skipped.append((offset + start, "torn: no end of line"))
    return Scan(tuple(winners), offset + len(data), is_torn, tuple(skipped))


def facts_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of *record* as ``history --json`` prints them, one or more."""
    shared = {"revision": record["revision"], "at": record["at"]}
    first = {k: v for k, v in record.items() if k not in _NO_FACT and k not in shared}
    return [{**shared, **fact} for fact in (first, *record.get("also", ()))]
