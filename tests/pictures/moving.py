"""A moving picture of terminals: what stood on which line, and from when to when.

One SVG without a script. A line is a text that is visible for a while; a reader who wants no
motion, or a program that knows none, sees the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

Line = tuple[tuple[str, str], ...]
"""Pieces of one line: text, and its color ("" for the usual one)."""
CHAR, ROW, PAD, TITLE, CAPTION = 7.9, 18.0, 8.0, 26.0, 34.0
COLORS = {
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
}
_STYLE = """\
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;\
fill:#d6dde6;white-space:pre}
.title{fill:#8b98a9;font-size:12px}
.caption{fill:#57606a;font:600 15px system-ui,sans-serif}
@media(prefers-color-scheme:dark){.caption{fill:#c9d1d9}}
.gone{visibility:hidden}
@media(prefers-reduced-motion:reduce){text{animation:none!important}}
"""


@dataclass(frozen=True)
class Frame:
    """What all terminals show from *at* (in seconds) on, and what is said about it."""

    at: float
    caption: str
    screens: tuple[tuple[Line, ...], ...]


def _spans(
    frames: Sequence[Frame], lines: Iterable[Line], end: float
) -> list[tuple[Line, float, float]]:
    """Return (line, from, until) for each time that something stood at one place."""
    at = [frame.at for frame in frames] + [end]
    found = []
    for line, group in groupby(enumerate(lines), key=lambda one: one[1]):
        places = [place for place, _ in group]
        if line:
            found.append((line, at[places[0]], at[places[-1] + 1]))
    return found


class _Drawing:
    def __init__(self, end: float) -> None:
        self._end = end
        self._keys: dict[tuple[float, float], str] = {}
        self.texts: list[str] = []

    def add(
        self, line: Line, place: tuple[float, float], kind: str, span: tuple[float, float]
    ) -> None:
        """Draw *line* at *place*, visible within *span*."""
        start, until = span
        parts, column = [], 0
        for text, color in line:
            fill = f' fill="{COLORS[color]}"' if color in COLORS else ""
            at = f' x="{place[0] + column * CHAR:g}"' if kind != "caption" else ""
            if text.strip():
                parts.append(f"<tspan{at}{fill}>{escape(text.rstrip())}</tspan>")
            column += len(text)
        classes = [kind] * bool(kind) + ["gone"] * (until < self._end)
        named = f' class="{" ".join(classes)}"' if classes else ""
        moving = ""
        if start > 0 or until < self._end:
            key = self._keys.setdefault((start, until), f"k{len(self._keys)}")
            moving = f' style="animation:{key} {self._end:g}s step-end infinite"'
        x, y = place
        self.texts.append(f'<text x="{x:g}" y="{y:g}"{named}{moving}>{"".join(parts)}</text>')

    def style(self) -> str:
        """Return the rules of the texts that come and go."""
        rules = [_STYLE]
        for (start, until), key in self._keys.items():
            shown = f"{100 * start / self._end:.2f}%{{visibility:visible}}"
            before = "0%{visibility:hidden}" if start > 0 else ""
            after = f"{100 * until / self._end:.2f}%{{visibility:hidden}}"
            rules.append(f"@keyframes {key}{{{before}{shown}{after if until < self._end else ''}}}")
        return "\n".join(rules)


def moving_picture(
    frames: Sequence[Frame], titles: Sequence[str], size: tuple[int, int], rest_s: float
) -> str:
    """Return the SVG; the end stays for *rest_s*. *size* is columns and rows of a terminal."""
    columns, rows = size
    end = frames[-1].at + rest_s
    width = columns * CHAR + 2 * PAD
    height = TITLE + rows * ROW + PAD
    drawing, boxes = _Drawing(end), []
    for line, start, until in _spans(frames, [((one.caption, ""),) for one in frames], end):
        drawing.add(line, (PAD, CAPTION - 12), "caption", (start, until))
    for number, title in enumerate(titles):
        top = CAPTION + number * (height + PAD)
        boxes.append(f'<rect y="{top:g}" width="{width:g}" height="{height:g}" rx="9"/>')
        drawing.add(((title, ""),), (PAD, top + 18), "title", (0, end))
        for row in range(rows):
            lines = [frame.screens[number][row] for frame in frames]
            for line, start, until in _spans(frames, lines, end):
                y = top + TITLE + (row + 1) * ROW - 4
                drawing.add(line, (PAD, y), "", (start, until))
    whole = CAPTION + len(titles) * (height + PAD) - PAD
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {whole:g}"'
        f' width="{width:g}" height="{whole:g}" role="img">'
        f"<title>{escape(' · '.join(titles))}</title><style>{drawing.style()}</style>"
        f'<g fill="#0f1720">{"".join(boxes)}</g>{"".join(drawing.texts)}</svg>\n'
    )
