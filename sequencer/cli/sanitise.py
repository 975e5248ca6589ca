"""Text of others made safe to show, on a terminal or in a pipe that ends at one.

Control sequences could retitle the window, move the cursor over what was said before, or
make the terminal answer; all of them go, also where they are split over chunks. Tabs and
line ends stay, what a carriage return would overwrite is left out, bytes that are no
UTF-8 become U+FFFD. Characters that turn the direction of text, and those that nobody sees,
go too. Pure: nothing is read or written here.
"""

from __future__ import annotations

import codecs
import re

from sequencer.executors.control_sequences import (
    CONTROL,
    CSI,
    STRING,
    STRING_CHARS,
    without_sequences,
)

BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""What changes the direction of the text around it, so that it reads as what it is not.

Joiners (U+200C, U+200D) are none of them: words and emoji are made with those.
"""
UNSEEN = f"{BIDI}\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"
"""These, and what takes no place on the screen: two names that differ in it look the same, and
tag characters spell whole sentences that nobody sees (and that a model reads)."""
_UNSEEN = re.compile(f"[{UNSEEN}]")
_SUSPICIOUS = re.compile(f"{CONTROL}|[\r\ud800-\udfff{UNSEEN}]")
_OPEN = re.compile(f"(?:{CSI}|{STRING}|\x1b[ -/]*)")
_INTRODUCERS = "\x1b\x9b\x90\x98\x9d\x9e\x9f"


def plain(text: str) -> str:
    r"""Return *text* without control sequences.

    >>> plain("\x1b]0;owned\x07red: \x1b[31mno\x1b[0m\x08 10%\r100%\r\n")
    '100%\n'
    """
    if _SUSPICIOUS.search(text) is None:
        return text
    return _without_overwritten(_UNSEEN.sub("", without_sequences(text)))


def one_line(text: str) -> str:
    r"""Return *text* without control sequences, with every run of blanks as one space.

    >>> one_line(" two\n\tlines\x1b[2J ")
    'two lines'
    """
    return " ".join(plain(text).split())


def _without_overwritten(text: str) -> str:
    """Return *text* with each line as a terminal would leave it after its carriage returns."""
    if "\r" not in text:
        return text
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(lines)


class Sanitiser:
    """Makes a stream of bytes safe, chunk by chunk."""

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._is_line_begun = False

    def feed(self, data: bytes) -> str:
        """Return what of the stream so far can be shown and was not yet returned."""
        shown = self._take(self._decoder.decode(data))
        if shown:
            self._is_line_begun = not shown.endswith("\n")
        return shown

    def finish(self) -> str:
        """Return the rest; the next chunk begins another stream."""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held, self._is_line_begun = "", False
        self._decoder.reset()
        return plain(text)

    def _take(self, text: str) -> str:
        text = self._held + text
        if _SUSPICIOUS.search(text) is None:
            self._held = ""
            return text
        cut = _open_from(text)
        self._held = text[cut:]
        shown = text[:cut]
        # Whether a carriage return ends a line or begins to overwrite it shows later.
        body = shown.rstrip("\r")
        if len(body) < len(shown):
            self._held = "\r" + self._held
        elif self._is_line_begun and re.match("\r+(?!\n)", shown):
            # What it would overwrite has been returned; a new line keeps the two apart.
            body = "\n" + body
        return plain(body)


def _open_from(text: str) -> int:
    """Return where an unfinished sequence begins at the end of *text*, else its length."""
    start = max(text.rfind(introducer) for introducer in _INTRODUCERS)
    if start < 0 or len(text) - start > STRING_CHARS:
        return len(text)
    return start if _OPEN.fullmatch(text, start) else len(text)
