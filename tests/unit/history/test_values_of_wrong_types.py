"""Every view of a journal whose records are intact, but were edited by someone who sealed them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.invocation_budget import Mode
from sequencer.history.facts import read_facts
from sequencer.model.limits import InvocationLimits
from sequencer.store.journal import checksum
from tests.unit.cli.calling import call
from tests.unit.engine.projects import OK, open_scripted

COMMANDS = (
    *("check", "repair", "history", "history --json", "status", "status --json", "report"),
    *("report --json", "report --metrics", "gantt", "inbox", "log", "log --list"),
)
CHANGES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("outcome", {"usage": {"seconds": {}}}),
    ("outcome", {"usage": {"input_tokens": "1"}}),
    ("outcome", {"usage": {"cost_usd": -1}}),
    ("outcome", {"usage": 5}),
    ("outcome", {"began_at": "x"}),
    ("outcome", {"began_at": [1]}),
    ("outcome", {"cancelled": 5, "again": 5, "from": 5, "to": [1]}),
    ("outcome", {"cancelled": [[1]], "from": [{}]}),
    ("outcome", {"verdict": 1, "denials": 1, "quota": 1, "left": 1, "work": 1, "tasks": 1}),
    ("outcome", {"output_cut_from": "x"}),
    ("head", {"usage": {"cost_usd": "x"}}),
    ("head", {"claims": [{"token": [1]}]}),
    ("head", {"claims": 1, "token": "x", "step_index": [], "gate": 3}),
)


def seal(record: dict[str, Any]) -> bytes:
    """Return the line of *record* with a checksum that is right."""
    head = record.pop("head")
    body = f'{json.dumps(record)[:-1]},"head":{json.dumps(head)}'.encode()
    return body + b',"checksum":"' + checksum(body).encode() + b'"}\n'


def edit(journal: Path, key: str, change: Mapping[str, Any], number: int) -> None:
    """Change the mapping at *key* of the record *number* of *journal*."""
    records = [json.loads(line) for line in journal.read_bytes().splitlines()]
    for record in records:
        del record["checksum"]
    records[number][key] = {**records[number][key], **change}
    journal.write_bytes(b"".join(map(seal, records)))


@pytest.mark.parametrize(("key", "change"), CHANGES, ids=str)
def test_no_view_fails_and_check_names_it(
    tmp_path: Path, key: str, change: Mapping[str, Any]
) -> None:
    open_scripted(tmp_path, OK).work(Mode.COMBINED, InvocationLimits(max_steps=3))
    edit(tmp_path / "sync/journal.jsonl", key, change, number=2)
    said = {command: call(tmp_path, *command.split()) for command in COMMANDS}
    failed = {name: one.err[-300:] for name, one in said.items() if one.code == 70}
    assert failed == {}
    assert said["check"].code == 3
    assert "a value of the wrong type" in said["check"].out


def test_what_is_right_is_kept() -> None:
    outcome = {"usage": {"seconds": "1"}, "began_at": "2026-11-28T22:00:00Z", "to": 1, "note": "x"}
    (fact,) = read_facts([{"event": "succeeded", "outcome": outcome}])
    assert fact.at == "1970-01-01T00:00:00Z"
    assert fact.details == {"began_at": "2026-11-28T22:00:00Z", "note": "x"}
    assert fact.outcome == fact.details
    assert fact.problem in (
        "its usage has a value of the wrong type",
        "its to has a value of the wrong type",
    )
