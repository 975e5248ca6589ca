"""Cuts a stream of bytes into lines with a bound on memory.

A line above the cap is not an event that anybody wants to parse: its bytes are passed on
as they are, piece by piece, and the next newline starts afresh.
"""

from __future__ import annotations

from collections.abc import Callable

LINE_CAP = 6 * 1024 * 1024
"""An image in an event has 5 MB; a line is held several times, at up to 4 bytes a letter."""


class LineSplitter:
    """Gives whole lines to one function and overlong ones, in pieces, to another."""

    def __init__(
        self,
        take_line: Callable[[bytes], None],
        take_raw: Callable[[bytes], None],
        cap: int,
    ) -> None:
        """Start at the beginning of a line."""
        self._take_line = take_line
        self._take_raw = take_raw
        self._cap = cap
        self._kept = bytearray()
        self._is_overlong = False

    def feed(self, data: bytes) -> None:
        """Take the next piece of the stream."""
        head, *rest = data.split(b"\n")
        self._extend(head)
        for piece in rest:
            self._end_line()
            self._extend(piece)

    def finish(self) -> None:
        """Take the stream's end; a last line may lack its newline."""
        if self._kept:
            self._take_line(bytes(self._kept))
            self._kept.clear()

    def _extend(self, piece: bytes) -> None:
        if self._is_overlong:
            if piece:
                self._take_raw(piece)
            return
        self._kept += piece
        if len(self._kept) > self._cap:
            self._is_overlong = True
            self._take_raw(bytes(self._kept))
            self._kept = bytearray()

    def _end_line(self) -> None:
        if self._is_overlong:
            self._is_overlong = False
            self._take_raw(b"\n")
            return
        line = bytes(self._kept)
        self._kept.clear()
        self._take_line(line)
