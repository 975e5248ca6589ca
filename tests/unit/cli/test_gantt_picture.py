from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.cli.views.gantt import STYLES, Gantt, Look
from sequencer.cli.views.pictures import MOST_ROWS, gantt_svg, png_of, points
from sequencer.errors import UsageRefused
from tests.unit.cli.charts import chart, side_by_side, team, troubled
from tests.unit.history.journal_facts import Told

SPACE = "{http://www.w3.org/2000/svg}"


def parsed(shown: Gantt) -> ET.Element:
    return ET.fromstring(gantt_svg(shown))  # noqa: S314 - our own


def bars(root: ET.Element, look: Look) -> list[tuple[float, float, float]]:
    """Return place, height and width of each bar of *look*, without the legend's."""
    return [
        tuple(float(found.attrib[name]) for name in ("x", "y", "width"))  # type: ignore[misc]
        for found in root.iter(f"{SPACE}rect")
        if found.attrib.get("fill") == STYLES[look].fill and found.find(f"{SPACE}title") is not None
    ]


def texts(root: ET.Element) -> list[str]:
    return [found.text or "" for found in root.iter(f"{SPACE}text")]


def numbers(root: ET.Element) -> Iterator[tuple[float, float]]:
    """Yield every point that is named."""
    for found in root.iter():
        if found.tag in (f"{SPACE}text", f"{SPACE}rect") and "x" in found.attrib:
            yield float(found.attrib["x"]), float(found.attrib["y"])
        elif found.tag == f"{SPACE}rect":
            yield 0.0, 0.0
        elif found.tag == f"{SPACE}path":
            first = re.match(r"M(-?[\d.]+) (-?[\d.]+)", found.attrib["d"])
            assert first is not None
            yield float(first[1]), float(first[2])


def test_every_look_is_there_with_its_own_colour_and_in_the_legend() -> None:
    root = parsed(chart(troubled()))
    for look in (Look.CRITICAL, Look.DONE, Look.FAILED, Look.CUT, Look.PERSON):
        assert bars(root, look), look
        assert look.value in texts(root)
    dashed = [e for e in root.iter(f"{SPACE}path") if "stroke-dasharray" in e.attrib]
    assert len(dashed) == 2  # the wait, and the legend's
    assert len({style.fill for style in STYLES.values()}) == len(STYLES)
    assert Look.RUNNING.value not in texts(root)


def test_the_figures_and_the_title_are_in_it() -> None:
    root = parsed(chart(side_by_side(), title="demo · complete"))
    found = texts(root)
    assert found[0] == "demo · complete"
    assert "wall-clock time 10.0 s, work of one worker 14.0 s, speed-up 1.40" in found
    assert "plan → parser → join" in found
    assert {"0s", "2s", "work", "6.0 s"} <= set(found)
    title = root.find(f"{SPACE}title")
    assert title is not None
    assert title.text == "demo · complete"


def test_roles_stand_beside_the_names() -> None:
    found = texts(parsed(chart(side_by_side(), graph=team({"plan": "researcher"}))))
    assert found[found.index("plan") + 1] == "researcher"


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=80), st.floats(0, 1e5), st.floats(0, 1e5)),
        min_size=1,
        max_size=6,
        unique_by=lambda task: task[0],
    )
)
def test_whatever_happened_it_is_inside_of_the_picture(
    tasks: list[tuple[str, float, float]],
) -> None:
    told = Told()
    for name, begin, length in tasks:
        told.claim(name, begin).end(name, begin, begin + length)
    root = parsed(chart(told))
    wide, high = int(root.attrib["width"]), int(root.attrib["height"])
    for x, y in numbers(root):
        assert 0 <= x <= wide
        assert 0 <= y <= high
    for found in root.iter(f"{SPACE}text"):
        if found.attrib["text-anchor"] == "start":
            size = int(found.attrib["font-size"])
            assert float(found.attrib["x"]) + points(found.text or "", size) <= wide


@pytest.mark.parametrize("count", [0, 1, 60])
def test_a_png_of_any_number_of_tasks(count: int) -> None:
    told = Told()
    for number in range(count):
        told.run(f"t{number}", number, number + 1)
    data = png_of(gantt_svg(chart(told)))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    wide, high = struct.unpack(">II", data[16:24])
    assert wide > 1000
    assert high > 40 * count


def test_more_tasks_than_anybody_could_tell_apart_are_refused() -> None:
    told = Told()
    for number in range(MOST_ROWS + 1):
        told.run(f"t{number}", number, number + 1)
    with pytest.raises(UsageRefused, match="too many for a picture"):
        gantt_svg(chart(told))


def test_a_legend_fits_under_the_chart() -> None:
    told = troubled().claim("now", 100)
    root = parsed(chart(told, now=110))
    wide = int(root.attrib["width"])
    last = [found for found in root.iter(f"{SPACE}text") if found.text == Look.RETRY]
    assert float(last[0].attrib["x"]) + points(Look.RETRY, 12) < wide
