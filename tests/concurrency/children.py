"""Processes that are forked for a test: what went wrong in them, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path


def append(path: Path, text: str) -> None:
    """Write one line that a kill can't tear: it is there whole or not at all."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, text.encode() + b"\n")
    os.close(fd)


def pairs(path: Path) -> list[list[str]]:
    """Return the words of each whole line of *path*; a file that nobody wrote has none."""
    # A line that is being written over the end of a page can be seen in part.
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [line.split() for line in whole.split("\n")] if whole else []


def start(role: Callable[[], object], errors: Path) -> int:
    """Fork a child that plays *role*, and return its pid; what it raises goes to *errors*."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        role()
        code = 0
    except BaseException:  # noqa: BLE001 (whatever it is, the parent has to hear of it)
        append(errors, traceback.format_exc())
    os._exit(code)


def ended(children: Iterable[int]) -> set[int]:
    """Return which of the *children* have ended since."""
    return {child for child in children if os.waitpid(child, os.WNOHANG)[0]}


def end(children: Iterable[int]) -> None:
    """Kill the *children* that still run, and collect them all."""
    gone = list(children)
    for child in gone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    for child in gone:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def wrong(errors: Path) -> tuple[str, ...]:
    """Return what went wrong in the children, on one line each."""
    return (" | ".join(errors.read_text().split("\n")),) if errors.exists() else ()
