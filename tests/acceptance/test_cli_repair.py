from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, done, head, launched, scripted_project, until
from tests.unit.store.broken_runs import damage_line


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = scripted_project(tmp_path_factory.mktemp("worked"))
    assert cli(made, "run", "--max-steps", "5").returncode == 0
    return made


@pytest.fixture
def folder(worked: Path, tmp_path: Path) -> Path:
    """Return a project of five accepted steps, for one test alone."""
    return shutil.copytree(worked, tmp_path / "project")


def goes_on(folder: Path, step_index: int) -> None:
    """Assert that the next step is the one at *step_index*, and that it is accepted."""
    before = done(folder)
    ran = cli(folder, "tick")
    assert ran.returncode == 0, ran.stderr
    assert done(folder) == [*before, step_index]
    assert head(folder)["step_index"] == step_index + 1
    assert cli(folder, "check").returncode == 0
    assert cli(folder, "repair").returncode == 0


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("kind", ["half", "empty", "conflict", "folder", "link", "gone"])
def test_a_damaged_head_never_restarts_at_0(folder: Path, kind: str) -> None:
    state = folder / "sync" / "state.json"
    whole = state.read_bytes()
    state.unlink()
    if kind == "folder":
        state.mkdir()
    elif kind == "link":
        (folder / "other.json").write_bytes(whole)
        state.symlink_to(folder / "other.json")
    elif kind != "gone":
        texts = {"half": whole[: len(whole) // 2], "empty": b"", "conflict": b"<<<<<<< a\n"}
        state.write_bytes(texts[kind])
    shown = cli(folder, "repair", "--json")
    assert shown.returncode == 3
    assert json.loads(shown.stdout)["action"] == "restore"
    repaired = cli(folder, "repair", "--apply")
    assert repaired.returncode == 0, repaired.stderr
    goes_on(folder, 5)


def test_a_journal_gap_without_a_head_needs_repair(folder: Path) -> None:
    bad = damage_line(folder / "sync" / "journal.jsonl", 3)
    (folder / "sync" / "state.json").unlink()
    refused = cli(folder, "tick")
    assert refused.returncode == 3
    assert "sequencer repair" in refused.stderr
    assert done(folder) == [0, 1, 2, 3, 4]
    shown = cli(folder, "repair")
    assert f"the line at byte {bad}" in shown.stdout
    assert cli(folder, "repair", "--apply").returncode == 0
    goes_on(folder, 5)


def test_a_missing_journal_needs_a_person_to_accept_the_head(folder: Path) -> None:
    (folder / "sync" / "journal.jsonl").unlink()
    assert cli(folder, "tick").returncode == 3
    assert cli(folder, "repair", "--apply").returncode == 3
    assert cli(folder, "repair", "--apply", "--accept-head").returncode == 0
    token = head(folder)["token"]
    goes_on(folder, 5)
    assert head(folder)["token"] == token + 1


def test_a_refused_edit_is_undone(folder: Path) -> None:
    content = head(folder) | {"run_id": "another", "step_index": 50}
    (folder / "sync" / "state.json").write_text(json.dumps(content))
    assert cli(folder, "tick").returncode == 3
    assert cli(folder, "repair", "--apply").returncode == 0
    goes_on(folder, 5)


def test_a_repair_beside_a_running_step_leaves_the_step_alone(folder: Path) -> None:
    (folder / "hold").touch()
    process = launched(folder, "run", "--max-steps", "1", stderr=subprocess.PIPE)
    try:
        until(lambda: done(folder)[-1] == 5)
        damage_line(folder / "sync" / "journal.jsonl", 2)
        (folder / "sync" / "state.json").write_text("<<<<<<< a\n")
        assert cli(folder, "repair", "--apply").returncode == 0
        (folder / "hold").unlink()
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    assert head(folder)["step_index"] == 6
    assert done(folder) == [0, 1, 2, 3, 4, 5]


def halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("kind", ["halved", "older copies", "emptied head, older journal"])
def test_accepted_steps_that_the_journal_lost_do_not_run_again(folder: Path, kind: str) -> None:
    files = [folder / "sync" / name for name in ("state.json", "journal.jsonl")]
    older = [path.read_bytes() for path in files]
    assert cli(folder, "run", "--max-steps", "3").returncode == 0
    ran = done(folder)
    for path, data in zip(files, older, strict=True):
        halve(path) if kind == "halved" else path.write_bytes(data)
    if kind.startswith("emptied"):
        files[0].write_bytes(b"")
    before = [path.read_bytes() for path in files]
    for verb in (("tick",), ("run", "--max-steps", "3")):
        refused = cli(folder, *verb)
        assert refused.returncode == 3
        # By what is in the folder, or by this user's own record of the run.
        found = ("log shows", "state.json shows", "this machine has seen revision 11")
        assert any(words in refused.stderr for words in found)
    assert (done(folder), [path.read_bytes() for path in files]) == (ran, before)
    assert cli(folder, "check").returncode != 0
    shown = cli(folder, "repair", "--json")
    assert (shown.returncode, json.loads(shown.stdout)["action"]) == (3, "choose")
    path = json.loads(shown.stdout)["shown_beyond"]["path"]
    assert path.startswith(str(folder)) or "/sequencer/runs/" in path
    assert cli(folder, "repair", "--apply").returncode == 3
    assert cli(folder, "repair", "--apply", "--accept-journal").returncode == 0
    # A person has said so; no token that a log shows is granted again.
    assert head(folder)["token"] == 8
    goes_on(folder, head(folder)["step_index"])
