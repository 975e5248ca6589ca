from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sequencer.cli import demo
from sequencer.cli.context import Invocation
from sequencer.cli.program import run
from sequencer.cli.views.text import width
from sequencer.errors import DecisionRefused
from sequencer.files.textfile import CONFIG_NAME
from sequencer.project import trusting
from sequencer.project.project import open_project
from tests.unit.cli.calling import call
from tests.unit.cli.flow.terminals import Terminal, terminal


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


def until(fact: Callable[[], bool]) -> None:
    """Wait until *fact* is true."""
    deadline = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def agent(scratch: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Let the demo's agent be what *change* makes of it."""
    folder = scratch.parent / "files"
    shutil.copytree(str(demo.FILES), folder)
    text = (folder / "agent.txt").read_text()
    assert change(text) != text
    (folder / "agent.txt").write_text(change(text))
    monkeypatch.setattr(demo, "FILES", folder)


def test_the_step_of_a_killed_process_is_taken_over(
    scratch: Path,
) -> None:
    called = call(scratch, "demo", "--steps", "2", "--seconds", "0", "--keep")
    assert called.code == 0, called.err + called.out
    folder = next(scratch.iterdir())
    kill, wait, again, taken = called.out.splitlines()[4:8]
    assert kill.endswith("killed by kill -9")
    assert wait.endswith("waits: the step is not done")
    assert again.endswith("$ sequencer run --position main")
    assert "[2] taken over" in taken
    facts = [json.loads(line) for line in call(folder, "history", "--json").out.splitlines()]
    story = [(fact["event"], fact["step_index"], fact["attempt"]) for fact in facts]
    assert story[-3:] == [("taken-over", 1, 1), ("claimed", 1, 2), ("succeeded", 1, 2)]
    assert f"cd {folder.name}" in called.out
    assert call(folder, "status", "--json").json["step_index"] == 2
    assert call(folder, "check").code == 0
    # The agent of the killed process did not get to its end.
    trace = (folder / "trace.txt").read_text().split("\n")
    assert trace == ["begin 0", "end 0", "begin 1", "begin 1", "end 1", ""]


@pytest.mark.slow
def test_events_since_the_last_poll_are_shown_before_the_kill(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One look at the start, and the next one when the step that is killed has begun.
    monkeypatch.setattr(demo, "POLL_S", 2.0)
    called = call(scratch, "demo", "--seconds", "0")
    assert called.code == 0, called.err + called.out
    ran = re.findall(r"\[(\d)\] (.+?) (?:…|\.\.\.) (accepted|killed)", called.out)
    steps = ["supervisor", "main", "reviewer", "reviewer", "supervisor", "taken over", "main"]
    assert [step for _, step, _ in ran] == steps
    assert [end for _, _, end in ran].index("killed") == steps.index("supervisor", 1)


@pytest.fixture
def colored(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Terminal]]:
    """Return what makes standard output a terminal of so many columns."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with contextlib.ExitStack() as stack:

        def made(columns: int) -> Terminal:
            screen = stack.enter_context(terminal(columns))
            monkeypatch.setattr(sys, "stdout", screen.stream)
            return screen

        yield made


@pytest.mark.slow
def test_two_processes_take_turns_in_two_columns_and_twenty_lines(
    scratch: Path, colored: Callable[[int], Terminal]
) -> None:
    screen = colored(80)
    # Not by `call`, which takes the output away.
    assert run(["demo", "--seconds", "0"]) == 0
    screen.drain()
    lines = screen.screen()
    assert len(lines) == 20
    assert max(map(width, lines)) <= 80
    bars = {line.index("│") for line in lines if "│" in line}
    assert bars == {39}
    assert lines[1].split("│")[0].rstrip() == "$ sequencer run --position supervisor"
    assert lines[1].split("│")[1] == " $ sequencer run --position main"
    ran = re.findall(r"\[(\d)\] (.+?) … accepted, ", "\n".join(lines))
    steps = ["supervisor", "main", "reviewer", "reviewer", "taken over", "main"]
    assert ran == [(str(number), step) for number, step in enumerate(steps, 1)]
    assert "The journal: 6 steps, each accepted once, in the workflow's order." in lines
    assert b"\x1b[3" in screen.raw
    assert started_in(scratch) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("columns", "bar", "text"),
    [
        (79, 11, "supervisor │ [1] supervisor"),
        (80, 39, "[1] supervisor"),
        (100, 49, "[1] supervisor"),
        (160, 51, "[1] supervisor"),
    ],
)
def test_the_halves_of_a_wide_terminal_are_two_terminals(
    colored: Callable[[int], Terminal], columns: int, bar: int, text: str
) -> None:
    screen = colored(columns)
    shown = demo._Screen(Invocation())
    shown.begin_line("supervisor", "[1] supervisor", "cyan")
    shown.end_line("accepted, 0.4 s", "green")
    shown.write_line("main", "waits")
    screen.drain()
    first, second = screen.screen()
    assert (first.index("│"), second.index("│")) == (bar, bar)
    assert first.startswith(f"{text} … accepted, 0.4 s")
    assert second.endswith("│ waits")


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colors_are_shown_when_they_are_turned_off(
    colored: Callable[[int], Terminal], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    screen = colored(100)
    monkeypatch.setenv(name, value)
    shown = demo._Screen(Invocation())
    shown.begin_line("supervisor", "[1] supervisor", "cyan")
    shown.end_line("killed by kill -9", "red bold")
    screen.drain()
    assert b"killed by kill -9" in screen.raw
    assert b"\x1b" not in screen.raw


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_demo_and_leaves_no_process(
    scratch: Path, number: signal.Signals
) -> None:
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
        until(lambda: any(scratch.glob("*/trace.txt")))
        assert len(started_in(scratch)) >= 3
        process.send_signal(number)
        process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    until(lambda: started_in(scratch) == [])
    assert list(scratch.iterdir()) == []


def test_a_process_that_fails_ends_the_other_and_keeps_the_folder(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(scratch, monkeypatch, lambda _: "import sys\nsys.exit('no')\n")
    called = call(scratch, "demo", "--steps", "4")
    assert called.code == 1
    # Whichever of the two sees it first.
    assert re.search("a process of the demo ended: (supervisor|main) with exit", called.err)
    assert "it said: error: " in called.err
    assert next(scratch.iterdir()).is_dir()
    assert started_in(scratch) == []


@pytest.mark.slow
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


def test_the_commands_suggested_at_the_end_exist(tmp_path: Path) -> None:
    lines = (line.partition("     in ")[0] for line in demo._NEXT.splitlines())
    commands = [one.split() for line in lines for one in line.split("&&") if "sequencer" in one]
    assert len(commands) == 4
    for words in commands:
        assert call(tmp_path, *words[1:], "--help").code == 0, words


@pytest.mark.slow
def test_changes_to_a_demo_project_are_not_trusted(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = demo._show_result

    def change(invocation: Any, folder: Path, *rest: Any) -> None:
        real(invocation, folder, *rest)
        with (folder / CONFIG_NAME).open("a") as file:
            file.write("hooks: [evil.py]\n")
        (folder / "evil.py").touch()

    monkeypatch.setattr(demo, "_show_result", change)
    monkeypatch.delenv("SEQUENCER_TRUST")
    assert call(scratch, "demo", "--steps", "2", "--seconds", "0", "--keep").code == 0
    (folder,) = scratch.glob("sequencer-demo-*")
    refused = open_project(folder, environment={}).trust.refusal()
    assert refused is not None
    assert "evil.py" in str(refused.changed)


def test_a_demo_started_by_an_agent_grants_no_trust(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQUENCER_TOKEN", "1")
    call(scratch, "demo", "--steps", "2", "--seconds", "0", "--keep")
    monkeypatch.delenv("SEQUENCER_TOKEN")
    for folder in scratch.glob("sequencer-demo-*"):
        assert trusting.read(open_project(folder).trust.key) is None
    monkeypatch.setenv("SEQUENCER_TOKEN", "1")
    with pytest.raises(DecisionRefused):
        open_project(scratch, environment={}).trust.save_record()
