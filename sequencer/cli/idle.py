"""Repeats the answer of the last tick when nothing is due and nothing has changed.

A tick that finds nothing to do stores its answer in the user's state folder, which agents that
may only edit the project can't write. The key is a digest of everything the answer depends on:
arguments, configuration, environment, version. A later tick with the same key and the same state
repeats the answer instead of loading the program. Any difference (a byte in state.json or the
journal, a date that has come, a day that has passed) runs the full program. This module imports
little besides the standard library; bench/ measures it.

Not promised: that an agent with a shell can't forge an answer. An answer expires after a day.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from sequencer import __version__
from sequencer.cli import unattended
from sequencer.errors import SequencerError
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import locate, slug
from sequencer.store.folder import read_regular, remove
from sequencer.store.journal import NAME as JOURNAL
from sequencer.store.journal import decode
from sequencer.store.strictjson import parse_object
from sequencer.store.user_state import read_user_record, write_user_record

MAX_BYTES = 64 * 1024
DAY_S = 24 * 60 * 60
"""An answer expires after this time, so a wrong one costs at most a day."""
MAX_ANSWERS = 8
"""Answers kept for one state; timers with different options ask different questions."""
_FLAGS = frozenset({"--json", "--quiet", "--verbose"})


class IdleQuestion(NamedTuple):
    """A tick, as far as its answer depends on it."""

    key: str
    state_path: Path
    log: Path | None = None
    """The log to which the answer goes instead of the screen; see `unattended`."""


class IdleAnswer(NamedTuple):
    """The output of a tick that had nothing to do."""

    out: str
    err: str
    until: float | None = None
    """Unix time from which the answer may differ. Without it, the answer is never repeated."""
    since: float = 0.0
    """Unix time of the answer. If that is in the future, the clock was set back."""
    is_rest: bool = False
    """Whether nothing starts until a person acts, so earlier problems are resolved."""


def try_answer(arguments: Sequence[str]) -> bool:
    """Write the answer if *arguments* are a tick whose answer is known; return whether it was."""
    try:
        question = parse_question(arguments, os.environ)
        answer = None if question is None else recall(question)
        if answer is None or not _is_plain(answer.err + answer.out):
            return False
        if question is not None and question.log is not None:
            text = answer.err + answer.out
            return unattended.repeat_answer(question.log, text, is_rest=answer.is_rest)
        if sys.stderr is not None:
            sys.stderr.write(answer.err)
        sys.stdout.write(answer.out)
        sys.stdout.flush()
    except (AttributeError, OSError, ValueError, SequencerError):
        # Any error is reported by the full program, which runs next.
        return False
    return True


def _is_plain(text: str) -> bool:
    """Return whether *text* has only printable characters; another program may have written it."""
    return all(map(str.isprintable, text.split("\n")))


def parse_question(arguments: Sequence[str], env: Mapping[str, str]) -> IdleQuestion | None:
    """Return the question that *arguments* ask; None: they are not a tick.

    Raises:
        ConfigurationError: the project can't be found.
    """
    options = _parse_options(arguments)
    if options is None:
        return None

    config, run = options.get("--config"), options.get("--run")
    project = locate(Path(), None if config is None else Path(config), env)
    state_path = project.state_path
    if run is not None:
        state_path = state_path.parent / "runs" / slug(run) / state_path.name
    settings = sorted(item for item in env.items() if item[0].startswith("SEQUENCER_"))
    # The folder too: answers name files relative to it.
    folder = os.getcwd()  # noqa: PTH109 - no Path for what is only compared
    paths = [folder, str(project.config_path), str(state_path)]
    key_parts = [__version__, list(arguments), *paths, settings]
    digest = blake2b(json.dumps(key_parts).encode(), digest_size=16)
    if project.config_path is not None:
        digest.update(read_bytes(project.config_path))
    log = options.get("--log")
    return IdleQuestion(digest.hexdigest(), state_path, None if log is None else Path(log))


def _parse_options(arguments: Sequence[str]) -> dict[str, str] | None:
    """Return the options of a tick that locate its run and its log; None: it is not a tick.

    If the value of another option looks like one of them, the result is wrong but harmless: the
    run that it locates has no answer to this question.
    """
    options: dict[str, str] = {}
    is_tick = False
    words = iter(arguments)
    for argument in words:
        name, separator, value = argument.partition("=")
        if name in ("--config", "--run", "--log"):
            next_word = value if separator else next(words, None)
            if next_word is None:
                return None
            options[name] = next_word
        elif not is_tick and argument != "tick" and argument not in _FLAGS:
            return None
        is_tick = is_tick or argument == "tick"
    return options if is_tick else None


def recall(question: IdleQuestion, now: float | None = None) -> IdleAnswer | None:
    """Return the stored answer to *question* if nothing has changed since; None: no such answer."""
    path = question.state_path
    try:
        state = read_regular(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        return None
    answer = _parse_answer(_read_answers(path, state).get(question.key))
    if answer is None or not _is_newest(path, state):
        return None
    now = time.time() if now is None else now
    deadline = min(answer.until or 0.0, answer.since + DAY_S)
    return answer if answer.since <= now < deadline else None


def remember(question: IdleQuestion, answer: IdleAnswer, revision: int) -> None:
    """Store *answer* to *question* about the state of *revision*, if the answer has an end.

    If it can't be stored, nothing is lost: the next tick runs the full program.
    """
    if answer.until is None:
        return
    state_path = question.state_path
    with contextlib.suppress(OSError, SequencerError):
        state = read_regular(state_path, max_bytes=MAX_BYTES)
        # The run may have a newer state since the question was answered.
        if _parse_record(state).get("revision") != revision or not _is_newest(state_path, state):
            return
        answers = _read_answers(state_path, state)
        answers[question.key] = answer._replace(since=time.time())._asdict()
        newest_answers = dict(list(answers.items())[-MAX_ANSWERS:])
        record = {"state_file": str(state_path), "state": _digest(state), "answers": newest_answers}
        write_user_record(
            unattended.FOLDER, record_name(state_path), json.dumps(record).encode(), durably=False
        )
        # Earlier versions stored the answer in this file.
        remove(state_path.with_name("idle.json"))


def _read_answers(state_path: Path, state: bytes) -> dict[str, Any]:
    """Return the stored answers that are about the present *state*, by key."""
    data = read_user_record(unattended.FOLDER, record_name(state_path), MAX_BYTES)
    record = {} if data is None else _parse_record(data)
    answers = record.get("answers")
    return answers if isinstance(answers, dict) and record.get("state") == _digest(state) else {}


def record_name(state_path: Path) -> str:
    """Return the name of the record about the run at *state_path*."""
    return f"{_digest(os.fsencode(state_path))}.idle.json"


def _is_newest(state_path: Path, state: bytes) -> bool:
    """Return whether *state* matches the last record of the journal, and nothing follows it."""
    head = _parse_record(state)
    offset = head.get("journal_offset")
    if type(offset) is not int or offset < 0:
        return False
    # One line is at most 4 MiB (`journal.decode`); more bytes mean that another follows.
    try:
        journal_end = read_regular(state_path.with_name(JOURNAL), offset, max_bytes=4 * 1024 * 1024)
    except FileNotFoundError:
        return False
    if journal_end.count(b"\n") != 1 or not journal_end.endswith(b"\n"):
        return False
    try:
        record = decode(journal_end[:-1])
    except ValueError:
        return False
    return bool(record["revision"] == head.get("revision") and record["head"] == head)


def _parse_record(data: bytes) -> dict[str, Any]:
    try:
        return parse_object(data)
    except ValueError:
        return {}


def _parse_answer(record: object) -> IdleAnswer | None:
    if not isinstance(record, dict) or set(record) != set(IdleAnswer._fields):
        return None
    answer = IdleAnswer(**record)
    is_sound = isinstance(answer.out, str) and isinstance(answer.err, str)
    is_timed = isinstance(answer.since, float) and isinstance(answer.until, float)
    return answer if is_sound and is_timed and isinstance(answer.is_rest, bool) else None


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
