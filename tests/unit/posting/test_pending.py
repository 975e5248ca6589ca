"""What people see of results that a sink has not taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sequencer.plugins.posting.cursor import CursorFile
from sequencer.plugins.posting.results import find_pending
from sequencer.project.posting import Pending
from sequencer.store.file import FileStore
from tests.unit.posting.runs import Box, lane_for, refused, succeed


def seen(store: FileStore, *sinks: str) -> tuple[Pending, ...]:
    head = store.view().head
    assert head is not None
    return find_pending(store.folder, sinks or ("box",), head, store.history)


def test_nothing_is_pending_for_an_up_to_date_or_unknown_sink(store: FileStore) -> None:
    told = lane_for(store)
    succeed(store)
    told.deliver()
    assert seen(store, "box", "new") == ()


def test_a_refused_result_is_not_pending_but_is_reported(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[refused()]))
    succeed(store)
    told.deliver()
    lane_for(store, replace(Box(), name="other"))
    (one,) = seen(store, "box", "other")
    assert (one.sink, one.pending, one.refused, one.is_behind) == ("box", 0, 1, False)
    (store.folder / "activity" / "refused.jsonl").unlink()
    assert seen(store) == ()


def test_an_unreadable_cursor_is_reported_and_counts_as_behind(store: FileStore) -> None:
    lane_for(store)
    CursorFile(store.folder, "box").path.write_text("half a fi")
    (one,) = seen(store)
    assert one.is_behind
    assert "can't be read" in one.format_text(str)


def test_it_can_be_printed_as_json(store: FileStore) -> None:
    lane_for(store)
    succeed(store)
    (one,) = seen(store)
    expected: dict[str, Any] = {"sink": "box", "pending": 1, "since": one.since}
    assert one.as_json() == {**expected, "tries": 0, "error": None, "refused": 0}
