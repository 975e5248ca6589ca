"""From the command line to a request: a text, labels, comments, files."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from sequencer.errors import ConfigurationError, UnsafePath, UsageRefused
from sequencer.model.names import slug
from sequencer.model.request import Request

MAX_BYTES = 4 * 1024 * 1024
MAX_NAME_CHARS = 40
_HEADING = re.compile(r"^#{1,6}\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the options say."""

    text: str | None
    file: Path | None
    labels: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    attachments: tuple[str, ...] = ()


def request_of(
    wanted: Wanted, project: Path, hide: Callable[[str], str] = lambda text: text
) -> Request:
    """Return the request that *wanted* describes, without the secrets that *hide* knows.

    Raises:
        UsageRefused: there is no text, or two; a label or the text can't be one.
        ConfigurationError: the file can't be read.
        UnsafePath: an attachment is not a file of the *project*.
    """
    text = hide(_text(wanted))
    lines = text.strip().splitlines()
    if not lines:
        raise UsageRefused("the request is empty", hint="its first line says what is to be done")
    title = _HEADING.sub("", lines[0].strip())
    try:
        return Request(
            title=_shortened(title),
            # A title that was cut stands whole in the text.
            text="\n".join(lines if len(title) > MAX_TITLE_CHARS else lines[1:]).strip(),
            labels=tuple(dict.fromkeys(label.strip() for label in wanted.labels)),
            comments=tuple(map(hide, wanted.comments)),
            attachments=tuple(attached(name, project) for name in wanted.attachments),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageRefused(f"{place}: {first['msg']}", where="the request") from None


MAX_TITLE_CHARS = 300


def _shortened(title: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in title)
    return plain if len(plain) <= MAX_TITLE_CHARS else f"{plain[: MAX_TITLE_CHARS - 1]}…"


def _text(wanted: Wanted) -> str:
    if wanted.text is not None and wanted.file is not None:
        raise UsageRefused("give a text or --file, not both")
    if wanted.file is not None:
        return _decoded(_read(wanted.file), str(wanted.file))
    return said(wanted.text or "")


def said(text: str) -> str:
    """Return what an argument says; ``-`` is standard input.

    Raises:
        UsageRefused: that is closed, too long or no UTF-8.
    """
    if text != "-":
        return text
    if sys.stdin is None:
        raise UsageRefused("standard input is closed")
    return _decoded(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")


def _read(path: Path) -> bytes:
    try:
        # A fifo would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", where=str(path)) from error


def _decoded(data: bytes, where: str) -> str:
    if len(data) > MAX_BYTES:
        raise UsageRefused(f"has more than {MAX_BYTES} bytes", where=where)
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise UsageRefused("is not UTF-8", where=where, hint="save it as UTF-8") from None


def attached(name: str, project: Path) -> str:
    """Return *name*, a path as the caller's folder has it, relative to the *project*.

    Raises:
        UnsafePath: it is no regular file, or leads out of the project; an agent would be
            told to read it.
    """
    if not name or not name.isprintable():
        raise UnsafePath(f"attachment {name!a} is no printable path", where="--attach")
    real = Path(os.path.realpath(name))
    root = Path(os.path.realpath(project))
    if not real.is_relative_to(root):
        raise UnsafePath(
            f"attachment {name!r} is outside the project ({root})",
            where="--attach",
            hint="copy it into the project",
        )
    if not real.is_file():
        raise UnsafePath(f"attachment {name!r} is no regular file", where="--attach")
    return real.relative_to(root).as_posix()


def free_name(title: str, taken: Collection[str]) -> str:
    """Return a name for a run of a request called *title*, none of *taken*.

    >>> free_name("Debug: login timeout!", {"debug-login-timeout"})
    'debug-login-timeout-2'
    """
    ascii_only = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", ascii_only.lower()).strip("-")
    base = words[:MAX_NAME_CHARS].strip("-") or "request"
    known = {slug(name) for name in taken}
    number, name = 1, base
    while slug(name) in known:
        number += 1
        name = f"{base}-{number}"
    return name
