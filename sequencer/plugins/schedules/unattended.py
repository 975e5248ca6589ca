"""What a tick of a timer says: all of it to a log, and to a person only what has changed.

cron mails whatever is printed. So a tick with ``--log`` prints that something stands in the
way, that it is another thing than before, that it is over, or that the run has ended, and
nothing else. What was said last stands beside the log and not in the run's folder: a
configuration that can't be read names no run. An idle tick imports this and little else.

Not promised: that two ticks at the same moment say one thing only once.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from sequencer.errors import ClaimHeld, Interrupted, SequencerError
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular
from sequencer.store.strictjson import parse_object

OPTION = "--log"
MAX_BYTES = 64 * 1024
_NO_NEWS = (ClaimHeld.exit_code, Interrupted.exit_code)
"""Another tick is at work, or the machine goes down: the next tick knows more."""
_VARIES = (
    r"\b(?:attempt|process) \d+"
    r"|(?:\.\d+)?\.log\b"
    r"|\b\d{4}-\d\d-\d\d[T ]\d\d:[\d:.]+(?:Z|[+-]\d\d:?\d\d)?"
    r"|\b\d[\d.,]* (?:ms|s|min|h|d)\b"
    r"|(?<!['\"\w/.-])(?=[\w-]*\d)[\w-]{20,}(?!['\"\w/.-])"
)
"""Attempts, times and the ids of requests: no other failure for being different. What stands
in quotes is a name."""


class News(NamedTuple):
    """How a tick ended, as far as a person has to know."""

    text: str = ""
    """Why nothing happens, or that the run has ended; empty: nothing of that kind."""
    has_moved: bool = False
    """A step was accepted, so what stood in the way before does so no more."""


class Told(NamedTuple):
    """What was said last and is not over."""

    code: int
    key: str
    first_line: str
    at: str


def log_of(arguments: Sequence[str]) -> Path | None:
    """Return the log that a tick with *arguments* is to keep; None: it speaks as others do.

    Looked for here, because a usage error is raised before an option's turn comes.
    """
    for place, argument in enumerate(arguments):
        if argument == "--":
            break  # what follows is no option, whatever it looks like
        name, separator, value = argument.partition("=")
        if name == OPTION:
            following = value if separator else "".join(arguments[place + 1 : place + 2])
            return Path(following) if following else None
    return None


def recorded(path: Path, work: Callable[[], tuple[int, News]]) -> tuple[int, str]:
    """Return the exit code of *work*, whose output goes to *path*, and what is to be printed."""
    log = Log(path)
    with log.stream() as stream, redirect_stdout(stream), redirect_stderr(stream):
        code, news = work()
        if code:
            stream.write(f"exit code {code}\n")
    said = _news(path, code, news)
    lines = [said] if said else []
    if log.problem is not None:
        lines.append(f"{path}: the log can't be written: {log.problem}")
    if lines:
        lines.append(f"exit code {code}, {_now()}; the whole record: {path}")
    return code, "\n".join(lines)


def repeated(path: Path, text: str, *, is_final: bool) -> bool:
    """Write the known answer *text* into the log; return whether nobody has to be told more.

    *is_final*: the answer holds until somebody changes the run. If something else was said
    last, that is over, and the long way says so.

    Raises:
        OSError: the log can't be written.
        SequencerError: a link is in its place.
    """
    told = _told(path)
    if is_final and told is not None and told.code:
        return False
    log = Log(path)
    with log.stream() as stream:
        stream.write(text)
    return log.problem is None


class Log(io.RawIOBase):
    """A file that lines are added to, each with the time of day at its beginning.

    One that can't be written stops nothing; `problem` says why.
    """

    def __init__(self, path: Path) -> None:
        """Add to *path*; it is opened for the first line."""
        self._path = path
        self._fd: int | None = None
        self._rest = b""
        self.problem: str | None = None

    def stream(self) -> io.TextIOWrapper:
        """Return what text is written to; closing it closes the file."""
        buffer = io.BufferedWriter(self)
        return io.TextIOWrapper(buffer, "utf-8", errors="backslashreplace", line_buffering=True)

    def writable(self) -> bool:
        """Return that it is."""
        return True

    def write(self, data: Any, /) -> int:
        """Add the lines that are whole; the rest waits for its end."""
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        if lines:
            stamp = _now().encode() + b"  "
            self._add(b"".join(stamp + line + b"\n" for line in lines))
        return len(data)

    def close(self) -> None:
        """Close the file; a line without an end is one, too."""
        if self._rest:
            self.write(b"\n")
        super().close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _add(self, data: bytes) -> None:
        try:
            if self._fd is None:
                folder = folders.made(self._path.parent.absolute())
                self._fd = folder.open(self._path.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            # One call: lines of another tick come before or after them.
            os.write(self._fd, data)
        except (OSError, SequencerError) as error:
            self.problem = self.problem or _reason(error)


def _news(path: Path, code: int, news: News) -> str:
    """Return what a person is told after a tick, and remember that it was said."""
    if code in _NO_NEWS:
        return ""
    told = _told(path)
    if not news.text:
        if told is None or not news.has_moved:
            return ""
        over = f"over: {told.first_line}\n  said at {told.at}; a step was accepted since"
        return over + _remember(path, None)
    key = blake2b(f"{code} {re.sub(_VARIES, '', news.text)}".encode(), digest_size=16).hexdigest()
    if told is not None and told.key == key:
        return ""
    first_line = news.text.removeprefix("error: ").removeprefix("waiting: ").partition("\n")[0]
    now = Told(code, key, first_line, _now())
    return news.text + _remember(path, now)


def _told(path: Path) -> Told | None:
    try:
        kept = parse_object(read_regular(_beside(path), max_bytes=MAX_BYTES))
        found = Told(**kept)
    except (OSError, SequencerError, TypeError, ValueError):
        # Said once too often is better than never.
        return None
    is_sound = isinstance(found.code, int) and all(isinstance(text, str) for text in found[1:])
    return found if is_sound else None


def _remember(path: Path, told: Told | None) -> str:
    """Keep *told*; return what is to be said where that fails."""
    place = _beside(path)
    try:
        if told is None:
            folders.remove(place)
            return ""
        folders.made(place.parent)
        folders.put(place, json.dumps(told._asdict()).encode(), durably=False)
    except (OSError, SequencerError) as error:
        return f"\n{place}: can't be written ({_reason(error)}), so this is said each time"
    return ""


def _beside(path: Path) -> Path:
    return path.absolute().with_name(f"{path.name}.told")


def _reason(error: OSError | SequencerError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else error.message


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S%z")
