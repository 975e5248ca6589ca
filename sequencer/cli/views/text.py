"""Makes text from other sources safe to show on a terminal, or in a pipe that ends at one.

Control sequences could retitle the window, move the cursor over earlier output, or make the
terminal answer. All of them are removed, even if they are split over chunks. Tabs and line ends
stay; text that a carriage return would overwrite is left out; bytes that are not UTF-8 become
U+FFFD. Characters that change the direction of text and invisible characters are removed too.
Pure, except for questions to the terminal: its width and colors.
"""

from __future__ import annotations

import codecs
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import IO

from sequencer.executors.redaction import CONTROL, CSI, STRING, STRING_CHARS, strip_sequences
from sequencer.model.limits import parse_time

BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that change the direction of the text around them, so that it reads as another text.

Joiners (U+200C, U+200D) are not among them: words and emoji need them.
"""
_BLANK = "\u00ad\u034f\u115f\u1160\u180e\u2800\u3164\uffa0"
"""Letters and signs without a visible shape: fillers, a soft hyphen, Braille without a dot."""
UNSEEN = f"{BIDI}{_BLANK}\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"
"""All of these, and zero-width characters. Two names that differ only in them look the same, and
tag characters can spell whole sentences that a model reads but no person sees."""
_UNSEEN = re.compile(f"[{UNSEEN}]")
_SUSPICIOUS = re.compile(f"{CONTROL}|[\r\ud800-\udfff{UNSEEN}]")
_OPEN = re.compile(f"(?:{CSI}|{STRING}|\x1b[ -/]*)")
_INTRODUCERS = "\x1b\x9b\x90\x98\x9d\x9e\x9f"


def strip_controls(text: str) -> str:
    r"""Return *text* without control sequences.

    >>> strip_controls("\x1b]0;owned\x07red: \x1b[31mno\x1b[0m\x08 10%\r100%\r\n")
    '100%\n'
    """
    if _SUSPICIOUS.search(text) is None:
        return text
    return _drop_overwritten(_UNSEEN.sub("", strip_sequences(text)))


def one_line(text: str) -> str:
    r"""Return *text* without control sequences, with every run of blanks as one space.

    >>> one_line(" two\n\tlines\x1b[2J ")
    'two lines'
    """
    return " ".join(strip_controls(text).split())


def _drop_overwritten(text: str) -> str:
    """Return *text* with each line as a terminal shows it after its carriage returns."""
    if "\r" not in text:
        return text
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(lines)


class Sanitizer:
    """Makes a stream of bytes safe, chunk by chunk."""

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._is_mid_line = False

    def feed(self, data: bytes) -> str:
        """Return the part of the stream that can be shown now and was not returned before."""
        text = self._sanitize(self._decoder.decode(data))
        if text:
            self._is_mid_line = not text.endswith("\n")
        return text

    def finish(self) -> str:
        """Return the rest of the stream; the next chunk starts another stream."""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held, self._is_mid_line = "", False
        self._decoder.reset()
        return strip_controls(text)

    def _sanitize(self, text: str) -> str:
        text = self._held + text
        if _SUSPICIOUS.search(text) is None:
            self._held = ""
            return text
        cut_offset = _find_unfinished(text)
        self._held = text[cut_offset:]
        stable_text = text[:cut_offset]
        # Only the next chunk shows whether a carriage return ends a line or overwrites it.
        body = stable_text.rstrip("\r")
        if len(body) < len(stable_text):
            self._held = "\r" + self._held
        elif self._is_mid_line and re.match("\r+(?!\n)", stable_text):
            # The text that it would overwrite was already returned; a line end separates the two.
            body = "\n" + body
        return strip_controls(body)


def _find_unfinished(text: str) -> int:
    """Return the offset of an unfinished sequence at the end of *text*, or the length of *text*."""
    start = max(text.rfind(introducer) for introducer in _INTRODUCERS)
    if start < 0 or len(text) - start > STRING_CHARS:
        return len(text)
    return start if _OPEN.fullmatch(text, start) else len(text)


_BEGINNING = re.compile(r"\s*(?:\| |- |\S+(?: \S+)*\s{2,}(?=\S))?")
"""The start of a line: its indentation, then a quotation or list mark, or a label."""


def width(text: str) -> int:
    r"""Return how many columns *text* takes on a terminal.

    >>> width("plan"), width("計画"), width("e\u0301"), width("ที่")
    (4, 4, 1, 1)
    """
    if text.isascii():
        return len(text)
    return sum(map(_columns_of_character, text))


def _columns_of_character(character: str) -> int:
    # Not `unicodedata.combining`: Thai vowels, for example, are placed above a letter without it.
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def terminal_width(stream: IO[str] | None) -> int | None:
    """Return the width of the terminal at the end of *stream*; None: there is no terminal."""
    try:
        if stream is None or not stream.isatty():
            return None
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def has_color(stream: IO[str] | None) -> bool:
    """Return whether *stream* is a terminal with colors, and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return terminal_width(stream) is not None


def can_write(stream: IO[str] | None, text: str) -> bool:
    """Return whether the encoding of *stream* can encode every character of *text*."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def cut(text: str, columns: int, *, dots: str = "…") -> str:
    """Return *text*, cut at its end to at most *columns* columns of a terminal.

    >>> cut("security", 5), cut("計画計画", 5), cut("plan", 4), cut("plan", 0)
    ('secu…', '計画…', 'plan', '')
    """
    if width(text) <= columns:
        return text
    columns_left, start = columns - width(dots), ""
    if columns_left < 0:
        return ""
    for character in text:
        columns_left -= width(character)
        if columns_left < 0:
            break
        start += character
    return start + dots


def fit_names(names: Sequence[str], columns: int, *, more: str = " and {} more") -> str:
    """Return as many of *names* as fit into *columns*, and the number of the others.

    >>> fit_names(["plan", "search", "history"], 20), fit_names(["plan", "search"], 3)
    ('plan and 2 more', 'plan and 1 more')
    """
    text = ", ".join(names)
    for count in range(len(names) - 1, 0, -1):
        if width(text) <= columns:
            break
        text = ", ".join(names[:count]) + more.format(len(names) - count)
    return text


def pluralize(count: int, noun: str) -> str:
    """Return *count* and *noun*, in the plural unless *count* is 1.

    >>> pluralize(1, "step"), pluralize(20, "step")
    ('1 step', '20 steps')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shorten_middle(text: str, columns: int, *, dots: str = "…") -> str:
    """Return a name in at most *columns* columns, cut in the middle: names often differ at the end.

    >>> shorten_middle("implement-the-new-parser-12", 16), shorten_middle("plan", 16)
    ('implemen…rser-12', 'plan')
    """
    if width(text) <= columns:
        return text
    text_columns = columns - width(dots)
    tail = cut(text[::-1], text_columns // 2, dots="")[::-1]
    return cut(text, text_columns - width(tail), dots="") + dots + tail


def wrap_prose(text: str, max_width: int | None) -> str:
    r"""Return prose with every line in at most *max_width* columns, broken at blanks.

    A broken line continues below its start; if it has a label, below its value. A word that is
    longer than a line is not broken, so that a path can still be copied.

    >>> print(wrap_prose("run       the nightly run of Tuesday\n  | a quoted line", 22))
    run       the nightly
              run of
              Tuesday
      | a quoted line
    """
    if max_width is None:
        return text
    return "\n".join(piece for line in text.split("\n") for piece in _wrap_line(line, max_width))


def _wrap_line(line: str, max_width: int) -> Iterator[str]:
    match = _BEGINNING.match(line)
    if width(line) <= max_width or match is None:
        yield line
        return
    indent = match[0]
    words = line[len(indent) :].split(" ")
    next_indent = indent if indent.endswith("| ") else " " * width(indent)
    if width(next_indent) * 2 > max_width or max(map(width, words)) > max_width - width(
        next_indent
    ):
        next_indent = " " * (len(line) - len(line.lstrip()) + 2)
    row_words: list[str] = []
    for word in words:
        if width(indent + " ".join([*row_words, word])) > max_width and (
            row_words or indent.strip()
        ):
            yield (indent + " ".join(row_words)).rstrip()
            row_words, indent = [], next_indent
        row_words.append(word)
    yield indent + " ".join(row_words)


def format_clock(seconds: float) -> str:
    """Return *seconds* as minutes and seconds, with hours if there are any.

    >>> format_clock(9.9), format_clock(75), format_clock(7_260)
    ('0:09', '1:15', '2:01:00')
    """
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}" if hours else f"{minutes}:{seconds_left:02d}"


def file_size(count: int) -> str:
    """Return *count* bytes in the largest unit that fits.

    >>> file_size(900), file_size(2048), file_size(3 * 1024 * 1024)
    ('900 bytes', '2.0 KiB', '3.0 MiB')
    """
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":  # noqa: PLR2004 - a binary unit
            return f"{count} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


def age_s(at: str | None) -> float | None:
    """Return the seconds since the ISO time *at*, at least 0; None if *at* is not a time."""
    moment = parse_time(at) if at else None
    if moment is None:
        return None
    # The time is in the future if a machine whose clock is ahead wrote it.
    return max((datetime.now(UTC) - moment).total_seconds(), 0.0)
