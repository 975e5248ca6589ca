"""The table of campaigns in the documents, with the figures of the last runs.

It stands between two comments and is written by the program only; a run fills in its own
column and leaves the other as it was.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.long.report import Campaign, Size

START, END = "<!-- campaigns: start -->", "<!-- campaigns: end -->"
HEADER = "| campaign | what happens | on every push | in the long programme |"
COLUMNS = {Size.SHORT: 2, Size.LONG: 3}
LAST_RUN = "Last long run:"
UNKNOWN = "-"
_REFERENCE = re.compile(r"^See `[^`]*`[;:.]? *")
_ROW = re.compile(r"^\| `(?P<name>[^`]+)` \|(?P<cells>.*)\|$")


class NoPlace(Exception):
    """The page lacks the two comments between which the table belongs."""


def told(function: Campaign) -> str:
    """Return what *function* does: the first line of its docstring, or of its module's."""
    module = inspect.getmodule(function)
    for text in (inspect.getdoc(function), module and inspect.getdoc(module)):
        line = _REFERENCE.sub("", (text or "").partition("\n")[0]).rstrip(".:")
        if line:
            return (line[0].upper() + line[1:]).replace("|", "/").replace("``", "`")
    return ""


def amount(report: Mapping[str, Any]) -> str:
    """Return the counts of one campaign's *report* as words."""
    counts = ", ".join(f"{count:,} {what}" for what, count in report["counts"].items())
    broken = len(report["violations"])
    return f"{counts or UNKNOWN}; **violations: {broken}**" if broken else counts or UNKNOWN


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the cells of each campaign's row on the page *text*."""
    found = {}
    for line in text.partition(START)[2].partition(END)[0].splitlines():
        if match := _ROW.match(line):
            found[match["name"]] = [cell.strip() for cell in match["cells"].split("|")]
    return found


def rewritten(
    text: str,
    campaigns: Mapping[str, Campaign],
    size: Size,
    reports: Iterable[Mapping[str, Any]] = (),
    run: str = "",
) -> str:
    """Return the page *text* with a table of *campaigns*, filled in from *reports*.

    *run* says when and where a long run was; without it, what is there stays.

    Raises:
        NoPlace: the comments are missing, so that anything could be overwritten.
    """
    before, start, rest = text.partition(START)
    inside, end, after = rest.partition(END)
    if not start or not end:
        raise NoPlace(f"{START} and {END} have to be in the page")
    known, new = rows_of(text), {report["name"]: amount(report) for report in reports}
    lines = [HEADER, "|---|---|---|---|"]
    for name in sorted(campaigns):
        cells = [f"`{name}`", told(campaigns[name]), *known.get(name, ["", UNKNOWN, UNKNOWN])[1:]]
        cells[COLUMNS[size]] = new.get(name, cells[COLUMNS[size]])
        lines.append(f"| {' | '.join(cells)} |")
    _, begin, last = inside.partition(LAST_RUN)
    last = run or begin + last.rstrip()
    body = "\n".join([*lines, *(["", last] if last else [])])
    return f"{before}{START}\n{body}\n{END}{after}"


def run_line(report: Mapping[str, Any]) -> str:
    """Return the paragraph about the whole long run of which *report* tells."""
    machine = report["machine"]
    counts = ", ".join(f"{count:,} {what}" for what, count in report["counts"].items())
    return textwrap.fill(
        f"{LAST_RUN} {report['at'][:10]}, {machine['platform']}, {machine['processors']} "
        f"processors, Python {machine['python']}, {report['minutes']:.0f} minutes together: "
        f"{counts}. "
        f"**Violations: {report['violations']}.**",
        width=118,
    )


def write(page: Path, report: Mapping[str, Any], campaigns: Mapping[str, Campaign]) -> None:
    """Write the figures of *report* into the table on *page*."""
    size = Size(report["size"])
    is_whole = size is Size.LONG and {r["name"] for r in report["campaigns"]} == set(campaigns)
    run = run_line(report) if is_whole else ""
    text = page.read_text(encoding="utf-8")
    page.write_text(rewritten(text, campaigns, size, report["campaigns"], run), encoding="utf-8")
