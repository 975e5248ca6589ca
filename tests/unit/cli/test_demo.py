from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sequencer.cli import demo
from sequencer.documents.textfile import CONFIG_NAME
from sequencer.errors import DecisionRefused
from sequencer.project import trusting
from sequencer.project.project import open_project
from tests.unit.cli.calling import call


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which a demo makes its own."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def started_in(folder: Path) -> list[psutil.Process]:
    """Return the processes that work below *folder*, without this one."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join([*process.cmdline(), process.cwd()])
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if str(folder) in words and process.pid != os.getpid():
            found.append(process)
    return found


def agent(scratch: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Let the demo's agent be what *change* makes of it."""
    folder = scratch.parent / "files"
    shutil.copytree(str(demo.FILES), folder)
    text = (folder / "agent.txt").read_text()
    assert change(text) != text
    (folder / "agent.txt").write_text(change(text))
    monkeypatch.setattr(demo, "FILES", folder)


def test_two_processes_take_turns_in_strict_order(scratch: Path) -> None:
    called = call(scratch, "demo", "--steps", "6", "--seconds", "0.05")
    assert called.code == 0, called.err + called.out
    lines = called.out.splitlines()
    assert any(line.startswith("supervisor | ") for line in lines)
    assert any(line.startswith("      main | ") for line in lines)
    ran = [line.split()[2] for line in lines if line.startswith("  iteration ")]
    assert ran == ["supervisor", "main", "reviewer", "reviewer", "supervisor", "main"]
    assert any(line.startswith("strict order: 6 steps") for line in lines)
    assert any(line.startswith("2 processes took turns") for line in lines)
    assert list(scratch.iterdir()) == []
    assert started_in(scratch) == []


def test_keep_keeps_the_folder_to_look_around_in(scratch: Path) -> None:
    called = call(scratch, "demo", "--steps", "2", "--seconds", "0", "--keep")
    assert called.code == 0, called.err + called.out
    folder = next(scratch.iterdir())
    assert f"cd {folder.name}" in called.out
    status = call(folder, "status", "--json")
    assert status.json["step_index"] == 2
    assert call(folder, "check").code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_leaves_no_process(scratch: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sequencer", "demo", "--seconds", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=scratch,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "works on step_index 0" in line:
                break
        assert len(started_in(scratch)) >= 3
        process.send_signal(number)
        process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    deadline = time.monotonic() + 5
    while started_in(scratch) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert started_in(scratch) == []
    assert list(scratch.iterdir()) == []


def test_a_process_that_fails_ends_the_other_and_keeps_the_folder(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(scratch, monkeypatch, lambda _: "import sys\nsys.exit('no')\n")
    called = call(scratch, "demo", "--steps", "4")
    assert called.code == 1
    assert "a process of the demo ended" in called.err
    assert next(scratch.iterdir()).is_dir()
    assert started_in(scratch) == []


def test_steps_that_overlap_would_be_noticed(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = 'f"begin {index}\\n"'
    agent(scratch, monkeypatch, lambda text: text.replace(line, f'{line[:-1]}begin {{index}}\\n"'))
    called = call(scratch, "demo", "--steps", "2", "--seconds", "0")
    assert called.code == 1
    assert "the order is wrong" in called.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--steps", "1"),
        ("--steps", "1001"),
        ("--seconds", "-1"),
        ("--json",),
        ("--run", "nightly"),
        ("--config", "x.yaml"),
    ],
)
def test_options_without_a_meaning_are_refused(scratch: Path, arguments: tuple[str, ...]) -> None:
    assert call(scratch, "demo", *arguments).code == 2
    assert list(scratch.iterdir()) == []


def test_the_commands_that_it_ends_with_can_be_typed(tmp_path: Path) -> None:
    lines = (line.partition("     in ")[0] for line in demo._NEXT.splitlines())
    commands = [one.split() for line in lines for one in line.split("&&") if "sequencer" in one]
    assert len(commands) == 4
    for words in commands:
        assert call(tmp_path, *words[1:], "--help").code == 0, words


def test_what_a_demo_became_meanwhile_is_not_trusted(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = demo._show

    def change(invocation: Any, folder: Path, *rest: Any) -> None:
        real(invocation, folder, *rest)
        with (folder / CONFIG_NAME).open("a") as file:
            file.write("hooks: [evil.py]\n")
        (folder / "evil.py").touch()

    monkeypatch.setattr(demo, "_show", change)
    monkeypatch.delenv("SEQUENCER_TRUST")
    assert call(scratch, "demo", "--steps", "2", "--seconds", "0", "--keep").code == 0
    (folder,) = scratch.glob("sequencer-demo-*")
    refused = open_project(folder, environment={}).trust.refusal()
    assert refused is not None
    assert "evil.py" in str(refused.changed)


def test_an_agent_that_plays_a_demo_is_trusted_with_nothing(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQUENCER_TOKEN", "1")
    call(scratch, "demo", "--steps", "2", "--seconds", "0", "--keep")
    monkeypatch.delenv("SEQUENCER_TOKEN")
    for folder in scratch.glob("sequencer-demo-*"):
        assert trusting.read(open_project(folder).trust.key) is None
    monkeypatch.setenv("SEQUENCER_TOKEN", "1")
    with pytest.raises(DecisionRefused):
        open_project(scratch, environment={}).trust.keep()
