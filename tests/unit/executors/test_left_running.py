"""What an agent leaves running when it ends: ended with it, counted, and told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from sequencer.executors import guard, guard_process, pump
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.command import CommandExecutor, CommandOptions
from sequencer.executors.guard import COMMAND_BYTES
from sequencer.executors.guard_process import Guard
from sequencer.executors.launch import Launch
from sequencer.executors.process import ProcessCore, ProcessEnd, leftover_message
from sequencer.executors.protocol import Piece
from sequencer.model.evidence import TurnEnd
from sequencer.model.outcome import Outcome
from tests.contract.executor_cases import Recorder, request_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a guard finds them by /proc")

LEAVES = "setsid sleep 4711 > /dev/null 2>&1 & until grep -qa ^sleep /proc/$!/cmdline; do :; done; "


class Desk:
    """Runs shell lines as an agent."""

    def __init__(self, folder: Path, core: ProcessCore) -> None:
        self.folder, self.core = folder, core
        self.heard = Recorder()

    def run(self, line: str, **request: object) -> Outcome:
        options = CommandOptions(argv=("sh", "-c", f"cat > /dev/null; {line}"), grace_s=1)
        executor = CommandExecutor("a", options, self.core)
        cancellation = Cancellation()
        try:
            return executor.perform(request_for(self.folder, **request), self.heard, cancellation)
        finally:
            cancellation.close()

    @property
    def notices(self) -> str:
        return self.heard.text(Piece.NOTICE)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with ProcessCore() as core:
        yield Desk(tmp_path, core)


def count_of(outcome: Outcome) -> int:
    assert outcome.evidence is not None
    return outcome.evidence.ended_processes


def test_a_process_that_the_agent_left_is_counted_and_named(desk: Desk) -> None:
    outcome = desk.run(f"{LEAVES} echo listening")
    assert outcome.is_accepted
    assert count_of(outcome) == 1
    told = "[sequencer] 1 process that the agent had left running was ended: sleep 4711\n"
    assert told in desk.notices


def test_several_are_counted_and_the_first_is_named(desk: Desk) -> None:
    outcome = desk.run(f"{LEAVES * 3} echo listening")
    assert count_of(outcome) == 3
    assert "3 processes that the agent had left running were ended, first: sleep 4711" in (
        desk.notices
    )


def test_an_agent_that_leaves_nothing_has_no_notice(desk: Desk) -> None:
    outcome = desk.run("true & wait; echo done")
    assert count_of(outcome) == 0
    assert "left running" not in desk.notices


def test_processes_that_end_with_a_stopped_agent_do_not_count_as_left(desk: Desk) -> None:
    outcome = desk.run(f"{LEAVES} sleep 4711", timeout_s=0.5)
    assert outcome.is_timed_out
    assert count_of(outcome) == 0
    assert outcome.evidence is not None
    assert outcome.evidence.turn_end is TurnEnd.CUT_OFF
    assert "left running" not in desk.notices


def test_a_command_line_is_cut_between_words_without_escape_sequences() -> None:
    secret = "sk-ant-" + "x" * 190
    line = f"server\0--name\0a\x1b[31m\0--token\0{secret}\0".encode()
    words = leftover_message(ProcessEnd(left_running=1, first_left=line))
    assert words.endswith(": server --name a?[31m --token …")
    assert "sk-ant" not in words
    # Cut by the guard in the middle of a secret: few letters can be many bytes.
    line = f"{'🚀' * 140} {secret}".encode()[:COMMAND_BYTES]
    assert "sk-ant" not in leftover_message(ProcessEnd(left_running=1, first_left=line))
    long = ("word " * 200).encode()[:COMMAND_BYTES]
    assert len(leftover_message(ProcessEnd(left_running=1, first_left=long))) < 300


def last_word(folder: Path, *, asks: bool, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return what a guard says at the end of an agent that leaves a process."""
    if not asks:
        monkeypatch.setattr(guard_process, "_LEFT", "")
    guard = Guard()
    try:
        launch = Launch(
            identity=None,
            argv=("sh", "-c", LEAVES),
            environment={"PATH": os.environ["PATH"]},
            cwd=folder,
            prompt=b"",
        )
        guard.run(launch)
        data = b""
        while data.count(b"\n") < 2:
            data += os.read(guard.status, 65_536)
        return data.splitlines()[1]
    finally:
        guard.close()


def test_a_sequencer_from_before_an_upgrade_gets_the_report_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = (
        rb'\{"event": "ended", "exit_code": (?:null|-?\d{1,3}), "stopped_by": (?:null|"[a-z]+"), '
        rb'"survivors": \d{1,9}\}'
    )
    old = last_word(tmp_path, asks=False, monkeypatch=monkeypatch)
    assert re.fullmatch(known, old), old
    monkeypatch.undo()
    new = last_word(tmp_path, asks=True, monkeypatch=monkeypatch)
    assert pump._LAST_REPORT.fullmatch(new), new
    assert pump._LAST_REPORT.fullmatch(old), "a guard from before is understood too"
    assert b'"left": 1' in new


@pytest.mark.parametrize("empty", [1, 3, 10_000])
def test_a_process_in_the_middle_of_an_exec_counts(
    monkeypatch: pytest.MonkeyPatch, empty: int
) -> None:
    """The kernel shows no command line of it for a moment."""
    looks = 0

    def opened(path: str, *args: Any, **options: Any) -> Any:
        nonlocal looks
        looks += path.endswith("/cmdline")
        if path.endswith("/cmdline") and looks <= empty:
            return BytesIO()
        return open(path, *args, **options)  # noqa: PTH123 - as the guard does it

    monkeypatch.setattr(guard, "open", opened, raising=False)
    with subprocess.Popen(["sleep", "4711"], stdin=subprocess.DEVNULL) as left:
        try:
            line = guard.command_line(left.pid)
        finally:
            left.kill()
    assert line == (b"sleep\0" + b"4711\0" if empty < 10_000 else b"sleep")


def test_a_process_that_has_ended_does_not_count() -> None:
    with subprocess.Popen(["true"], stdin=subprocess.DEVNULL) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert guard.command_line(ended.pid) == b""
