"""Hides secrets in what is written down: logs, messages, state and journal.

Two kinds are known: the values of variables whose names say that they are secret, and
strings that look like the keys of well-known services. Not promised: to find a secret
that is neither, one that was encoded (base64, say) or cut up on purpose, or one that is
longer than `WINDOW`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from sequencer.executors.secret_rules import (
    BEGINNINGS,
    BEGUN,
    FOUND,
    LETTERS,
    LONGEST_START,
    PARTS,
    SEARCH,
)

HIDDEN = b"[secret]"
MIN_VALUE = 8
"""Characters; a shorter value ("test", "1") would hide ordinary words everywhere."""
WINDOW = 32_768
"""Bytes that a stream holds back at most, and the longest secret that it finds."""

_SECRET_NAME = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
_PEM_MARK = b"-----BEGIN "
_PEM_HEAD = rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BODY = rb"(?:[A-Za-z0-9+/=:, \r\n-]|\\[nr]){0,30000}"
_PEM = re.compile(_PEM_HEAD + _PEM_BODY)
_PEM_FINISHED = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_HEAD_BEGUN = re.compile(_PEM_MARK + rb"[A-Z0-9 ]{0,60}-{0,5}\Z")
_PARTS = PARTS | {_PEM_MARK[:n]: re.compile(b"") for n in range(1, len(_PEM_MARK))}
_PEM_HEAD_LENGTH = 90
"""Bytes of the longest first line of a private key."""
_ADDRESS_LENGTH = 600
"""Bytes of the longest login in an address."""
_ADDRESS_BEGUN = re.compile(rb"://[^\s/?#@\"'<>\\]*\Z")
_BLANK_HEAD = len(b"bearer ")
"""Two beginnings end with a blank, where no other key goes on."""


class Redaction:
    """Knows the secrets of one process; safe to share between threads."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Hide *values* beside everything that is shaped like a key."""
        forms = {form for value in values if len(value) >= MIN_VALUE for form in _forms(value)}
        self._values = tuple(sorted(form for form in forms if len(form) <= WINDOW))
        self.hide_name = lru_cache(256)(self.hide_text)
        """`hide_text` of what each step says again."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Redaction:
        """Return the redaction for the secret variables of *environment*.

        >>> Redaction.of({"API_KEY": "hunter2-hunter2"}).hide_text("it is hunter2-hunter2.")
        'it is [secret].'
        """
        return cls(value for name, value in environment.items() if _SECRET_NAME.search(name))

    def hide(self, data: bytes) -> bytes:
        """Return *data* with each secret replaced by ``[secret]``."""
        return _without(data, self._spans(data)) if self._may_hold(data) else data

    def _may_hold(self, data: bytes) -> bool:
        """Return whether there is the beginning of a secret, as there is in very little data."""
        is_shaped = SEARCH.search(data) is not None or _PEM_MARK in data
        return is_shaped or any(value in data for value in self._values)

    def hide_text(self, text: str) -> str:
        """Return *text* with each secret replaced."""
        if not text:
            return text
        data = text.encode("utf-8", "surrogatepass")
        return self.hide(data).decode("utf-8", "surrogatepass")

    def stream(self) -> RedactionStream:
        """Return a redaction of one stream that comes in pieces."""
        return RedactionStream(self)

    def hide_settled(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what can be written of *data*, and what the next bytes may yet change."""
        spans = self._spans(data)
        cut = min(self._unfinished_value(data), _unfinished_shape(data))
        # A secret may end like it begins: its end must not be taken for a new beginning.
        cut = next((start for start, end in spans if start < cut < end), cut)
        if len(data) - cut > WINDOW:
            cut = len(data) - WINDOW
            cut = next((end for start, end in spans if start < cut < end), cut)
        return _without(data[:cut], [span for span in spans if span[1] <= cut]), data[cut:]

    def _unfinished_value(self, data: bytes) -> int:
        cut = len(data)
        for value in self._values:
            place = data.find(value[:1], max(len(data) - len(value) + 1, 0))
            while 0 <= place < cut:
                if value.startswith(data[place:]):
                    cut = place
                    break
                place = data.find(value[:1], place + 1)
        return cut

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return where secrets are, in order; those that overlap are one."""
        found = []
        for value in self._values:
            place = data.find(value)
            while place >= 0:
                found.append((place, place + len(value)))
                place = data.find(value, place + 1)
        found += _shaped(data)
        found += [(start, end) for start, end, _ in _pem_blocks(data)]
        merged: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged


class RedactionStream:
    """Hides secrets in a stream, also those that two pieces share.

    What could be the beginning of a secret is held back until it is one or is not; a
    complete line waits only inside a private key or a secret of several lines.
    """

    def __init__(self, redaction: Redaction) -> None:
        """Start with nothing held back."""
        self._redaction = redaction
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return what can be written."""
        written, self._held = self._redaction.hide_settled(self._held + data)
        return written

    def finish(self) -> bytes:
        """Return what was held back; the stream has ended."""
        held, self._held = self._held, b""
        return self._redaction.hide(held) if held else held


def _forms(value: str) -> set[bytes]:
    """Return a secret as it is, and as event streams write it: in JSON, with escapes."""
    texts = (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    return {text.encode("utf-8", "surrogateescape") for text in texts}


def _pem_blocks(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield begin and end of each private key, and whether it may go on."""
    start = data.find(_PEM_MARK)
    while start >= 0:
        end = start + 1
        block = _PEM.match(data, start)
        if block is not None:
            finished = _PEM_FINISHED.search(data, start, block.end())
            # One that was cut off is hidden as far as it looks like one.
            end = finished.end() if finished else block.end()
            # A lone backslash may become the \\n of a key in JSON.
            yield start, end, not finished and data[end:] in {b"", b"\\"}
        start = data.find(_PEM_MARK, end)


def _without(data: bytes, spans: list[tuple[int, int]]) -> bytes:
    pieces, place = [], 0
    for start, end in spans:
        pieces += [data[place:start], HIDDEN]
        place = end
    return b"".join((*pieces, data[place:])) if pieces else data


def _shaped(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where what is shaped like a key is; of some the word before it stays readable."""
    done = 0
    for hit in SEARCH.finditer(data):
        start = FOUND[(hit.lastindex or 1) - 1]
        place = start.place(hit)
        # A key may hold what looks like another one's beginning.
        key = start.key.match(data, place) if place >= done else None
        if key is not None and start.rule.holds(key[1]):
            done = key.end(1)
            yield key.span(1)


def _unfinished_shape(data: bytes) -> int:
    """Return where a key or a private key block begins that may go on, else the length."""
    size = len(data)
    # No key spans lines or blanks, but the word "Bearer " stands before one.
    first = max(data.rfind(b"\n") + 1, size - WINDOW)
    cuts = [size, *(start for start, _, is_open in _pem_blocks(data) if is_open)]
    for length in range(1, min(LONGEST_START, size - first + 1)):
        border = _PARTS.get(data[size - length :])
        if border is not None and border.match(data, size - length):
            cuts.append(size - length)
    word = first + len(data[first:].rstrip(LETTERS))
    for hit in BEGUN.finditer(data, max(word - _BLANK_HEAD, first)):
        start = BEGINNINGS[(hit.lastindex or 1) - 1]
        if start.place(hit) + len(start.text) >= word:
            cuts.append(start.place(hit))
            break
    address = data.rfind(b"://", max(first, size - _ADDRESS_LENGTH))
    if address >= 0 and _ADDRESS_BEGUN.match(data, address):
        cuts.append(address)
    head = data.rfind(_PEM_MARK, max(first, size - _PEM_HEAD_LENGTH))
    if head >= 0 and _PEM_HEAD_BEGUN.match(data, head):
        cuts.append(head)
    return min(cuts)
