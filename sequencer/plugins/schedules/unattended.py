"""What a tick of a timer says: all of it to a log, and to a person only what has changed.

cron mails whatever is printed. So a tick with ``--log`` prints that something stands in the
way, that it is another thing than before, that it is over, or that the run has ended, and
nothing else. What lasts is said again after a while. What was said last stands in the user's
state folder, under the log's path: an agent could write a file of the project, and a
configuration that can't be read names no run. An idle tick imports this and little else.

Not promised: that two ticks at the same moment say one thing only once.
"""

from __future__ import annotations

import contextlib
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
from sequencer.store.user_state import own_state, put_own, read_own

OPTION = "--log"
FOLDER = "ticks"
"""Of the user's own records: what ticks remember."""
MAX_BYTES = 64 * 1024
DAY_S = 24 * 60 * 60
AGAIN_S, RESTS_AGAIN_S = DAY_S, 7 * DAY_S
"""After so long the same is said again: a failure, and why nothing happens."""
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
    run_id: str = ""
    """The same of another run is news."""
    code: int | None = None
    """The exit code with which the next tick will say the same; None: this one's."""


class Told(NamedTuple):
    """What was said last and is not over."""

    code: int
    key: str
    first_line: str
    at: str
    time: float
    """The same in seconds since 1970."""

    def covers(self, key: str, now: float) -> bool:
        """Return whether what has *key* needs no word at *now*.

        A time more than a day ahead is of a clock that was wrong, and counts for nothing.
        """
        most_s = AGAIN_S if self.code else RESTS_AGAIN_S
        return self.key == key and -DAY_S <= now - self.time < most_s


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


def repeated(path: Path, text: str, *, is_rest: bool) -> bool:
    """Write the known answer *text* into the log; return whether nobody has to be told more.

    *is_rest*: nothing starts by itself. If something else was said last, that is over, and the
    long way says so.

    Raises:
        OSError: the log can't be written.
        SequencerError: a link is in its place.
    """
    told, _ = _told(path)
    if is_rest and told is not None and told.code:
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
    told, is_own = _told(path)
    code = code if news.code is None else news.code
    if not news.text and (told is None or not news.has_moved):
        return _remember_nothing(path, is_own)
    if not news.text and told is not None:
        over = f"over: {told.first_line}\n  said at {told.at}; a step was accepted since"
        return over + _remember(path, None, is_own)
    what = f"{code} {news.run_id} {re.sub(_VARIES, '', news.text)}"
    key, now = blake2b(what.encode(), digest_size=16).hexdigest(), time.time()
    if told is not None and told.covers(key, now):
        return _remember_nothing(path, is_own)
    lasts = ""
    if told is not None and told.key == key:
        lasts = f"\n  you were told this at {told.at}; it has not changed since"
    first_line = news.text.removeprefix("error: ").removeprefix("waiting: ").partition("\n")[0]
    return news.text + lasts + _remember(path, Told(code, key, first_line, _now(), now), is_own)


def _told(path: Path) -> tuple[Told | None, bool]:
    """Return what was said last, and whether the user's state folder has a record about it.

    If there is one, it alone counts. The copy beside the log counts for ticks whose state
    folder can't be used, or is new each time; see `_remember_nothing`.
    """
    data = None
    with contextlib.suppress(OSError, SequencerError):
        data = read_own(FOLDER, record_name(path), MAX_BYTES)
    is_own = data is not None
    try:
        if data is None:
            data = read_regular(_beside(path), max_bytes=MAX_BYTES)
        kept = parse_object(data)
        found = Told(**{name: kept[name] for name in Told._fields})
    except (OSError, SequencerError, LookupError, ValueError):
        # Said once too often is better than never.
        return None, is_own
    texts = (found.key, found.first_line, found.at)
    is_sound = isinstance(found.code, int) and all(isinstance(text, str) for text in texts)
    return (found if is_sound and isinstance(found.time, float) else None), is_own


def _remember_nothing(path: Path, is_own: bool) -> str:
    """Make a first record in the user's state folder if there is none; return no news.

    It says nothing, so that the next tick does not ask the copy, which an agent can write. If
    the folder is new again by then, that tick does.
    """
    if not is_own:
        _tried(lambda: put_own(FOLDER, record_name(path), _record(path, None), durably=False))
    return ""


def _remember(path: Path, told: Told | None, is_own: bool) -> str:
    """Keep *told*, and a copy of it beside the log; return what is to be said where that fails.

    Without a record in the user's state folder (*is_own*) the copy is enough.
    """
    data, place = _record(path, told), _beside(path)
    problem = _tried(lambda: put_own(FOLDER, record_name(path), data, durably=False))
    copied = _tried(lambda: _copy(place, data))
    if not problem or not (is_own or copied):
        return ""
    where = own_state(FOLDER) if is_own else place
    reason = problem if is_own else copied
    return f"\n{where}: can't be written ({reason}), so this is said each time"


def _copy(place: Path, data: bytes) -> None:
    folders.made(place.parent)
    folders.put(place, data, durably=False)


def _tried(act: Callable[[], None]) -> str:
    """Do *act*; return why it failed, or nothing."""
    try:
        act()
    except (OSError, SequencerError) as error:
        return _reason(error)
    return ""


def _record(path: Path, told: Told | None) -> bytes:
    kept = {} if told is None else told._asdict()
    return json.dumps({"log": _real(path), **kept}).encode()


def record_name(path: Path) -> str:
    """Return the name of the record about what was said of ticks with the log *path*."""
    digest = blake2b(os.fsencode(_real(path)), digest_size=16).hexdigest()
    return f"{digest}.told.json"


def _real(path: Path) -> str:
    folder, name = os.path.split(path.absolute())
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - as an idle tick has it


def _beside(path: Path) -> Path:
    return path.absolute().with_name(f"{path.name}.told")


def _reason(error: OSError | SequencerError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else error.message


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S%z")
