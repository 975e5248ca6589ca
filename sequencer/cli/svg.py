"""What the pictures have in common: texts whose width is guessed, PNG by resvg, safe files.

Whatever an author or an agent wrote is escaped; a picture refers to nothing outside of
itself. In a PNG the texts have a font that comes with the extra ``picture``, so that it
looks the same on a machine without any; what this font lacks (Chinese, say) is taken from
the machine's fonts if it has some.
"""

from __future__ import annotations

import math
from importlib.resources import as_file, files
from pathlib import Path
from xml.sax.saxutils import escape

from sequencer.cli import options as saving
from sequencer.cli.views.text import width as columns_of
from sequencer.errors import ConfigurationError

EXTRA = "pip install 'step-sequencer[picture]'"
FONTS = "DejaVu Sans, Verdana, sans-serif"
TEXT, SMALL = 14, 12
INK, PALE_INK, FAINT = "#212529", "#495057", "#ced4da"
MOST_PIXELS = 24_000_000
SCALE = 2.0
"""Pixels a point, unless the picture is too large for it."""

_NARROW, _WIDE = frozenset("ijlftrI|.,:;'`!()[]{}/\\- "), frozenset("mwMW@%—…→✓✗●○↻↺◇")


def points(text: str, size: int) -> float:
    """Return about how wide *text* is, rather more than less; fonts differ."""
    total = 0.0
    for character in text:
        if columns_of(character) > 1:
            total += 1.0
        elif character in _NARROW:
            total += 0.42
        elif character in _WIDE:
            total += 1.0
        else:
            total += 0.78 if character.isupper() else 0.64
    return total * size


def beginning(wide: int, high: int, title: str) -> tuple[str, str, str]:
    """Return the lines that a picture begins with: its size, its title, white paper."""
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" font-family="{FONTS}">'
    )
    return (
        opening,
        f"<title>{escape(title)}</title>",
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    )


def words(
    text: str, x: float, y: float, colour: str, *, size: int = TEXT, anchor: str = "start"
) -> str:
    """Return the element that shows *text*."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def png_of(text: str) -> bytes:
    """Return the SVG document *text*, one of ours, as a PNG picture.

    Raises:
        ConfigurationError: what draws it is not installed.
    """
    try:
        import resvg_py  # noqa: PLC0415 - an extra that few want

        font = files("ziafont") / "fonts" / "DejaVuSans.ttf"
    except ImportError as error:
        raise ConfigurationError("a PNG picture needs the extra 'picture'", hint=EXTRA) from error
    wide, high = _size(text)
    scale = min(SCALE, math.sqrt(MOST_PIXELS / (wide * high)))
    with as_file(font) as path:
        return bytes(
            resvg_py.svg_to_bytes(
                svg_string=text,
                zoom=scale,
                font_files=[str(path)],
                font_family="DejaVu Sans",
                sans_serif_family="DejaVu Sans",
            )
        )


def save(path: Path, data: bytes) -> None:
    """Write a picture to *path*, all of it or nothing, in place of an earlier picture.

    Raises:
        UsageRefused: *path* is something else than a picture.
        StorageFailed: it can't be written.
    """
    saving.save(path, data, is_ours=_is_picture, what="a picture")


def _is_picture(beginning: bytes) -> bool:
    head = beginning.lstrip()
    return not head or head.startswith((b"\x89PNG\r\n", b"<svg")) or b"<svg" in head


def _size(text: str) -> tuple[int, int]:
    """Return the points that the first line of an SVG document of ours names."""
    head = text.partition("\n")[0].split('"')
    return int(head[3]), int(head[5])
