"""The answer to a tick when nothing is due and nothing has changed.

A tick that finds nothing to do leaves its answer in the user's state folder, out of reach of
agents that may only edit the project, under a digest of everything that the answer depends on:
arguments, configuration, environment, version. A later tick that asks the very same of the very
same state repeats the answer instead of loading the program. So both ways agree by
construction, and any doubt (another byte in state.json, one more in the journal, a date that
has come, a day that has passed) ends in the long way. Stdlib only; measured by bench/.

Not promised: that an agent with a shell can't forge an answer. It ends after a day.
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
from sequencer.store.user_state import put_own, read_own

MAX_BYTES = 64 * 1024
DAY_S = 24 * 60 * 60
"""An answer holds no longer: whatever may be wrong with it costs a day."""
MAX_ANSWERS = 8
"""Different questions about one state, as of timers with different options."""
_FLAGS = frozenset({"--json", "--quiet", "--verbose"})


class IdleQuestion(NamedTuple):
    """What a tick asks."""

    key: str
    state_path: Path
    log: Path | None = None
    """Where the answer goes instead of the screen; see `unattended`."""


class IdleAnswer(NamedTuple):
    """What it was told."""

    out: str
    err: str
    until: float | None = None
    """Unix time from which the answer may be another one. One without an end is never repeated."""
    since: float = 0.0
    """Unix time at which it was given; before that the clock was set back."""
    is_rest: bool = False
    """Whether nothing starts by itself until then, so that what stood in the way is over."""


def answers(arguments: Sequence[str]) -> bool:
    """Answer *arguments* if they are a tick whose answer is known; return whether they were."""
    try:
        question = ask(arguments, os.environ)
        answer = None if question is None else recall(question)
        if answer is None or not _is_plain(answer.err + answer.out):
            return False
        if question is not None and question.log is not None:
            said = answer.err + answer.out
            return unattended.repeated(question.log, said, is_rest=answer.is_rest)
        if sys.stderr is not None:
            sys.stderr.write(answer.err)
        sys.stdout.write(answer.out)
        sys.stdout.flush()
    except (AttributeError, OSError, ValueError, SequencerError):
        # Whatever is wrong, the long way says it in words.
        return False
    return True


def _is_plain(text: str) -> bool:
    """Return whether a terminal shows *text* as it is; the file may be anybody's."""
    return all(map(str.isprintable, text.split("\n")))


def ask(arguments: Sequence[str], env: Mapping[str, str]) -> IdleQuestion | None:
    """Return the question that *arguments* ask; None if they are no tick.

    Raises:
        ConfigurationError: the project can't be found.
    """
    places = _places(arguments)
    if places is None:
        return None

    config, run = places.get("--config"), places.get("--run")
    found = locate(Path(), None if config is None else Path(config), env)
    state_path = found.state_path
    if run is not None:
        state_path = state_path.parent / "runs" / slug(run) / state_path.name
    settings = sorted(item for item in env.items() if item[0].startswith("SEQUENCER_"))
    # The folder too: answers name files as they are called from there.
    folder = os.getcwd()  # noqa: PTH109 - no Path for what is only compared
    paths = [folder, str(found.config_path), str(state_path)]
    asked = [__version__, list(arguments), *paths, settings]
    digest = blake2b(json.dumps(asked).encode(), digest_size=16)
    if found.config_path is not None:
        digest.update(read_bytes(found.config_path))
    log = places.get("--log")
    return IdleQuestion(digest.hexdigest(), state_path, None if log is None else Path(log))


def _places(arguments: Sequence[str]) -> dict[str, str] | None:
    """Return the options that say where the run and its log are, if this is a tick.

    A value that looks like one of these options misleads it; the run that is then looked
    at has no answer to this question.
    """
    found: dict[str, str] = {}
    is_tick = False
    rest = iter(arguments)
    for argument in rest:
        name, separator, value = argument.partition("=")
        if name in ("--config", "--run", "--log"):
            following = value if separator else next(rest, None)
            if following is None:
                return None
            found[name] = following
        elif not is_tick and argument != "tick" and argument not in _FLAGS:
            return None
        is_tick = is_tick or argument == "tick"
    return found if is_tick else None


def recall(question: IdleQuestion, now: float | None = None) -> IdleAnswer | None:
    """Return the answer that *question* had, if nothing has changed since."""
    path = question.state_path
    try:
        state = read_regular(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        return None
    answer = _answer(_kept(path, state).get(question.key))
    if answer is None or not _is_newest(path, state):
        return None
    now = time.time() if now is None else now
    until = min(answer.until or 0.0, answer.since + DAY_S)
    return answer if answer.since <= now < until else None


def remember(question: IdleQuestion, answer: IdleAnswer, revision: int) -> None:
    """Keep *answer* to *question* about the state of *revision*; without an end it is not kept.

    Failing to is nobody's error: the next tick takes the long way again.
    """
    if answer.until is None:
        return
    state_path = question.state_path
    with contextlib.suppress(OSError, SequencerError):
        state = read_regular(state_path, max_bytes=MAX_BYTES)
        # Another one may have come since the question was answered.
        if _parsed(state).get("revision") != revision or not _is_newest(state_path, state):
            return
        known = _kept(state_path, state)
        known[question.key] = answer._replace(since=time.time())._asdict()
        newest = dict(list(known.items())[-MAX_ANSWERS:])
        told = {"state_file": str(state_path), "state": _digest(state), "answers": newest}
        put_own(
            unattended.FOLDER, record_name(state_path), json.dumps(told).encode(), durably=False
        )
        # Earlier versions kept the answer there.
        remove(state_path.with_name("idle.json"))


def _kept(state_path: Path, state: bytes) -> dict[str, Any]:
    """Return the answers that are about the present *state*."""
    data = read_own(unattended.FOLDER, record_name(state_path), MAX_BYTES)
    memory = {} if data is None else _parsed(data)
    known = memory.get("answers")
    return known if isinstance(known, dict) and memory.get("state") == _digest(state) else {}


def record_name(state_path: Path) -> str:
    """Return the name of the record about the run at *state_path*."""
    return f"{_digest(os.fsencode(state_path))}.idle.json"


def _is_newest(state_path: Path, state: bytes) -> bool:
    """Return whether *state* is what the journal's last record says, and nothing follows it."""
    head = _parsed(state)
    offset = head.get("journal_offset")
    if type(offset) is not int or offset < 0:
        return False
    # One line is at most 4 MiB (`journal.decode`); more bytes mean that another follows.
    try:
        rest = read_regular(state_path.with_name(JOURNAL), offset, max_bytes=4 * 1024 * 1024)
    except FileNotFoundError:
        return False
    if rest.count(b"\n") != 1 or not rest.endswith(b"\n"):
        return False
    try:
        record = decode(rest[:-1])
    except ValueError:
        return False
    return bool(record["revision"] == head.get("revision") and record["head"] == head)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        return parse_object(data)
    except ValueError:
        return {}


def _answer(kept: object) -> IdleAnswer | None:
    if not isinstance(kept, dict) or set(kept) != set(IdleAnswer._fields):
        return None
    found = IdleAnswer(**kept)
    is_sound = isinstance(found.out, str) and isinstance(found.err, str)
    is_timed = isinstance(found.since, float) and isinstance(found.until, float)
    return found if is_sound and is_timed and isinstance(found.is_rest, bool) else None


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
