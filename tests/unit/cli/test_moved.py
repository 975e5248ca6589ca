"""The copy that a run leaves behind when it is moved to another store."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import ClaimHeld, TransitionRefused
from sequencer.model.head import Head
from sequencer.model.store_move import close_run, confirm_arrival, reopen_run
from sequencer.model.transitions import Transition
from sequencer.store.file import FileStore
from tests.contract import store_cases as cases
from tests.unit.cli.calling import call, project, state

AT = "2026-01-02T03:04:05Z"
ELSEWHERE = "temporal: seq/shop/default at 127.0.0.1:7233"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    here = project(tmp_path / "p")
    assert call(here, "run", "--max-steps", "2").code == 0

    def change(head: Head | None) -> Transition:
        assert head is not None
        return close_run(head, ELSEWHERE, at=AT)

    FileStore(here / "sync" / "state.json").update(change)
    return here


@pytest.mark.parametrize(
    "words",
    ["run", "resume", "skip", "rewind 0", "retry", "stop", "stop --pause", "reset --yes",
     "tell main hi", "skip --as-done"],
)  # fmt: skip
def test_commands_leave_the_copy_unchanged_and_report_where_the_run_is(
    left: Path, words: str
) -> None:
    before = state(left)
    called = call(left, *words.split())
    assert called.code == 3, called.err
    assert ELSEWHERE in called.err
    assert state(left) == before


def test_status_and_history_show_where_the_run_is(left: Path) -> None:
    assert ELSEWHERE in call(left, "status").out
    assert ELSEWHERE in call(left, "history").out


def test_editing_the_file_does_not_reopen_the_copy(left: Path) -> None:
    path = left / "sync" / "state.json"
    path.write_text(path.read_text().replace('"moved"', '"moved_once"'))
    called = call(left, "status")
    assert "moved can't be changed there" in called.err
    assert "this is a closed copy" in called.out
    assert call(left, "run", "--max-steps", "1").code != 0
    assert call(left, "resume").code == 3


def test_a_person_can_reopen_the_copy_with_set_and_resume(left: Path) -> None:
    assert call(left, "set", "moved=null").code == 0
    assert call(left, "resume").code == 0
    assert call(left, "run", "--max-steps", "1").code == 0
    assert state(left)["step_index"] == 3


def test_a_claimed_run_cannot_be_closed(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    cases.claim(store)
    head = store.view().head
    assert head is not None
    with pytest.raises(ClaimHeld):
        close_run(head, ELSEWHERE, at=AT)


def test_it_is_closed_once_and_opens_as_it_was(left: Path) -> None:
    head = Head.model_validate(state(left))
    with pytest.raises(TransitionRefused):
        close_run(head, "somewhere else", at=AT)
    noted = confirm_arrival(head, at=AT)
    assert noted is not None
    assert confirm_arrival(noted.head, at=AT) is None
    back = reopen_run(noted.head, "back", None, at=AT).head
    assert (back.exit, back.exit_reason, back.moved_to) == (False, None, None)


def test_a_stopped_run_is_stopped_where_it_arrives(tmp_path: Path) -> None:
    here = project(tmp_path / "p")
    assert call(here, "run", "--max-steps", "1").code == 0
    assert call(here, "stop", "--reason", "enough").code == 0
    head = close_run(Head.model_validate(state(here)), ELSEWHERE, at=AT).head
    back = reopen_run(head, "moved", None, at=AT).head
    assert (back.exit, back.exit_reason) == (True, "enough")


def test_an_edit_cannot_mark_a_run_as_moved(tmp_path: Path) -> None:
    here = project(tmp_path / "p")
    assert call(here, "run", "--max-steps", "1").code == 0
    path = here / "sync" / "state.json"
    path.write_text(path.read_text().replace("{", '{"moved": {"where": "nowhere"},', 1))
    called = call(here, "run", "--max-steps", "1")
    assert (called.code, state(here)["step_index"]) == (0, 2)
    assert "moved can't be changed there" in called.err
    assert "moved" not in state(here)


def test_options_of_sync_that_exclude_each_other(tmp_path: Path) -> None:
    here = project(tmp_path / "p")
    assert call(here, "sync", "--to", "temporal", "--fetch").code == 2
    assert call(here, "sync", "--copy", "x").code == 2
