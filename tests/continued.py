"""What the program writes is one history: each change that a test makes is judged as `check` does.

A change that looks like the meeting of two histories is a mistake, in it or in the judgment: a
person who believes `check` then throws away good state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sequencer import Change, FileStore, Head, Transition
from sequencer.store.continuity import find_misfit, find_misfits
from sequencer.store.journal import decode, encode, fact_fields, survey

MISFITS: list[str] = []
"""What this process has written in the present test that does not continue what was before."""


def watch_changes() -> None:
    """Note in `MISFITS` each wrong change of a run in files that is accepted from now on."""
    accept = FileStore._accept

    def watch(store: FileStore, recovery: Any, transition: Transition) -> Head | None:
        head = accept(store, recovery, transition)
        if head is not None and recovery.head is not None:
            reason = find_misfit(_as_json(recovery.head), _record_of(head, transition))
            if reason is not None:
                MISFITS.append(f"{[str(fact.event) for fact in transition.facts]}: {reason}")
        return head

    FileStore._accept = watch  # type: ignore[method-assign, assignment]


def make_up(store: FileStore, change: Change) -> Head:
    """Make *change*, whose facts a test has made up: they need no claim before them."""
    head = store.update(change)
    MISFITS.clear()
    return head


def _as_json(head: Head) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(head.model_dump_json())
    return content


def _record_of(head: Head, transition: Transition) -> dict[str, Any]:
    facts = [fact_fields(fact) for fact in transition.facts]
    line = encode(head.revision, head.last_update, facts, head.model_dump_json().encode())
    return decode(line.rstrip(b"\n"))


def list_misfits(folder: Path) -> Iterator[str]:
    """Yield each place below *folder* where `check` finds that the journal does not continue."""
    for path in sorted(folder.rglob("journal*.jsonl")):
        data = path.read_bytes()
        for offset, reason in find_misfits(survey(data), data):
            yield f"{path.relative_to(folder)} at byte {offset}: {reason}"
