"""`clean` removes what ended long ago, and nothing that anybody needs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.acceptance.cli_process import launched, until
from tests.unit.cli.calling import call, project

CONFIGURATION = """\
agent: rehearsal
steps: [supervisor, main]
limits: {steps: 900}
workflows:
  short: {kind: procedure, steps: [supervisor, main]}
  careful: {kind: procedure, steps: [supervisor, {name: main, requires_approval: true}]}
"""
LONG_AGO = 1_700_000_000


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests' records are about projects that are gone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a project with runs that ended, one that waits, one that was stopped."""
    made = project(tmp_path / "p", CONFIGURATION)
    for name, workflow, code in (
        ("old", "short", 0),
        ("new", "short", 0),
        ("asks", "careful", 4),
    ):
        ended = call(made, "--run", name, "run", "--workflow", workflow, "--quiet")
        assert ended.code == code, ended.err
    assert call(made, "--run", "stopped", "run", "--max-steps", "1", "--quiet").code == 0
    assert call(made, "--run", "stopped", "stop").code == 0
    assert call(made, "run", "--max-steps", "2", "--quiet").code == 0
    for name in ("old", "asks", "stopped"):
        age(made / "sync" / "runs" / name)
    age(made / "logs")
    return made


def age(path: Path) -> None:
    """Let all of *path* look as if it was last changed long ago."""
    for each in (path, *path.rglob("*")):
        os.utime(each, (LONG_AGO, LONG_AGO), follow_symlinks=False)


def runs(folder: Path) -> list[str]:
    return sorted(entry.name for entry in (folder / "sync" / "runs").iterdir())


def removed(folder: Path, *options: str) -> list[tuple[str, str | None]]:
    ended = call(folder, "clean", "--yes", "--json", *options)
    assert ended.code == 0, ended.err
    assert all(one["removed"] for one in ended.json)
    return [(one["what"], one["run"]) for one in ended.json]


def test_only_runs_that_ended_long_ago_are_removed_and_only_on_request(folder: Path) -> None:
    shown = call(folder, "clean")
    assert (shown.code, "add --yes" in shown.err) == (0, True)
    assert [line.split()[:3] for line in shown.out.splitlines()[1:]] == [["ended", "run", "old"]]
    assert runs(folder) == ["asks", "new", "old", "stopped"]
    assert removed(folder, "--logs") == []
    assert removed(folder, "--run", "new") == []
    assert removed(folder) == [("ended run", "old")]
    assert runs(folder) == ["asks", "new", "stopped"]
    assert not list(folder.glob("logs/*/runs/old/steps/*"))
    assert list(folder.glob("logs/*/runs/asks/steps/*"))
    assert removed(folder) == []
    assert "nothing is older than 30 days" in call(folder, "clean").out
    assert call(folder, "--run", "asks", "answer", "approve").code == 0
    assert removed(folder, "--older-than", "0") == [("ended run", "asks"), ("ended run", "new")]


def test_a_run_that_continues_keeps_its_newest_logs(folder: Path) -> None:
    logs = next(folder.glob("logs/*/steps"))
    for number in range(3, 133):
        (logs / f"iter-{number:05d}_main.log").write_text("x\n")
    (logs / "notes.log").write_text("mine\n")
    age(logs)
    assert removed(folder, "--logs") == [("step logs", None)]
    left = sorted(path.name for path in logs.iterdir())
    assert (len(left), left[0], left[-1]) == (101, "iter-00033_main.log", "notes.log")
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0


def test_no_link_is_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "steps").mkdir(parents=True)
    (outside / "steps" / "iter-00001_main.log").write_text("x\n")
    age(outside)
    runs_folder = folder / "sync" / "runs"
    (folder / "sync" / f"removed-{'0' * 16}").symlink_to(outside)
    (folder / "sync" / "removed-yours").mkdir()
    (runs_folder / "linked").symlink_to(runs_folder / "old")
    (runs_folder / "old" / "more").symlink_to(outside)
    age(runs_folder / "old")
    assert removed(folder) == [("ended run", "old")]
    assert (folder / "sync" / "removed-yours").is_dir()
    (folder / "logs" / "branch").symlink_to(outside)
    refused = call(folder, "clean", "--yes")
    assert (refused.code, "link" in refused.err) == (3, True)
    assert (outside / "steps" / "iter-00001_main.log").read_text() == "x\n"


def test_a_run_with_a_very_deep_folder_is_removed_too(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    fd = os.open(folder / "sync" / "runs" / "old", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.symlink(outside, "link", dir_fd=fd)
        os.utime("link", (LONG_AGO, LONG_AGO), dir_fd=fd, follow_symlinks=False)
        os.close(fd)
        fd = below
    os.close(fd)
    try:
        assert removed(folder) == [("ended run", "old")]
        assert "old" not in runs(folder)
        assert not [*(folder / "sync").glob("removed-*")]
        assert (outside / "kept").exists()
    finally:
        # Otherwise pytest itself would stumble over it, in each later session.
        subprocess.run(["rm", "-rf", folder / "sync"], check=True)


@contextlib.contextmanager
def locked(folder: Path, run: str) -> Iterator[None]:
    """Hold the lock of a run, as a process does that changes it."""
    with (folder / "sync" / "runs" / run / "state.json.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def waiting_remover(folder: Path, run: str) -> forked.Forked:
    """Start a `clean` that has looked at everything, and waits for the lock of *run* now."""
    remover = launched(folder, "clean", "--yes", "--json", stdout=subprocess.PIPE)
    # It removes the logs before it waits for the lock.
    until(lambda: not list(folder.glob(f"logs/*/runs/{run}/steps/*")))
    with pytest.raises(subprocess.TimeoutExpired):
        remover.wait(0.5)
    return remover


def was_removed(remover: forked.Forked) -> dict[str, bool]:
    """Return for each run that `clean` has found whether it is gone."""
    with remover:
        out, _ = remover.communicate(timeout=60)
    assert remover.returncode == 0
    return {one["run"]: one["removed"] for one in json.loads(out)}


def test_a_run_reset_in_the_meantime_is_not_removed(folder: Path) -> None:
    age(folder / "sync" / "runs" / "new")
    with locked(folder, "new"):
        remover = waiting_remover(folder, "new")
        assert call(folder, "--run", "old", "reset", "--yes").code == 0
    assert was_removed(remover) == {"new": True, "old": False}
    assert runs(folder) == ["asks", "old", "stopped"]


def test_a_run_changed_during_the_wait_for_the_lock_is_not_removed(folder: Path) -> None:
    with locked(folder, "old"):
        remover = waiting_remover(folder, "old")
        os.utime(folder / "sync" / "runs" / "old" / "state.json")
    assert was_removed(remover) == {"old": False}
    assert "old" in runs(folder)


def test_a_kill_during_removal_leaves_no_partial_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_once_begun(name: str) -> None:
        remove = getattr(os, name)

        def removing(*args: object, **more: object) -> None:
            if list((folder / "sync").glob("removed-*")):
                raise KeyboardInterrupt
            remove(*args, **more)

        patched.setattr(os, name, removing)

    with monkeypatch.context() as patched:
        for name in ("unlink", "rmdir"):
            killed_once_begun(name)
        assert call(folder, "clean", "--yes").code == 130
    assert "old" not in runs(folder)
    assert call(folder, "--run", "old", "status").code == 2
    assert list((folder / "sync").glob("removed-*/state.json"))
    assert removed(folder) == [("rest of a removal", None)]
    assert runs(folder) == ["asks", "new", "stopped"]
    assert not list((folder / "sync").glob("removed-*"))


def test_worktrees_and_agents_prevent_removal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sync" / "runs" / "old" / "worktrees" / "build-1").mkdir(parents=True)
    age(folder / "sync" / "runs" / "old")
    assert removed(folder) == []
    (folder / "sync" / "runs" / "old" / "worktrees" / "build-1").rmdir()
    monkeypatch.setenv("SEQUENCER_TOKEN", "1")
    assert call(folder, "clean").code == 0
    assert call(folder, "clean", "--yes").code == 2
    assert "old" in runs(folder)


def test_records_of_removed_projects_are_removed_and_others_stay(tmp_path: Path) -> None:
    schedules = 'schedules: {night: {workflow: short, at: "0 2 * * *"}}\n'
    made = [project(tmp_path / name, CONFIGURATION + schedules) for name in ("here", "gone")]
    for folder in made:
        assert call(folder, "--run", "night", "tick", "--log", "logs/tick.night.log").code == 0
        assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
        assert call(folder, "stop").code == 0
        assert call(folder, "tick", "--log", "logs/tick.log").code == 0
    records = tmp_path / "state" / "sequencer"
    before = sorted(records.rglob("*.json"))
    # Of each: an answer, what was said in two logs, a schedule's dates, how far the run came.
    assert len(before) == 10
    (records / "ticks" / "odd.json").write_text("[]")
    assert removed(made[0], "--older-than", "0") == []
    (records / "ticks" / "half.json.1.tmp").write_text("{")
    shutil.rmtree(made[1])
    assert removed(made[0], "--older-than", "1") == []
    assert removed(made[0], "--older-than", "0", "--logs") == []
    assert removed(made[0], "--older-than", "0") == [("records of what is gone", None)]
    assert len(sorted(records.rglob("*.json"))) == 6
    assert not list(records.rglob("*.tmp"))
    assert removed(made[0], "--older-than", "0") == []


def test_tick_logs_of_a_run_are_removed_with_it(folder: Path) -> None:
    assert call(folder, "--run", "old", "tick", "--log", "logs/tick.old.log").code == 0
    told = [folder / "logs" / name for name in ("tick.old.log", "tick.old.log.told")]
    for name in ("tick.gone.log", "tick.gone.log.told", "tick.asks.log", "tick.log"):
        (folder / "logs" / name).write_text("x\n")
        age(folder / "logs" / name)
    (folder / "logs" / "tick.fresh.log").write_text("x\n")
    assert all(path.exists() for path in told)
    assert call(folder, "clean", "--yes").code == 0
    left = sorted(path.name for path in (folder / "logs").glob("tick*"))
    # The logs of a run that is there stay, and so does what a timer has written since.
    assert left == ["tick.asks.log", "tick.fresh.log", "tick.log"]
