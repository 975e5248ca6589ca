from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from sequencer.plugins.posting.cursor import (
    Cursor,
    CursorFile,
    CursorUnreadable,
    PostingProblem,
    move_to_run,
)

HERE = Cursor("run-1", 12, 1)


def test_trouble_is_saved_with_the_cursor_and_does_not_invalidate_it(tmp_path: Path) -> None:
    trouble = PostingProblem("2027-01-31T08:00:00Z", 3, "HTTP 429", 60.0, 1000.0)
    file = CursorFile(tmp_path, "hook")
    file.write(replace(HERE, trouble=trouble))
    assert file.read() == replace(HERE, trouble=trouble)
    kept = json.loads(file.path.read_text())
    for odd in (7, {"since": 1}, {**kept["trouble"], "tries": "x"}, {**kept["trouble"], "new": 1}):
        file.path.write_text(json.dumps({**kept, "trouble": odd}))
        assert file.read() == HERE


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "\0" * 80,
        '{"run_id": 1, "revision": 1, "index": 0}',
        '{"run_id": "r", "revision": -1, "index": 0}',
        '{"run_id": "r", "revision": true, "index": 0}',
        '{"run_id": "r", "revision": 1, "index": -2}',
        '{"run_id": "r", "revision": 1}',
    ],
)
def test_an_unreadable_cursor_is_never_guessed(tmp_path: Path, content: str) -> None:
    file = CursorFile(tmp_path, "hook")
    file.write(HERE)
    file.path.write_text(content)
    with pytest.raises(CursorUnreadable, match=r"hook\.json can't be read"):
        file.read()
    assert file.path.read_text() == content


@pytest.mark.parametrize(
    ("place", "is_before"), [((12, 2), True), ((13, 0), True), ((12, 1), False), ((11, 9), False)]
)
def test_a_cursor_is_before_later_places_only(place: tuple[int, int], *, is_before: bool) -> None:
    assert HERE.is_before(*place) is is_before


@pytest.mark.parametrize("revision", [3, 12, 40])
def test_another_run_in_the_same_folder_is_all_new(revision: int) -> None:
    assert move_to_run(HERE, "run-2", revision, was_reset=False) == Cursor("run-2", 0, -1)


def test_a_journal_shorter_than_its_cursor_continues_from_its_end() -> None:
    moved = move_to_run(HERE, "run-1", 9, was_reset=False)
    assert not moved.is_before(9, 3)
    assert moved.is_before(10, 0)
