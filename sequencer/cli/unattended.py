"""What a tick of a timer says: all of it to a log, and to a person only what needs one.

cron mails whatever is printed. So a tick with ``--log`` prints what a person has to know, and
nothing else: success is silent, and so is the end of a problem. What two ticks say is the same if
it has the same key; the words, with their counts and times, don't count. What was said stands in
the user's state folder, under the log's path: an agent could write a file of the project, and a
configuration that can't be read names no run. An idle tick imports this and little else.

Not promised: that two ticks at the same moment say one thing only once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sequencer.errors import ClaimHeld, Interrupted, SequencerError
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular
from sequencer.store.strictjson import parse_object
from sequencer.store.user_state import own_state, put_own, read_own

if TYPE_CHECKING:
    from sequencer.cli.views.runs import Need

OPTION = "--log"
FOLDER = "ticks"
"""Of the user's own records: what ticks remember."""
MAX_BYTES = 64 * 1024
MAX_TOLD, MAX_ONCE = 12, 6
"""Problems that are remembered, and what is told only once; the oldest is forgotten first."""
MAX_CHARS = 300
"""Of a first line that is remembered."""
HOUR_S, DAY_S = 60 * 60, 24 * 60 * 60
AGAIN_S = (DAY_S, 3 * DAY_S, 7 * DAY_S)
"""What lasts is said again after so long, the last of these each time from then on."""
LASTS_S = 55 * 60
"""What may pass by itself is told if it lasts so long: by the second of two ticks an hour."""
SPARE_HOUR = 8
"""Where nothing at all can be remembered, only ticks of this hour of the day say it."""
_MEMORY = ("/dev/shm", "/tmp")  # noqa: S108 - a folder of the user's own is made there
"""Where a copy may still be kept if the disks of the user and of the project take nothing, and
`XDG_RUNTIME_DIR`, which is in memory, is not set."""
_NO_NEWS = (ClaimHeld.exit_code, Interrupted.exit_code)
"""Another tick is at work, or the machine goes down: the next tick knows more."""

FAILURE = "failure"
"""A person acts; it is over when a step was accepted."""
REFUSAL = "refusal"
"""Nothing can begin until a person acts; it is over when something can."""
LASTING = "lasting"
"""It may end by itself, so it is reported only after an hour."""
DECISION = "decision"
"""A person decides."""
PAUSE = "pause"
"""It ends by itself at a known time: reported at once if that is more than a day away, else only
after an hour. A pause that ends before the next tick delays nothing."""
_MARK = "mark"
"""Not a problem: remembers that a message was sent while only a copy of the record was writable."""
_PROBLEMS = (FAILURE, REFUSAL, LASTING)
"""What is over when work goes on."""
_ONCE = (PAUSE, _MARK)
_KINDS = {"refused": FAILURE, "not-yet": PAUSE}
"""How the need of a run is told by its `ReadinessKind`; any other is a decision."""
_ABOUT = ("  project: ", "  run: ")
"""How the lines begin that say what a mail is about."""
_OF_THE_LOG = "log"
"""Key of the problem that the log can't be written."""


class News(NamedTuple):
    """How a tick ended, as far as a person has to know."""

    text: str = ""
    """What needs a person; empty: nothing does."""
    key: str = ""
    """What makes it the same, whatever its words count; empty: the text does."""
    kind: str = FAILURE
    code: int = 0
    """The exit code with which the next tick will say it, where this one ends well."""
    has_moved: bool = False
    """A step was accepted, or the run is complete: earlier problems are over."""
    is_waiting: bool = False
    """Nothing was tried, so what stood in the way may still do so."""
    until: float | None = None
    """When a `PAUSE` ends, in seconds since 1970."""
    shared: str = ""
    """What makes a `PAUSE` the same in other runs of the project; empty: nothing does."""
    also: tuple[News, ...] = ()
    """What has happened besides."""

    @property
    def same(self) -> str:
        """Return what makes it the same as what another tick says."""
        return self.key or blake2b(self.text.encode(), digest_size=16).hexdigest()

    def may_resolve(self, now: float) -> bool:
        """Return whether it may end by itself within a day, and is reported only if it lasts."""
        is_long = self.until is not None and self.until > now + DAY_S
        return self.kind in (LASTING, PAUSE) and not is_long


def news_of(need: Need, text: str) -> News:
    """Return what a person has to know of *need*, which *text* tells."""
    kind = _KINDS.get(need.kind, DECISION)
    if kind == PAUSE and need.until is None:
        kind = LASTING
    until = None if need.until is None else need.until.timestamp()
    return News(text, need.key, kind, until=until, shared=need.shared if kind == PAUSE else "")


class Told(NamedTuple):
    """What was said and is not over, or what will be said if it lasts."""

    key: str
    kind: str
    line: str
    """Its first line, and the project and run that it is about, a line each."""
    since: float
    """When it was seen first, in seconds since 1970."""
    times: int = 0
    """How often it was said; 0: not yet."""
    at: str = ""
    """When it was said last, as people read it."""
    time: float = 0.0
    """The same in seconds since 1970."""
    code: int = 0
    until: float | None = None

    def covers(self, news: News, now: float) -> bool:
        """Return whether *news*, which is the same, needs no word at *now*.

        A time more than a day ahead is of a clock that was wrong, and counts for nothing.
        """
        if self.since > now + DAY_S or self.time > now + DAY_S:
            return False
        if not self.times:
            return news.may_resolve(now) and now - self.since < LASTS_S
        if news.until is not None and (self.until is None or news.until > self.until + HOUR_S):
            return False
        rests = AGAIN_S[-1:] if not self.code else AGAIN_S
        most_s = rests[min(self.times, len(rests)) - 1]
        return self.kind in _ONCE or now - self.time < most_s


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
    seen = [*([news] if news.text else []), *news.also]
    if log.problem is not None:
        problem = f"{path}: the log can't be written: {log.problem}"
        seen.append(News(problem, _OF_THE_LOG))
    if said := _said(path, code, news, seen):
        said += f"\nexit code {code}, {_now()}; the whole record: {path}"
    return code, said


def repeated(path: Path, text: str, *, is_rest: bool) -> bool:
    """Write the known answer *text* into the log; return whether nobody has to be told more.

    *is_rest*: nothing starts by itself. If a problem was told, that is over, and the long way
    says so. What is told only if it lasts is for the long way, too.

    Raises:
        OSError: the log can't be written.
        SequencerError: a link is in its place.
    """
    known, _ = _told(path)
    if any(not one.times or (is_rest and one.kind in _PROBLEMS) for one in known):
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


def _said(path: Path, code: int, news: News, seen: Sequence[News]) -> str:
    """Return what a person is told after a tick that has *seen* problems, and remember it."""
    known, is_own = _told(path)
    now, met = time.time(), {one.same for one in seen}
    has_refused = any(one.kind == REFUSAL for one in seen)
    over = [
        one
        for one in known
        if one.key not in met and _is_over(one, code, news, has_refused=has_refused)
    ]
    said: list[tuple[str, str]] = []
    kept = [one for one in known if one not in over]
    for one in seen:
        before = next((each for each in kept if each.key == one.same), None)
        after = _next(one, before, code, now)
        kept = [*(each for each in kept if each is not before), after]
        if after is not before and after.times and not _is_shared(path, one):
            said.append((after.key, one.text + _lasts(before)))
    kept = _newest(kept)
    if kept == known and is_own:
        return ""
    # What only a copy says counts for one tick: an agent, or a clone, could have written it.
    own = kept if is_own else [one for one in kept if one not in known]
    # They are told if they last, which nobody will know if nothing can be remembered.
    new = {one.key for one in kept if not one.times}
    waiting = [one.text for one in seen if one.same in new]
    return _remember(path, own, kept, said, waiting, is_own=is_own)


def _is_shared(path: Path, news: News) -> bool:
    """Return whether the pause *news* was told of another run; if not, remember it for them."""
    if not news.shared or news.until is None:
        return False
    name = record_name(path.parent / blake2b(news.shared.encode(), digest_size=8).hexdigest())
    known = None
    with contextlib.suppress(OSError, SequencerError, LookupError, ValueError, TypeError):
        known = float(parse_object(read_own(FOLDER, name, MAX_BYTES) or b"")["until"])
    # Another end is another limit, and a damaged record or a wrong clock silences nothing.
    if known is not None and abs(news.until - known) <= HOUR_S:
        return True
    text = json.dumps({"log": _real(path), "until": news.until}).encode()
    _tried(lambda: put_own(FOLDER, name, text, durably=False, may_tear=True))
    return False


def _next(news: News, before: Told | None, code: int, now: float) -> Told:
    """Return what is remembered of *news*: *before*, if nothing has to be told."""
    known = before if before is not None and before.since <= now + DAY_S else None
    if known is not None and known.covers(news, now):
        return known
    lines = news.text.removeprefix("error: ").removeprefix("waiting: ").split("\n")
    about = [line for line in lines[1:] if line.startswith(_ABOUT)]
    first = Told(news.same, news.kind, "\n".join([lines[0][:MAX_CHARS], *about]), now)
    if known is None and news.may_resolve(now):
        return first
    since, times = (now, 0) if known is None else (known.since, known.times)
    return first._replace(
        since=since, times=times + 1, at=_now(), time=now, code=code or news.code, until=news.until
    )


def _lasts(before: Told | None) -> str:
    if before is None or not before.times or before.kind in _ONCE:
        return ""
    return f"\n  you were told this at {before.at}; it has not changed since"


def _is_over(told: Told, code: int, news: News, *, has_refused: bool) -> bool:
    """Return whether *told*, which this tick has not met, is over."""
    if told.key == _OF_THE_LOG:
        return True
    if news.has_moved:
        return told.kind != _MARK
    if code in _NO_NEWS or has_refused:
        return False
    is_passing = told.kind == LASTING or (told.kind == PAUSE and not told.times)
    return told.kind == REFUSAL or (is_passing and not news.is_waiting)


def _newest(kept: Sequence[Told]) -> list[Told]:
    once = [one for one in kept if one.kind == _MARK][-MAX_ONCE:]
    return [*once, *[one for one in kept if one.kind != _MARK][-MAX_TOLD:]]


def _told(path: Path) -> tuple[list[Told], bool]:
    """Return what was said and is not over, and whether the user's state folder has a record.

    If there is one, it alone counts. A copy counts for ticks whose state folder can't be used,
    or is new each time; see `_remember`.
    """
    data = None
    with contextlib.suppress(OSError, SequencerError):
        data = read_own(FOLDER, record_name(path), MAX_BYTES)
    return (_copies(path), False) if data is None else (_parsed(data), True)


def _copies(path: Path) -> list[Told]:
    found: dict[str, Told] = {}
    for place in _spare_places(path):
        with contextlib.suppress(OSError, SequencerError):
            for one in _parsed(read_regular(place, max_bytes=MAX_BYTES)):
                if one.key not in found or found[one.key].time < one.time:
                    found[one.key] = one
    return [*found.values()]


def _parsed(data: bytes) -> list[Told]:
    try:
        return [_one(each) for each in parse_object(data).get("told", ())]
    except (LookupError, ValueError, TypeError, AttributeError):
        # Said once too often is better than never.
        return []


def _one(kept: dict[str, Any]) -> Told:
    told = Told(**{name: kept[name] for name in Told._fields})
    is_sound = all(isinstance(one, str) for one in (told.key, told.kind, told.line, told.at))
    is_sound &= all(type(one) is float for one in (told.since, told.time, told.until or 0.0))
    if not is_sound or type(told.times) is not int or type(told.code) is not int:
        raise ValueError(kept)
    return told


def _remember(
    path: Path,
    own: Sequence[Told],
    kept: Sequence[Told],
    said: Sequence[tuple[str, str]],
    waiting: Sequence[str],
    *,
    is_own: bool,
) -> str:
    """Keep what was *said*, keys and texts, and a copy; return what may be said.

    That has what is *waiting* for the next tick if nothing can be kept for it. *own* is for the
    user's state folder, all that is *kept* for the copy. If that folder has a record (*is_own*)
    that can't be written, a copy is believed for a day.
    """
    text = "\n".join(one for _, one in said)
    problem = _tried(
        lambda: put_own(FOLDER, record_name(path), _record(path, own), durably=False, may_tear=True)
    )
    if not problem:
        _copied(_beside(path), _record(path, kept))
        return text
    now, at = time.time(), _now()
    before = {one.key for one in _copies(path) if one.times and 0 <= now - one.time < DAY_S}
    present = {one.key for one in kept}
    marks = [Told(key, _MARK, "", now, 1, at, now) for key, _ in said if key not in present]
    data = _record(path, _newest([*kept, *marks]))
    failed = [_copied(place, data) for place in _spare_places(path)]
    if not is_own and not failed[0]:
        return text
    text = "\n".join(one for key, one in said if key not in before or not is_own)
    if all(failed):
        text = "\n".join(filter(None, (text, *waiting)))
    if not text:
        return ""
    where = own_state(FOLDER) if is_own else _beside(path)
    forgets = f"{where}: can't be written ({problem if is_own else failed[0]}), so"
    if not all(failed):
        return f"{text}\n{forgets} this is said once a day"
    only = f"{forgets} only ticks from {SPARE_HOUR}:00 to {SPARE_HOUR}:59 say this"
    return f"{text}\n{only}" if time.localtime().tm_hour == SPARE_HOUR else ""


def _copied(place: Path, data: bytes) -> str:
    """Make *data* the copy at *place*; return why it can't be made, or nothing."""

    def copy() -> None:
        folders.made(place.parent)
        folders.put(place, data, durably=False)

    return _tried(copy)


def _tried(act: Callable[[], None]) -> str:
    """Do *act*; return why it failed, or nothing."""
    try:
        act()
    except (OSError, SequencerError) as error:
        return _reason(error)
    return ""


def _record(path: Path, kept: Sequence[Told]) -> bytes:
    return json.dumps({"log": _real(path), "told": [one._asdict() for one in kept]}).encode()


def _spare_places(path: Path) -> list[Path]:
    """Return where copies are kept: beside the log, and in memory if that can't be written."""
    places = (os.environ.get("XDG_RUNTIME_DIR") or _MEMORY[0], *_MEMORY)
    memory = next((one for one in places if os.path.isdir(one)), _MEMORY[-1])  # noqa: PTH112
    folder = Path(memory, f"sequencer-{os.geteuid()}")
    try:
        about = os.lstat(folder)
    except FileNotFoundError:
        is_ours = True  # it is made for this user alone
    else:
        is_ours = about.st_uid == os.geteuid() and not about.st_mode & 0o022
    return [_beside(path), *([folder / record_name(path)] if is_ours else [])]


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
