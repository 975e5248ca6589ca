"""What people decided in recorded runs, and what was claimed, comes out of the kinds alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sequencer import Head, Run, SequenceKind, Transition, open_run
from sequencer.model import transitions
from sequencer.model.commands import (
    Accept,
    AnswerQuestion,
    Approve,
    Fail,
    Feedback,
    Pause,
    Reject,
    Resume,
    RetryNow,
    Rewind,
    RunCommand,
    Skip,
    TakeOver,
    Tell,
)
from sequencer.model.graph.graph_kind import GraphKind
from sequencer.model.kind import CommandContext
from sequencer.model.limits import format_utc_s
from sequencer.model.sequence.order import find_current_ref
from tests.golden.recording import FOLDER, bring_back, steady
from tests.golden.stories import STORIES

_OF_THE_STORE = {"revision", "journal_offset"}


def kind_of(run: Run) -> SequenceKind | GraphKind:
    workflow = run.workflow
    return SequenceKind(workflow) if workflow.graph is None else run.flow.graph_kind


def decided(
    kind: SequenceKind | GraphKind, before: Head, record: Mapping[str, Any]
) -> Transition | None:
    """Return what the kind makes of *before* where *record* tells of one decision or one claim."""
    event, told = record["event"], record["outcome"] or {}
    at, note = datetime.fromisoformat(record["at"]), told.get("note") or ""
    node = None if kind.has_one_place else record["step"] or None
    commands: dict[str, Callable[[], RunCommand]] = {
        "paused": Pause,
        "skipped": lambda: Skip(note or None, node),
        "approved": lambda: Approve(note or None),
        "rejected": lambda: Reject(note or None),
        "cancelled": lambda: Reject(note or None),
        "feedback": lambda: Feedback(note),
        "taken-over": TakeOver,
        "answered": lambda: AnswerQuestion(str(node), note or told["output"]),
        "told": lambda: Tell(note or told["output"], node),
        "resumed": lambda: RetryNow(node) if note.startswith("retry") else Resume(),
        "stamped": lambda: _stamp(note, node),
        "rewound": lambda: Rewind(re.sub(r"\D", "", note)),
    }
    if event in commands:
        return kind.apply(before, commands[event](), CommandContext(at=at, by=told.get("by", "")))
    if event == "claimed" and isinstance(kind, SequenceKind) and not before.claims:
        claim = Head.model_validate(record["head"]).claims[0]
        return transitions.claim(
            before,
            find_current_ref(kind.workflow, before),
            claim.owner,
            at=format_utc_s(at),
            ttl_s=claim.ttl_s,
            at_boottime=claim.claimed_boottime,
        )
    return None


def _stamp(note: str, node: str | None) -> RunCommand:
    word, _, rest = note.partition(": ")
    return Accept(rest or None, node) if word == "ok" else Fail(rest or None, node)


@pytest.mark.parametrize("name", [name for name in STORIES if name != "diverted"])
def test_decisions_and_claims_produce_the_recorded_heads(name: str, tmp_path: Path) -> None:
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
                is_net = isinstance(kind, GraphKind)
                assert (steady(found) == steady(kept)) if is_net else (found == kept)
                checked += 1
    assert checked
