"""What people decided in recorded runs, and what was claimed, comes out of the kinds alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.run import Run
from sequencer.model.head import Head
from sequencer.model.line.line import Line
from sequencer.model.line.order import present
from sequencer.model.net.net import Net
from sequencer.model.transitions import Transition
from sequencer.project.project import open_run
from tests.golden.recording import FOLDER, bring_back, steady
from tests.golden.stories import STORIES

_VERBS = {
    "paused": "pause",
    "skipped": "skip",
    "approved": "approve",
    "rejected": "reject",
    "cancelled": "reject",
    "feedback": "feedback",
    "taken-over": "takeover",
    "answered": "answer",
    "told": "tell",
}
_OF_THE_STORE = {"revision", "journal_offset"}


def kind_of(run: Run) -> Line | Net:
    workflow = run.workflow
    return Line(workflow) if workflow.graph is None else run.flow.net


def decided(kind: Line | Net, before: Head, record: Mapping[str, Any]) -> Transition | None:
    """Return what the kind makes of *before* where *record* tells of one decision or one claim."""
    event, told = record["event"], record["outcome"] or {}
    at, note = datetime.fromisoformat(record["at"]), told.get("note") or ""
    words = {"note": note or None, "text": note or told.get("output"), "node": None}
    if not kind.has_one_place:
        words["node"] = record["step"] or None
    verb = _VERBS.get(event)
    if event == "resumed":
        verb = "retry" if note.startswith("retry") else "resume"
    elif event == "stamped":
        word, _, rest = note.partition(": ")
        verb, words["note"] = ("stamp" if word == "ok" else "fail"), rest or None
    elif event == "rewound":
        verb, words["to"] = "rewind", re.sub(r"\D", "", note)
    elif event == "claimed" and isinstance(kind, Line) and not before.claims:
        claim = Head.model_validate(record["head"]).claims[0]
        return kind.begin(
            before,
            present(kind.workflow, before),
            claim.owner,
            at=at,
            ttl_s=claim.ttl_s,
            boottime=claim.claimed_boottime,
        )
    if verb is None:
        return None
    return kind.by_hand(before, verb, words, at=at, by=told.get("by", ""))


@pytest.mark.parametrize("name", [name for name in STORIES if name != "diverted"])
def test_decisions_and_claims_make_the_heads_that_were_recorded(name: str, tmp_path: Path) -> None:
    files = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["end"]
    STORIES[name].make(tmp_path)
    bring_back(files, tmp_path)
    checked = 0
    for path in sorted(tmp_path.glob("sync/**/journal*.jsonl")):
        parts = path.relative_to(tmp_path).parts
        kind = kind_of(open_run(tmp_path, None if len(parts) == 2 else parts[2]))
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for before, record in pairwise(records):
            if record.keys() & {"also"}:
                continue
            made = decided(kind, Head.model_validate(before["head"]), record)
            if made is not None:
                found = json.loads(made.head.model_dump_json(exclude=_OF_THE_STORE))
                kept = Head.model_validate(record["head"]).model_dump_json(exclude=_OF_THE_STORE)
                kept = json.loads(kept)
                # Outputs lie in folders whose names nobody can guess.
                is_net = isinstance(kind, Net)
                assert (steady(found) == steady(kept)) if is_net else (found == kept)
                checked += 1
    assert checked
