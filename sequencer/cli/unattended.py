"""What a tick of a timer prints: everything goes to a log, and only news for a person is printed.

cron mails everything that is printed. So a tick with ``--log`` prints only what a person has to
know; success is silent, and so is the end of a problem. Two ticks have the same news if the keys
are the same, even if counts and times in the texts differ. What was reported is recorded in the
user's state folder, under the log's path: an agent could write to a file in the project, and a
configuration that can't be read names no run. An idle tick imports little besides this module.

Not promised: that two ticks at the same moment report the same news only once.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from sequencer.errors import ClaimHeld, Interrupted, SequencerError, UsageRefused
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular
from sequencer.store.strictjson import parse_object
from sequencer.store.user_state import read_user_record, user_state_path, write_user_record

if TYPE_CHECKING:
    from sequencer.cli.views.runs import Need

OPTION = "--log"
FOLDER = "ticks"
"""The folder for records of ticks in the user's state folder."""
MAX_BYTES = 64 * 1024
MAX_REPORTS, MAX_ONCE = 12, 6
"""How many problems and how many marks are remembered; the oldest is forgotten first."""
MAX_CHARS = 300
"""Longest first line of a message that is remembered, in characters."""
HOUR_S, DAY_S = 60 * 60, 24 * 60 * 60
AGAIN_S = (DAY_S, 3 * DAY_S, 7 * DAY_S)
"""A lasting problem is reported again after these times; the last one repeats."""
_STAMP = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}  ")
"""What each line of a log starts with; see `_format_now`."""
_LOOKED_AT_BYTES = 256
LASTS_S = 55 * 60
"""A problem that may end by itself is reported if it lasts this long. It is a little less than an
hour, so that the second of two hourly ticks reports it."""
SPARE_HOUR = 8
"""If nothing can be remembered anywhere, only ticks in this hour of the day report problems."""
_MEMORY = ("/dev/shm", "/tmp")  # noqa: S108 - a folder that only this user may write is made there
"""Where a copy can be kept if the disks of the user and of the project can't be written and
`XDG_RUNTIME_DIR`, which is in memory, is not set."""
_NO_NEWS = (ClaimHeld.exit_code, Interrupted.exit_code)
"""Another tick is working, or the machine is shutting down: the next tick knows more."""

FAILURE = "failure"
"""A person has to act. Resolved when a step is accepted."""
REFUSAL = "refusal"
"""Nothing can start until a person acts. Resolved when something can start."""
LASTING = "lasting"
"""It may end by itself, so it is reported only after an hour."""
DECISION = "decision"
"""A person has to decide."""
PAUSE = "pause"
"""It ends by itself at a known time. It is reported at once if that is more than a day away, else
only after an hour, because a pause that ends before the next tick delays nothing."""
_MARK = "mark"
"""Not a problem: remembers that a message was sent while only a copy of the record was writable."""
_PROBLEMS = (FAILURE, REFUSAL, LASTING)
"""Kinds that are resolved when the work continues."""
_ONCE = (PAUSE, _MARK)
"""Kinds that are never reported again."""
_KINDS = {"refused": FAILURE, "not-yet": PAUSE}
"""`ReadinessKind` of a need -> the kind of news; any other need is a decision."""
_ABOUT = ("  project: ", "  run: ")
"""The starts of the lines that say what a message is about."""
_OF_THE_LOG = "log"
"""Key of the problem that the log can't be written."""


class TickNotice(NamedTuple):
    """What a person has to know about how a tick ended."""

    text: str = ""
    """What needs a person; empty: nothing does."""
    key: str = ""
    """Identifies the news, even if counts or times in its text change; empty: the text does."""
    kind: str = FAILURE
    code: int = 0
    """The exit code with which the next tick will report it, if this tick ends well."""
    has_moved: bool = False
    """Whether a step was accepted or the run is complete, so that earlier problems are resolved."""
    is_waiting: bool = False
    """Whether nothing was tried, so that earlier problems may still exist."""
    until: float | None = None
    """When a `PAUSE` ends, in seconds since 1970."""
    shared: str = ""
    """Identifies a `PAUSE` that other runs of the project have too; empty: no other run has it."""
    also: tuple[TickNotice, ...] = ()
    """More news of the same tick."""

    @property
    def same(self) -> str:
        """Return the key by which news of another tick is recognized as the same."""
        return self.key or blake2b(self.text.encode(), digest_size=16).hexdigest()

    def may_resolve(self, now: float) -> bool:
        """Return whether the problem may end by itself within a day; it is reported if it lasts."""
        is_long = self.until is not None and self.until > now + DAY_S
        return self.kind in (LASTING, PAUSE) and not is_long


def make_news(need: Need, text: str) -> TickNotice:
    """Return the news about *need*, which *text* describes."""
    kind = _KINDS.get(need.kind, DECISION)
    if kind == PAUSE and need.until is None:
        kind = LASTING
    deadline_s = None if need.until is None else need.until.timestamp()
    return TickNotice(
        text, need.key, kind, until=deadline_s, shared=need.shared if kind == PAUSE else ""
    )


class TickReport(NamedTuple):
    """A record of unresolved news that was reported, or will be reported if it lasts.

    It is stored as JSON with these field names.
    """

    key: str
    kind: str
    line: str
    """The first line of the text, then the project and the run that it is about, one line each."""
    since: float
    """When the problem was first seen, in seconds since 1970."""
    times: int = 0
    """How many times it was reported; 0: not yet."""
    at: str = ""
    """When it was last reported, as people read it."""
    time: float = 0.0
    """When it was last reported, in seconds since 1970."""
    code: int = 0
    until: float | None = None

    def covers(self, news: TickNotice, now: float) -> bool:
        """Return whether *news* with the same key need not be reported at *now*.

        A recorded time more than a day ahead comes from a wrong clock, so the record is ignored.
        """
        if self.since > now + DAY_S or self.time > now + DAY_S:
            return False
        if not self.times:
            return news.may_resolve(now) and now - self.since < LASTS_S
        if news.until is not None and (self.until is None or news.until > self.until + HOUR_S):
            return False
        rests = AGAIN_S[-1:] if not self.code else AGAIN_S
        pause_s = rests[min(self.times, len(rests)) - 1]
        return self.kind in _ONCE or now - self.time < pause_s


def find_log_path(arguments: Sequence[str]) -> Path | None:
    """Return the log that *arguments* name with ``--log``; None: they name none.

    The arguments are read here because click raises a usage error before it handles options.
    """
    for index, argument in enumerate(arguments):
        if argument == "--":
            break  # after this there are no options
        name, separator, value = argument.partition("=")
        if name == OPTION:
            next_word = value if separator else "".join(arguments[index + 1 : index + 2])
            return Path(next_word) if next_word else None
    return None


def ensure_is_log(path: Path) -> None:
    """Check that *path* is the log of ticks, or no file yet: lines will be added to it.

    A file that can't be read does not stop a tick; `Log` reports it.

    Raises:
        UsageRefused: it is another file, for example a prompt, which agents would then get.
    """
    if path == Path("-"):
        raise UsageRefused(
            "'-' is not a file, and a log is not printed",
            where=OPTION,
            hint="name a file, for example logs/tick.log, or leave the option out",
        )
    try:
        beginning = read_regular(path.absolute(), max_bytes=_LOOKED_AT_BYTES)
    except (OSError, SequencerError):
        return
    if beginning.strip() and not _STAMP.match(beginning):
        raise UsageRefused(
            "the file exists and is not the log of a tick, so it was left as it is",
            where=f"{OPTION} {path}",
            hint="name another file, for example logs/tick.log",
        )


def run_logged(path: Path, work: Callable[[], tuple[int, TickNotice]]) -> tuple[int, str]:
    """Do *work* with its output in the log *path*; return its exit code and the text to print."""
    log = Log(path)
    with log.open_stream() as stream, redirect_stdout(stream), redirect_stderr(stream):
        code, news = work()
        if code:
            stream.write(f"exit code {code}\n")
    all_news = [*([news] if news.text else []), *news.also]
    if log.problem is not None:
        problem = f"{path}: the log can't be written: {log.problem}"
        all_news.append(TickNotice(problem, _OF_THE_LOG))
    if text := _report_tick(path, code, news, all_news):
        text += f"\nexit code {code}, {_format_now()}; the whole record: {path}"
    return code, text


def repeat_answer(path: Path, text: str, *, is_rest: bool) -> bool:
    """Write the known answer *text* into the log; return whether that is all a tick has to do.

    False: the records have to change, which the full program does. That is so if a problem is not
    reported yet, or if one was reported and nothing starts by itself any more (*is_rest*).

    Raises:
        OSError: the log can't be written.
        SequencerError: a link or another file is in its place.
    """
    ensure_is_log(path)
    records, _ = _read_records(path)
    if any(not record.times or (is_rest and record.kind in _PROBLEMS) for record in records):
        return False
    log = Log(path)
    with log.open_stream() as stream:
        stream.write(text)
    return log.problem is None


class Log(io.RawIOBase):
    """A log file to which lines are appended, each with the time of day at its start.

    A log that can't be written does not stop the work; `problem` has the reason.
    """

    def __init__(self, path: Path) -> None:
        """Append to *path*; the file is opened for the first line."""
        self._path = path
        self._fd: int | None = None
        self._rest = b""
        self.problem: str | None = None

    def open_stream(self) -> io.TextIOWrapper:
        """Return a text stream that writes to the log; closing it closes the file."""
        buffer = io.BufferedWriter(self)
        return io.TextIOWrapper(buffer, "utf-8", errors="backslashreplace", line_buffering=True)

    def writable(self) -> bool:
        """Return True: the log is write-only."""
        return True

    def write(self, data: Any, /) -> int:
        """Append the complete lines of *data*; the rest waits for its line end."""
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        if lines:
            stamp = _format_now().encode() + b"  "
            self._append(b"".join(stamp + line + b"\n" for line in lines))
        return len(data)

    def close(self) -> None:
        """Append an unfinished line, and close the file."""
        if self._rest:
            self.write(b"\n")
        super().close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes) -> None:
        try:
            if self._fd is None:
                folder = folders.make_folder(self._path.parent.absolute())
                self._fd = folder.open(self._path.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            # One call, so that lines of another tick can't come in between.
            os.write(self._fd, data)
        except (OSError, SequencerError) as error:
            self.problem = self.problem or _describe_error(error)


def _report_tick(path: Path, code: int, news: TickNotice, all_news: Sequence[TickNotice]) -> str:
    """Return what to print after a tick with *all_news*, and update the records of its log."""
    known_records, is_own = _read_records(path)
    now, keys = time.time(), {item.same for item in all_news}
    has_refused = any(item.kind == REFUSAL for item in all_news)
    ended_records = [
        record
        for record in known_records
        if record.key not in keys and _is_over(record, code, news, has_refused=has_refused)
    ]
    texts: list[tuple[str, str]] = []
    records = [record for record in known_records if record not in ended_records]
    for item in all_news:
        old_record = next((record for record in records if record.key == item.same), None)
        new_record = _make_tick_report(item, old_record, code, now)
        records = [*(record for record in records if record is not old_record), new_record]
        if new_record is not old_record and new_record.times and not _is_shared(path, item):
            texts.append((new_record.key, item.text + _format_repeat_note(old_record)))
    records = _select_newest(records)
    if records == known_records and is_own:
        return ""
    # Records from a copy are trusted for one tick only: an agent or a clone may have written them.
    own_records = (
        records if is_own else [record for record in records if record not in known_records]
    )
    # New problems are reported if they last. If nothing can be remembered, no tick would notice
    # that they last, so their texts are passed on too.
    new_keys = {record.key for record in records if not record.times}
    waiting_texts = [item.text for item in all_news if item.same in new_keys]
    return _store_records(path, own_records, records, texts, waiting_texts, is_own=is_own)


def _is_shared(path: Path, news: TickNotice) -> bool:
    """Return whether another run has reported the pause *news*; if not, record it for others."""
    if not news.shared or news.until is None:
        return False
    name = record_name(path.parent / blake2b(news.shared.encode(), digest_size=8).hexdigest())
    known_until = None
    with contextlib.suppress(OSError, SequencerError, LookupError, ValueError, TypeError):
        known_until = float(parse_object(read_user_record(FOLDER, name, MAX_BYTES) or b"")["until"])
    # Another end means another limit. A damaged record or a wrong clock must not silence news.
    if known_until is not None and abs(news.until - known_until) <= HOUR_S:
        return True
    text = json.dumps({"log": _resolve_path(path), "until": news.until}).encode()
    _try_call(lambda: write_user_record(FOLDER, name, text, durably=False, may_tear=True))
    return False


def _make_tick_report(
    news: TickNotice, old_report: TickReport | None, code: int, now: float
) -> TickReport:
    """Return the record of *news*. It is *old_report* if nothing has to be reported now."""
    known_report = (
        old_report if old_report is not None and old_report.since <= now + DAY_S else None
    )
    if known_report is not None and known_report.covers(news, now):
        return known_report
    lines = news.text.removeprefix("error: ").removeprefix("waiting: ").split("\n")
    context_lines = [line for line in lines[1:] if line.startswith(_ABOUT)]
    report = TickReport(
        news.same, news.kind, "\n".join([lines[0][:MAX_CHARS], *context_lines]), now
    )
    if known_report is None and news.may_resolve(now):
        return report
    since_s, times = (now, 0) if known_report is None else (known_report.since, known_report.times)
    return report._replace(
        since=since_s,
        times=times + 1,
        at=_format_now(),
        time=now,
        code=code or news.code,
        until=news.until,
    )


def _format_repeat_note(old_report: TickReport | None) -> str:
    if old_report is None or not old_report.times or old_report.kind in _ONCE:
        return ""
    return f"\n  you were told this at {old_report.at}; it has not changed since"


def _is_over(record: TickReport, code: int, news: TickNotice, *, has_refused: bool) -> bool:
    """Return whether the problem of *record*, which this tick did not see, is resolved."""
    if record.key == _OF_THE_LOG:
        return True
    if news.has_moved:
        return record.kind != _MARK
    if code in _NO_NEWS or has_refused:
        return False
    is_passing = record.kind == LASTING or (record.kind == PAUSE and not record.times)
    return record.kind == REFUSAL or (is_passing and not news.is_waiting)


def _select_newest(records: Sequence[TickReport]) -> list[TickReport]:
    marks = [record for record in records if record.kind == _MARK][-MAX_ONCE:]
    return [*marks, *[record for record in records if record.kind != _MARK][-MAX_REPORTS:]]


def _read_records(path: Path) -> tuple[list[TickReport], bool]:
    """Return the unresolved records, and whether they are from the user's state folder.

    Copies are used only if the state folder has no records: it may be unusable, or new for each
    tick; see `_store_records`.
    """
    data = None
    with contextlib.suppress(OSError, SequencerError):
        data = read_user_record(FOLDER, record_name(path), MAX_BYTES)
    return (_read_copies(path), False) if data is None else (_parse_reports(data), True)


def _read_copies(path: Path) -> list[TickReport]:
    newest_reports: dict[str, TickReport] = {}
    for place in _copy_paths(path):
        with contextlib.suppress(OSError, SequencerError):
            for record in _parse_reports(read_regular(place, max_bytes=MAX_BYTES)):
                if (
                    record.key not in newest_reports
                    or newest_reports[record.key].time < record.time
                ):
                    newest_reports[record.key] = record
    return [*newest_reports.values()]


def _parse_reports(data: bytes) -> list[TickReport]:
    try:
        return [_parse_report(fields) for fields in parse_object(data).get("told", ())]
    except (LookupError, ValueError, TypeError, AttributeError):
        # With a damaged record, news may be reported once too often, but never too seldom.
        return []


def _parse_report(fields: dict[str, Any]) -> TickReport:
    record = TickReport(**{name: fields[name] for name in TickReport._fields})
    texts = (record.key, record.kind, record.line, record.at)
    numbers = (record.since, record.time, record.until or 0.0)
    is_sound = all(isinstance(text, str) for text in texts)
    is_sound &= all(type(number) is float for number in numbers)
    if not is_sound or type(record.times) is not int or type(record.code) is not int:
        raise ValueError(fields)
    return record


def _store_records(
    path: Path,
    own_records: Sequence[TickReport],
    records: Sequence[TickReport],
    texts: Sequence[tuple[str, str]],
    waiting_texts: Sequence[str],
    *,
    is_own: bool,
) -> str:
    """Store the records and a copy of them; return what to print of *texts*, (key, text) pairs.

    *own_records* is stored in the user's state folder, and all *records* in the copy. If neither
    can be written, *waiting_texts* are printed too. If the state folder has
    records (*is_own*) that can't be rewritten, a copy is trusted for a day.
    """
    text = "\n".join(text for _, text in texts)
    problem = _try_call(
        lambda: write_user_record(
            FOLDER,
            record_name(path),
            _encode_records(path, own_records),
            durably=False,
            may_tear=True,
        )
    )
    if not problem:
        _write_copy(_sidecar_path(path), _encode_records(path, records))
        return text
    now, time_now = time.time(), _format_now()
    copies = _read_copies(path)
    reported_keys = {copy.key for copy in copies if copy.times and 0 <= now - copy.time < DAY_S}
    keys = {record.key for record in records}
    marks = [
        TickReport(key, _MARK, "", now, 1, time_now, now) for key, _ in texts if key not in keys
    ]
    data = _encode_records(path, _select_newest([*records, *marks]))
    problems = [_write_copy(place, data) for place in _copy_paths(path)]
    if not is_own and not problems[0]:
        return text
    text = "\n".join(text for key, text in texts if key not in reported_keys or not is_own)
    if all(problems):
        text = "\n".join(filter(None, (text, *waiting_texts)))
    if not text:
        return ""
    record_path = user_state_path(FOLDER) if is_own else _sidecar_path(path)
    reason = f"{record_path}: can't be written ({problem if is_own else problems[0]}), so"
    if not all(problems):
        return f"{text}\n{reason} this is said once a day"
    note = f"{reason} only ticks from {SPARE_HOUR}:00 to {SPARE_HOUR}:59 say this"
    return f"{text}\n{note}" if time.localtime().tm_hour == SPARE_HOUR else ""


def _write_copy(place: Path, data: bytes) -> str:
    """Write *data* as the copy *place*; return why it can't be written, or an empty text."""

    def copy() -> None:
        folders.make_folder(place.parent)
        folders.write_atomically(place, data, durably=False)

    return _try_call(copy)


def _try_call(act: Callable[[], None]) -> str:
    """Call *act*; return why it failed, or an empty text."""
    try:
        act()
    except (OSError, SequencerError) as error:
        return _describe_error(error)
    return ""


def _encode_records(path: Path, records: Sequence[TickReport]) -> bytes:
    reports = [record._asdict() for record in records]
    return json.dumps({"log": _resolve_path(path), "told": reports}).encode()


def _copy_paths(path: Path) -> list[Path]:
    """Return the files for copies: next to the log, and in memory in case that can't be written."""
    places = (os.environ.get("XDG_RUNTIME_DIR") or _MEMORY[0], *_MEMORY)
    memory = next((place for place in places if os.path.isdir(place)), _MEMORY[-1])  # noqa: PTH112
    folder = Path(memory, f"sequencer-{os.geteuid()}")
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        is_ours = True  # it will be created for this user alone
    else:
        # Another user could have created the folder in a place that everyone may write.
        is_ours = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return [_sidecar_path(path), *([folder / record_name(path)] if is_ours else [])]


def record_name(path: Path) -> str:
    """Return the file name of the record for ticks with the log *path*."""
    digest = blake2b(os.fsencode(_resolve_path(path)), digest_size=16).hexdigest()
    return f"{digest}.told.json"


def _resolve_path(path: Path) -> str:
    folder, name = os.path.split(path.absolute())
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - as an idle tick has it


def _sidecar_path(path: Path) -> Path:
    return path.absolute().with_name(f"{path.name}.told")


def _describe_error(error: OSError | SequencerError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else error.message


def _format_now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S%z")
