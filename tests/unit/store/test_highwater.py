"""How far a run has come, remembered outside of its project."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.errors import CorruptState
from sequencer.store import highwater
from sequencer.store.file import FileStore
from sequencer.store.recovery import ensure_shared_is_newest
from sequencer.store.user_state import STATE_VARIABLE, make_user_folder, user_state_path
from tests.acceptance.cli_process import cli
from tests.unit.cli.calling import call, project, state


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "own"
    monkeypatch.setenv(STATE_VARIABLE, str(folder))
    yield folder
    if folder.is_dir():
        folder.chmod(0o700)


def records() -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(user_state_path("runs").glob("*.json"))]


def work(folder: Path, steps: int = 1, code: int = 0) -> str:
    ended = call(folder, "run", "--max-steps", str(steps))
    assert ended.code == code, ended.err
    return ended.out + ended.err


def copied(folder: Path, name: str = "older") -> Path:
    """Return a copy of the state and the logs of *folder*, with their times."""
    other = folder.with_name(name)
    for part in ("sync", "logs"):
        shutil.copytree(folder / part, other / part)
    return other


def put_back(folder: Path, copy: Path) -> None:
    for part in ("sync", "logs"):
        shutil.rmtree(folder / part)
        shutil.copytree(copy / part, folder / part)


def test_each_transition_is_remembered_and_no_token_is_lowered(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    seen = []
    for _ in range(3):
        work(folder)
        (record,) = records()
        seen.append(record["token"])
        head = state(folder)
        assert (record["token"], record["revision"]) == (head["token"], head["revision"])
        assert record["run_id"] == head["run_id"]
        assert record["state_file"] == os.path.realpath(folder / "sync" / "state.json")
    assert seen == [1, 2, 3]


def test_older_files_of_the_run_are_refused_with_both_tokens(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    work(folder)
    older = copied(folder)
    work(folder, 2)
    newest, before = state(folder), (older / "sync" / "state.json").read_bytes()
    put_back(folder, older)
    said = work(folder, code=3)
    assert f"revision {newest['revision']} and token 3" in said
    assert "its newest token here is 1" in said
    assert "repair --apply --accept-journal" in said
    assert (folder / "sync" / "state.json").read_bytes() == before
    for command in (("tick",), ("skip",), ("check",), ("repair",)):
        assert call(folder, *command).code == 3
    assert call(folder, "status").code == 0


def test_older_files_with_the_same_token_are_refused_too(tmp_path: Path) -> None:
    """The newest token is the same there: only the revision tells."""
    folder = project(tmp_path / "p")
    # In a process that is gone afterwards: nobody waits for its claim.
    assert cli(folder, "run", "--max-steps", "2").returncode == 0
    lines = (folder / "sync" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    claimed = json.loads(lines[-2])
    assert (last["event"], last["head"]["token"]) == ("succeeded", claimed["head"]["token"])
    (folder / "sync" / "journal.jsonl").write_bytes(b"".join(lines[:-1]))
    (folder / "sync" / "state.json").write_text(json.dumps(claimed["head"]))
    shutil.rmtree(folder / "logs")
    assert "accepted steps may be missing" in work(folder, code=3)


def test_an_accepted_journal_continues_above_the_highest_token(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    work(folder)
    older = copied(folder)
    work(folder, 4)
    put_back(folder, older)
    assert call(folder, "repair", "--apply").code == 3
    assert call(folder, "repair", "--apply", "--accept-journal").code == 0
    work(folder)
    assert state(folder)["token"] == 6
    (record,) = records()
    assert (record["token"], record["revision"]) == (6, state(folder)["revision"])
    work(folder)


@pytest.mark.parametrize(
    "command", [("rewind", "0"), ("reset", "--yes"), ("set", "params.x=1"), ("skip",)]
)
def test_work_continues_after_a_rewind_reset_set_or_skip(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    folder = project(tmp_path / "p")
    work(folder, 2)
    ended = call(folder, *command)
    assert ended.code in {0, 2}, ended.err
    work(folder)
    work(folder)


def test_the_files_from_before_a_reset_are_refused(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    work(folder, 2)
    older = copied(folder)
    assert call(folder, "reset", "--yes").code == 0
    work(folder)
    put_back(folder, older)
    assert "accepted steps may be missing" in work(folder, code=3)


def test_the_record_follows_a_project_that_was_moved(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    work(folder)
    older = copied(folder)
    work(folder, 2)
    moved = folder.rename(tmp_path / "q")
    assert "copy" not in work(moved)
    (record,) = records()
    assert (record["token"], record["state_file"]) == (
        4,
        os.path.realpath(moved / "sync/state.json"),
    )
    put_back(moved, older)
    assert "token 4" in work(moved, code=3)


def test_a_project_that_was_moved_and_put_back_is_refused_too(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    work(folder)
    older = copied(folder)
    work(folder, 2)
    moved = folder.rename(tmp_path / "q")
    put_back(moved, older)
    assert "token 3" in work(moved, code=3)


def test_a_moved_project_is_not_a_copy_even_if_a_copy_exists(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    work(folder)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    work(copy)
    older = copied(folder)
    work(folder, 2)
    moved = folder.rename(tmp_path / "q")
    put_back(moved, older)
    assert "token 3" in work(moved, code=3)
    assert call(moved, "repair", "--apply", "--accept-journal").code == 0
    assert "is a copy" not in work(moved)
    # Nor is a copy that is moved one for the second time.
    assert "is a copy" not in work(copy.rename(tmp_path / "copy-2"))
    # A record of an earlier program does not say which folder it was.
    for path in user_state_path("runs").glob("*.json"):
        record = json.loads(path.read_text())
        del record["folders"]
        path.write_text(json.dumps(record))
    work(moved)
    work(tmp_path / "copy-2")


def test_a_copy_starts_its_own_record_and_reports_it_once(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    work(folder)
    copy = Path(shutil.copytree(folder, tmp_path / "q"))
    work(folder, 3)
    assert "is a copy" in work(copy)
    assert "is a copy" not in work(copy)
    assert "is a copy" not in work(folder)
    assert sorted(str(record["token"]) for record in records()) == ["3", "5"]


def test_a_run_that_starts_in_the_place_of_another_reports_it(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    work(folder, 2)
    run_id = state(folder)["run_id"]
    for part in ("sync", "logs"):
        shutil.rmtree(folder / part)
    said = work(folder)
    assert f"where the run {run_id} was up to token 2" in said
    assert "a new run starts in" not in work(folder)


def test_without_a_home_nothing_is_compared_and_check_reports_it(
    tmp_path: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path / "p")
    own_folder.write_text("in the way")
    work(folder)
    older = copied(folder)
    work(folder)
    put_back(folder, older)
    work(folder)
    checked = call(folder, "check")
    assert "the progress of runs is recorded only inside the project" in checked.out + checked.err
    own_folder.unlink()
    checked = call(folder, "check")
    assert "recorded only inside" not in checked.out + checked.err
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "can't be written to" in (highwater.find_problem() or "")


@pytest.mark.parametrize(
    "content", ["", "\0" * 40, "[]", '{"token":1}', '{"token":-1,"revision":2}']
)
def test_an_unreadable_record_is_written_again(tmp_path: Path, content: str) -> None:
    folder = project(tmp_path / "p")
    work(folder)
    (path,) = user_state_path("runs").glob("*.json")
    path.write_text(content)
    work(folder)
    (record,) = records()
    assert record["token"] == 2


def test_a_run_id_is_not_used_as_a_path(tmp_path: Path) -> None:
    mark = highwater.HighWaterMark(tmp_path / "p" / "state.json")
    head = call(project(tmp_path / "p"), "run", "--max-steps", "1")
    assert head.code == 0
    assert list(mark.find_marks("../../../etc/passwd\0")) == []


def test_few_new_runs_look_at_all_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps: list[float] = []
    monkeypatch.setattr(highwater, "sweep", sweeps.append)
    make_user_folder("runs")
    for number in range(320):
        path = str(tmp_path / "state.json")
        mark = highwater.Mark(1, 1, f"run-{number}", path, folders=())
        os.close(highwater.HighWaterMark._write(mark))
    assert 1 <= len(sweeps) <= 20


def test_old_records_of_removed_projects_go_when_a_new_one_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(highwater, "SWEEP_EVERY", 1)
    gone, there = project(tmp_path / "gone"), project(tmp_path / "there")
    for folder in (gone, there):
        work(folder)
    shutil.rmtree(gone)
    for path in user_state_path("runs").glob("*.json"):
        os.utime(path, (1, 1))
    work(project(tmp_path / "new"))
    assert {Path(str(record["state_file"])).parts[-3] for record in records()} == {"there", "new"}


def test_an_outdated_shared_state_is_detected(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    work(folder, 2)
    path = folder / "sync" / "state.json"
    head = FileStore(path).view().head
    assert head is not None
    mark = highwater.HighWaterMark(path)
    assert mark.find_later_mark(head) is None
    shown = mark.find_later_mark(head.replace(token=1, revision=2))
    assert shown is not None
    with pytest.raises(CorruptState, match="token 2"):
        ensure_shared_is_newest(head.replace(token=1, revision=2), shown, "branch x")
