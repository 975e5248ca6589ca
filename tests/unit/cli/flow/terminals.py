"""Pseudo-terminals of any size, and what a person would see on them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Iterator
from typing import TextIO

from sequencer.cli.views.text import width

_PIECE = re.compile(r"\x1b\[(?P<args>[?0-9;]*)(?P<what>[A-Za-z])|(?P<text>[^\x1b])")


class Terminal:
    """A pseudo-terminal with a stream at its end."""

    def __init__(self, columns: int, rows: int, encoding: str = "utf-8") -> None:
        self.master, slave = pty.openpty()
        self.stream: TextIO = os.fdopen(slave, "w", encoding=encoding)
        self.raw = b""
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def read(self, seconds: float) -> int:
        """Take what comes within *seconds*; return how many bytes that were."""
        before, deadline = len(self.raw), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                self.raw += os.read(self.master, 1 << 16)
        return len(self.raw) - before

    def drain(self) -> None:
        while self.read(0.1):
            pass

    def _has(self, text: str | bytes) -> bool:
        return text in self.raw if isinstance(text, bytes) else text in "\n".join(self.screen())

    def wait_for(self, text: str | bytes) -> bytes:
        """Return all that has come when *text* is on the screen; bytes: when they have come."""
        deadline = time.monotonic() + 15
        while not self._has(text):
            assert time.monotonic() < deadline, self.screen()
            self.read(0.05)
        return self.raw

    def screen(self) -> list[str]:
        """Return the lines as a terminal that never scrolls would show them."""
        lines: list[list[str]] = [[]]
        row = column = 0
        for piece in _PIECE.finditer(self.raw.decode("utf-8", "replace")):
            text, what = piece["text"], piece["what"]
            if text == "\n":
                row += 1
            elif text == "\r":
                column = 0
            elif text is not None:
                lines += [[] for _ in range(row + 1 - len(lines))]
                line = lines[row]
                line += [" "] * (column + 2 - len(line))
                line[column : column + width(text)] = [text, *[""] * (width(text) - 1)]
                column += width(text)
            elif what == "A":
                row = max(0, row - int(piece["args"] or 1))
            elif what == "K":
                lines += [[] for _ in range(row + 1 - len(lines))]
                lines[row] = []
            else:
                assert what in "mhl", piece[0]
        return ["".join(line).rstrip() for line in lines]


@contextlib.contextmanager
def terminal(columns: int = 100, rows: int = 30, encoding: str = "utf-8") -> Iterator[Terminal]:
    made = Terminal(columns, rows, encoding)
    try:
        yield made
    finally:
        # This end first: a painter that nobody reads, after a failed test, would hold the other.
        os.close(made.master)
        with contextlib.suppress(OSError):
            made.stream.close()
