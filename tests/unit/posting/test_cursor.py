from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from sequencer.posting.cursor import (
    ALL,
    Cursor,
    CursorFile,
    CursorUnreadable,
    Trouble,
    moved_to_run,
)

HERE = Cursor("run-1", 12, 1)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_was_written_is_read_by_the_next_process(tmp_path: Path) -> None:
    assert CursorFile(tmp_path, "hook").read() is None
    CursorFile(tmp_path, "hook").write(HERE)
    assert CursorFile(tmp_path, "hook").read() == HERE
    assert CursorFile(tmp_path, "other").read() is None
    assert names(tmp_path / "activity") == ["hook.json"]


def test_what_is_in_the_way_stands_beside_it_and_does_not_decide(tmp_path: Path) -> None:
    trouble = Trouble("2027-01-31T08:00:00Z", 3, "HTTP 429", 60.0, 1000.0)
    file = CursorFile(tmp_path, "hook")
    file.write(replace(HERE, trouble=trouble))
    assert file.read() == replace(HERE, trouble=trouble)
    kept = json.loads(file.path.read_text())
    for odd in (7, {"since": 1}, {**kept["trouble"], "tries": "x"}, {**kept["trouble"], "new": 1}):
        file.path.write_text(json.dumps({**kept, "trouble": odd}))
        assert file.read() == HERE


def test_a_pause_is_counted_on_a_clock_that_nobody_sets(tmp_path: Path) -> None:
    trouble = Trouble("2027-01-31T08:00:00Z", 1, "HTTP 429", 60.0, 1000.0)
    assert [trouble.left_s(now) for now in (1000.0, 1045.0, 1060.0)] == [60.0, 15.0, 0.0]
    # The machine was started again.
    assert trouble.left_s(5.0) == 0.0
    file = CursorFile(tmp_path, "hook")
    # Nobody can be kept waiting for ever by an edit.
    file.write(replace(HERE, trouble=replace(trouble, asked_s=1e9)))
    assert file.read() == HERE


def test_a_name_reaches_no_other_folder(tmp_path: Path) -> None:
    CursorFile(tmp_path / "run", "../../etc/x").write(HERE)
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["activity"]


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
def test_what_can_not_be_read_is_never_guessed(tmp_path: Path, content: str) -> None:
    file = CursorFile(tmp_path, "hook")
    file.write(HERE)
    file.path.write_text(content)
    with pytest.raises(CursorUnreadable, match=r"hook\.json can't be read"):
        file.read()
    assert file.path.read_text() == content


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    file = CursorFile(tmp_path, "hook")
    file.write(HERE)
    file.path.rename(tmp_path / "elsewhere")
    file.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CursorUnreadable):
        file.read()
    file.write(HERE)
    assert not file.path.is_symlink()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    mine, theirs = CursorFile(tmp_path, "hook"), CursorFile(tmp_path, "hook")
    with mine.held() as is_mine, theirs.held() as is_theirs:
        assert (is_mine, is_theirs) == (True, False)
    with theirs.held() as is_theirs:
        assert is_theirs


def test_a_refusal_is_one_line(tmp_path: Path) -> None:
    file = CursorFile(tmp_path, "hook")
    file.write(HERE)
    file.note_refusal({"key": "run-1:3:0", "status": 422})
    file.note_refusal({"key": "run-1:4:0", "status": 400})
    lines = (tmp_path / "activity" / "refused.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["run-1:3:0", "run-1:4:0"]
    assert {json.loads(line)["sink"] for line in lines} == {"hook"}


@pytest.mark.parametrize(
    ("place", "is_before"), [((12, 2), True), ((13, 0), True), ((12, 1), False), ((11, 9), False)]
)
def test_what_is_behind_a_cursor(place: tuple[int, int], *, is_before: bool) -> None:
    assert HERE.is_before(*place) is is_before


def test_a_run_that_was_begun_since() -> None:
    assert moved_to_run(Cursor(None, 0, ALL), "run-1", 3, was_reset=False) == Cursor(
        "run-1", 0, ALL
    )


def test_a_reset_run_still_owes_what_was_before() -> None:
    assert moved_to_run(HERE, "run-2", 40, was_reset=True) == HERE


@pytest.mark.parametrize("revision", [3, 12, 40])
def test_another_run_in_the_same_folder_is_all_new(revision: int) -> None:
    assert moved_to_run(HERE, "run-2", revision, was_reset=False) == Cursor("run-2", 0, -1)


def test_a_journal_that_ends_before_the_cursor_goes_on_from_its_end() -> None:
    moved = moved_to_run(HERE, "run-1", 9, was_reset=False)
    assert not moved.is_before(9, 3)
    assert moved.is_before(10, 0)
