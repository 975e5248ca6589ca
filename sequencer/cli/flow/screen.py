"""The drawing of a graph on whatever is at the end of a stream."""

from __future__ import annotations

import os
from typing import IO

from sequencer.cli.flow.drawing import Drawing, drawing, listing
from sequencer.errors import StorageFailed
from sequencer.model.flow_view import FlowView

NEEDED = "┌╔╭▼╎✓●↻↺…"
"""An encoding that has none of these gets a drawing in ASCII."""


def print_diagram(view: FlowView, stream: IO[str]) -> None:
    """Draw *view* to *stream*: with colours on a terminal, and only as wide as that is.

    A drawing that doesn't fit the terminal is told in words instead, with how to see it; a
    file or a pipe gets it as wide as it is.

    Raises:
        BrokenPipeError: nobody reads any more.
        StorageFailed: it can't be written, because the disk is full for example.
    """
    is_ascii = not can_write(stream, NEEDED)
    columns = _columns(stream) if stream.isatty() else None
    found = drawing(view, columns=columns, is_ascii=is_ascii)
    if columns is not None and found.width > columns:
        found = _told(view, found.width, columns, is_ascii=is_ascii)
    print_drawing(found, stream)


def print_drawing(drawing: Drawing, stream: IO[str]) -> None:
    """Write *drawing* to *stream*, with colours on a terminal.

    Raises: see `print_diagram`.
    """
    text = drawing.text(has_colours=stream.isatty() and not os.environ.get("NO_COLOR"))
    # Names may have letters that the encoding lacks, also where it has the lines.
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = text.encode(encoding, "replace").decode(encoding)
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageFailed(f"can't be written: {error.strerror}", where="the drawing") from error


def _told(view: FlowView, width: int, columns: int, *, is_ascii: bool) -> Drawing:
    hint = (
        f"the drawing takes {width} columns and this terminal has {columns}; "
        "to see it, send it through 'less -S', or make a picture with --svg"
    )
    return Drawing((*listing(view, is_ascii=is_ascii).rows, (), ((hint, "dim"),)))


def _columns(stream: IO[str]) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def can_write(stream: IO[str], text: str) -> bool:
    """Return whether the encoding of *stream* has every character of *text*."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
