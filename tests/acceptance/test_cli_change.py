from __future__ import annotations

import json
import os
import pty
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, done, head, launched, scripted_project, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return scripted_project(tmp_path)


@pytest.mark.slow
def test_a_run_is_steered_by_hand_and_every_change_is_in_the_history(folder: Path) -> None:
    assert cli(folder, "run", "--max-steps", "2").returncode == 0
    for arguments in (
        ("skip", "--as-done", "--note", "reviewed by hand"),
        ("skip", "--note", "one review is enough"),
        ("rewind", "1"),
        ("set", "ticket=ABC-1"),
        ("stop", "--pause"),
        ("resume",),
        ("stop", "--reason", "lunch"),
        ("resume",),
    ):
        ended = cli(folder, *arguments)
        assert ended.returncode == 0, ended.stderr
        assert "next: " in ended.stdout
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    assert done(folder) == [0, 1, 1]
    assert head(folder)["ticket"] == "ABC-1"
    lines = cli(folder, "history", "--json").stdout.splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events[5:] == [
        *("stamped", "skipped", "rewound", "edited", "paused", "resumed", "edited", "resumed"),
        *("claimed", "succeeded"),
    ]


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "agent-ends-first"])
def test_stop_now_ends_the_step_that_runs(folder: Path, is_noticed: bool) -> None:
    (folder / "hold").touch()
    process = launched(folder, "run", "--max-steps", "1", stderr=subprocess.PIPE)
    try:
        until(lambda: done(folder) == [0])
        stopped = cli(folder, "stop", "--now", "--reason", "enough")
        assert stopped.returncode == 0, stopped.stderr
        assert "the running step was taken away" in stopped.stdout
        if is_noticed:
            process.wait(timeout=60)
    finally:
        (folder / "hold").unlink()
        process.wait(timeout=60)
    assert process.returncode == 0
    assert process.stderr is not None
    with process.stderr:
        told = process.stderr.read().decode()
    assert "step 'supervisor' was taken from this process before it ended" in told
    now = head(folder)
    assert (now["step_index"], now["claims"], now["exit"]) == (0, [], True)
    assert cli(folder, "stop", "--pause", "--reason", "x").returncode == 2


def test_no_step_is_shown_as_running_after_its_process_was_killed(folder: Path) -> None:
    (folder / "hold").touch()
    process = launched(folder, "run", "--max-steps", "1")
    until(lambda: done(folder) == [0])
    process.kill()
    process.wait()
    paused = cli(folder, "stop", "--pause")
    assert "the run is paused\n" in paused.stdout
    assert "being run" not in paused.stdout
    assert "paused since" in cli(folder, "status").stdout
    resumed = cli(folder, "resume")
    assert "next: step 'supervisor'" in resumed.stdout
    assert "being run" not in resumed.stdout
    assert "interrupted since" in cli(folder, "status").stdout
    assert "to continue: sequencer run" in resumed.stderr, "no process does it by itself"


def test_each_loss_of_a_step_is_reported(folder: Path) -> None:
    (folder / "hold").touch()
    options = ("--mode", "sync", "--position", "supervisor")
    process = launched(folder, "run", *options, stderr=subprocess.PIPE)

    def has_begun(starts: list[int]) -> bool:
        return done(folder) == starts

    try:
        for starts in ([0], [0, 0]):
            until(partial(has_begun, starts))
            assert cli(folder, "stop", "--pause", "--now").returncode == 0
            assert cli(folder, "resume").returncode == 0
        until(partial(has_begun, [0, 0, 0]))
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert process.stderr is not None
    with process.stderr:
        lines = process.stderr.read().decode().splitlines()
    assert sum("'supervisor' was taken from this process" in line for line in lines) == 2


def test_stop_says_how_to_stop_a_process_if_the_settings_are_broken(folder: Path) -> None:
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    (folder / "orchestration.yaml").write_text("steps: [a")
    stopped = cli(folder, "stop")
    assert stopped.returncode == 2
    assert "not YAML" in stopped.stderr
    assert 'press Ctrl-C in its terminal, or set "exit": true in state.json' in stopped.stderr


def test_a_step_that_was_taken_over_by_force_is_not_accepted(folder: Path) -> None:
    (folder / "hold").touch()
    process = launched(folder, "run", "--max-steps", "1")
    try:
        until(lambda: done(folder) == [0])
        refused = cli(folder, "takeover")
        assert refused.returncode == 75
        assert f"process {process.pid}" in refused.stderr
        assert "with a fresh heartbeat" in refused.stderr
        taken = cli(folder, "takeover", "--force", "--json")
        assert json.loads(taken.stdout)["claims"] == []
        assert cli(folder, "skip").returncode == 0
        (folder / "hold").unlink()
        assert process.wait(timeout=20) == 3
    finally:
        process.kill()
        process.wait()
    assert head(folder)["step_index"] == 1
    assert head(folder)["usage"]["steps"] == 0


def test_reset_asks_on_a_terminal(folder: Path) -> None:
    cli(folder, "run", "--max-steps", "2")
    for answer, step_index in ((b"n\n", 2), (b"y\n", 0)):
        master, terminal = pty.openpty()
        process = launched(
            folder, "reset", stdin=terminal, stdout=subprocess.DEVNULL, stderr=terminal
        )
        os.write(master, answer)
        assert process.wait(30) == 0
        said = os.read(master, 65_536)
        os.close(master)
        os.close(terminal)
        assert b"start over?" in said
        assert head(folder)["step_index"] == step_index


def test_reset_asks_nothing_that_a_person_could_not_see(folder: Path) -> None:
    cli(folder, "run", "--max-steps", "2")
    master, terminal = pty.openpty()
    process = launched(
        folder, "reset", stdin=terminal, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    os.write(master, b"y\n")
    _, said = process.communicate(timeout=30)
    os.close(master)
    os.close(terminal)
    assert process.returncode == 2
    assert b"add --yes to reset it; nothing is asked unless" in said
    assert head(folder)["step_index"] == 2


def test_reset_without_a_terminal_needs_yes(folder: Path) -> None:
    cli(folder, "run", "--max-steps", "2")
    assert cli(folder, "reset").returncode == 2
    assert head(folder)["step_index"] == 2
    assert cli(folder, "reset", "--yes").returncode == 0
    assert head(folder)["step_index"] == 0


def test_a_changed_definition_waits_for_adopt(folder: Path) -> None:
    cli(folder, "run", "--max-steps", "2")
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text().replace("review_every_n: 2", "review_every_n: 3"))
    assert cli(folder, "run").returncode == 3
    adopted = cli(folder, "adopt")
    assert "review.every: 2 -> 3" in adopted.stdout
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    assert done(folder) == [0, 1, 2]
