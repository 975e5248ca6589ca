"""Two terminals take turns, one is killed in the middle of a step, and nothing is lost.

``python -m tests.pictures.terminals docs/two-terminals.svg`` records it from real processes in
real terminals; the agent is a command that sleeps.
"""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from itertools import groupby
from pathlib import Path
from typing import Self

import psutil
import pyte

from tests.pictures.moving import Frame, Line, moving_picture

COLUMNS, ROWS = 52, 14
"""So few columns that a phone of 390 pixels shows letters that can be read."""
TITLES = ("terminal 1", "terminal 2")
PATIENCE_S, KEY_S, REST_S = 60.0, 0.045, 6.0
NOTICED_S = 2.5
"""After so long a process that waits says that the one that it waits for is gone."""
PROJECT = """\
workflow: {{name: standard}}
run: {{mode: sync}}
agent: {{default: robot}}
agents:
  robot: {{kind: command, argv: [sh, -c, 'sleep {seconds}; head -n 1 >> notes.md'], free: true}}
"""


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: os.environ[name] for name in ("XDG_STATE_HOME",) if name in os.environ}
        self._pid, self.fd = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            said = {"PATH": path, "PS1": "$ ", "TERM": "xterm", "HOME": str(folder), **kept}
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile"], said)  # noqa: S606
        ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self.fd, text.encode())

    def read(self) -> None:
        """Show what was written since."""
        self._stream.feed(os.read(self.fd, 65536))

    def kill_program(self) -> None:
        """Kill what runs in the foreground, as ``kill -9`` does."""
        for child in psutil.Process(self._pid).children():
            child.kill()

    def end(self) -> None:
        """End the shell and all that it has started."""
        for one in [*psutil.Process(self._pid).children(recursive=True), psutil.Process(self._pid)]:
            one.kill()
        os.close(self.fd)
        os.waitpid(self._pid, 0)

    def lines(self) -> tuple[Line, ...]:
        """Return what it shows now."""
        return tuple(self._line(row) for row in range(ROWS))

    def _line(self, row: int) -> Line:
        cells = [self.screen.buffer[row][column] for column in range(COLUMNS)]
        pieces = [
            ("".join(cell.data for cell in group), "" if color == "default" else color)
            for color, group in groupby(cells, key=lambda cell: cell.fg)
        ]
        return tuple(pieces) if any(text.strip() for text, _ in pieces) else ()

    def __contains__(self, pattern: str) -> bool:
        return re.search(pattern, "\n".join(self.screen.display), re.MULTILINE) is not None


class Recording:
    """What two terminals show, from the first key on."""

    def __init__(self, folder: Path) -> None:
        self.frames: list[Frame] = []
        self.caption = ""
        self.terminals = [Terminal(folder) for _ in TITLES]
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in self.terminals:
            terminal.end()

    def watch(self, seconds: float) -> None:
        """Record for so long what happens."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([one.fd for one in self.terminals], [], [], left)
            for terminal in self.terminals:
                if terminal.fd in ready:
                    terminal.read()
            screens = tuple(one.lines() for one in self.terminals)
            frame = Frame(time.monotonic() - self._began, self.caption, screens)
            if not self.frames or frame.screens != self.frames[-1].screens:
                self.frames.append(frame)

    def until(self, fact: Callable[[], bool]) -> None:
        """Record until *fact* is true."""
        end = time.monotonic() + PATIENCE_S
        while not fact():
            if time.monotonic() > end:
                shown = "\n".join(line for one in self.terminals for line in one.screen.display)
                raise TimeoutError(shown)
            self.watch(0.05)

    def start(self, caption: str) -> None:
        """Let the picture start with what is shown now: its first frame is what most people see."""
        self.frames.clear()
        self._began = time.monotonic()
        self.say(caption)

    def say(self, caption: str) -> None:
        """Tell the reader what comes."""
        self.caption = caption
        screens = tuple(one.lines() for one in self.terminals)
        self.frames.append(Frame(time.monotonic() - self._began, caption, screens))

    def type(self, number: int, command: str) -> None:
        """Let a person type a command into a terminal."""
        for key in f"{command}\r":
            self.terminals[number].type(key)
            self.watch(KEY_S)


def _prepare(folder: Path, seconds: float) -> None:
    program = [sys.executable, "-m", "sequencer"]
    for command in (["init"], ["trust", "--yes"]):
        subprocess.run([*program, *command], cwd=folder, check=True, capture_output=True)
        (folder / "orchestration.yaml").write_text(PROJECT.format(seconds=seconds))
    subprocess.run([*program, "trust", "--yes"], cwd=folder, check=True, capture_output=True)


def recorded(folder: Path, seconds: float) -> list[Frame]:
    """Play it in *folder*, with steps of *seconds*; return what was seen."""
    _prepare(folder, seconds)
    with Recording(folder) as play:
        first, second = play.terminals
        play.until(lambda: r"^\$" in first and r"^\$" in second)
        play.type(0, "sequencer run --position supervisor")
        play.type(1, "sequencer run --position main")
        play.until(lambda: r"\[2\] main · .* 0:0" in second)
        play.start("Two terminals take turns in one run.")
        play.until(lambda: r"\[3\] supervisor · .* 0:0" in first)
        play.watch(seconds / 3)
        play.say("kill -9 in the middle of step 3.")
        first.kill_program()
        play.until(lambda: "Killed" in first)
        play.watch(max(1.5 * seconds, NOTICED_S))
        play.say("Start it again: it takes the step over.")
        play.type(0, "sequencer run --position supervisor --max-steps 2")
        play.until(lambda: r"\[6\] main: accepted" in second and r"^\$ *$" in first)
        play.say("The journal has each step once, in order.")
        play.type(0, "clear; sequencer history")
        play.until(lambda: r"^\$ *$" in first and "taken-over" in first)
        play.watch(0.2)
    return play.frames


def main(target: Path) -> int:
    """Write the picture to *target*."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_STATE_HOME"] = f"{name}/state"
        folder = Path(name) / "project"
        folder.mkdir()
        frames = recorded(folder, 1.8)
    target.write_text(moving_picture(frames, TITLES, (COLUMNS, ROWS), REST_S))
    print(f"{target}: {len(frames)} frames, {target.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
