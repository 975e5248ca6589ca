from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sequencer.cli.views.text import width
from sequencer.errors import UsageRefused
from sequencer.plugins.drawing.gantt import (
    STYLES,
    BarStyle,
    Gantt,
    draw_gantt,
    gantt_summary,
    ticks,
)
from sequencer.plugins.drawing.gantt_picture import MAX_ROWS, gantt_svg
from sequencer.plugins.drawing.pictures import estimate_width, render_png
from tests.acceptance.flow_projects import make_project, write_flow
from tests.unit.cli.calling import Called, call, project
from tests.unit.cli.charts import chart, side_by_side, team, troubled
from tests.unit.history.journal_facts import Told

CHART = """\
  plan --> parser & tests
  parser & tests --> join((All)) --> publish
"""
PROMPTS = {name: f"Say {name}" for name in ("plan", "parser", "tests", "publish")}


# What has no encoding of its own, as here, is written to in ASCII.


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """Make a project with the finished run ``f``."""
    folder = make_project(tmp_path)
    write_flow(folder, "f", CHART, **PROMPTS)
    assert call(folder, "run", "f", "--quiet").code == 0
    return folder


def gantt(folder: Path, *arguments: str) -> Called:
    ended = call(folder, "report", "--gantt", *arguments)
    assert ended.code == 0, ended.err
    return ended


def as_json(folder: Path, *arguments: str) -> Any:
    return json.loads(gantt(folder, "--json", *arguments).out)


def test_a_task_is_never_shown_starting_before_its_dependency_ends(finished: Path) -> None:
    """Whole seconds would let the tasks behind the plan begin before its end."""
    told = as_json(finished, "--run", "f")
    spans = {one["step"]: one["spans"][0] for one in told["executions"] if one["spans"]}
    for before, after in (("plan", "parser"), ("plan", "tests"), ("tests", "publish")):
        # A millisecond is what the record of a beginning cuts off.
        assert spans[before]["end_s"] <= spans[after]["begin_s"] + 0.001


def test_pictures(finished: Path) -> None:
    ended = gantt(finished, "--run", "f", "--svg", "f.svg", "--png", "f.png")
    assert ended.out == ""
    assert "f.svg was written" in ended.err
    root = ET.parse(finished / "f.svg").getroot()  # noqa: S314 - our own
    assert any("total time" in (element.text or "") for element in root.iter())
    assert (finished / "f.png").read_bytes().startswith(b"\x89PNG")
    again = call(finished, "report", "--gantt", "--run", "f", "--svg", "orchestration.yaml")
    assert again.code == 2
    assert "exists and is not a picture" in again.err


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "text",
    [
        "# Notes\nA picture: <svg width='1'></svg>\n",
        "<!doctype html>\n<body><svg></svg></body>\n",
        "<!-- mentions <svg > -->\n<html></html>\n",
        "<svgs/>\n",
        "\x89PNG\r\n is how a picture begins\n",
    ],
)
def test_a_document_that_mentions_a_picture_stays_as_it_is(finished: Path, text: str) -> None:
    (finished / "notes.md").write_text(text, encoding="latin-1", newline="")
    for option in ("--svg", "--png"):
        ended = call(finished, "report", "--gantt", "--run", "f", option, "notes.md")
        assert ended.code == 2
        assert "exists and is not a picture" in ended.err
    assert (finished / "notes.md").read_bytes() == text.encode("latin-1")


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "<svg/>",
        "\ufeff<?xml version='1.0'?>\n<!-- by hand -->\n<svg\nwidth='1'/>",
        '<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "svg11.dtd" [<!ENTITY a "b">]><svg></svg>',
    ],
)
def test_a_picture_replaces_an_earlier_one(finished: Path, text: str) -> None:
    (finished / "old.svg").write_text(text)
    for option in ("--svg", "--png", "--svg"):
        assert gantt(finished, "--run", "f", option, "old.svg").code == 0
    assert "total time" in (finished / "old.svg").read_text()


def test_unknown_runs_and_conflicting_options_are_refused(finished: Path) -> None:
    assert call(finished, "report", "--gantt", "--run", "nobody").code == 2
    for more in (("--svg", "x.svg"), ("--png", "x.png"), ("--width", "80")):
        ended = call(finished, "report", "--run", "f", "--json", *more)
        assert ended.code == 2
        kind = "a drawing" if "--width" in more else "a page or a drawing"
        assert f"--json: can't be used with {kind}\n" in ended.err


def test_tries_of_a_task_that_fails(tmp_path: Path) -> None:
    folder = make_project(tmp_path)
    retry = "retry: {maxAttempts: 2, backoff: fixed, initialDelay: 10}\n"
    write_flow(folder, "f", "  a[A] --> b\n", retry, a="Say a", b="please fail")
    assert call(folder, "run", "f", "--quiet").code == 1
    told = as_json(folder, "--run", "f")
    kinds = {one["step"]: [span["kind"] for span in one["spans"]] for one in told["executions"]}
    assert kinds == {"a": ["done"], "b": ["failed", "failed"]}
    text = gantt(folder, "--run", "f").out
    assert "✗✗" in text
    assert text.startswith("f · failed\n")


def test_a_run_that_has_not_started_has_an_empty_chart(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    ended = gantt(folder)
    assert ended.out == ""
    assert "nothing has happened yet" in ended.err
    told = as_json(folder)
    assert (told["executions"], told["began_at"], told["workflow"]) == ([], None, None)


def test_other_started_runs_are_named_if_the_default_run_has_not_started(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    for name in ("docs", "night"):
        assert call(folder, "--run", name, "run", "--max-steps", "1", "--quiet").code == 0
    said = gantt(folder).err
    assert "the default run has not started; add --run NAME for another run: docs, night" in said
    listed = call(folder, "status")
    # The list itself needs no notice that there is one.
    assert ("docs" in listed.out, "status --all" in listed.err) == (True, False)


def test_a_flow_that_was_changed_is_still_shown(finished: Path) -> None:
    write_flow(finished, "f", CHART.replace("publish", "announce"), **PROMPTS)
    ended = gantt(finished, "--run", "f")
    assert "◆ publish" in ended.out


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "options",
    [
        ("--run", "f", "report", "--gantt", "--svg", "-"),
        ("--run", "f", "report", "--gantt", "--svg", "f.svg", "--png", "-"),
        ("plan", "f", "--svg", "-"),
        ("plan", "f", "--png", "-"),
        ("--run", "f", "report", "--metrics", "--output", "-"),
    ],
)
def test_a_dash_is_refused_as_a_file_name(finished: Path, options: tuple[str, ...]) -> None:
    before = sorted(finished.iterdir())
    ended = call(finished, *options)
    assert ended.code == 2
    assert "'-' is not a file; write './-' for a file with that name" in ended.err
    assert ended.out == ""
    assert sorted(finished.iterdir()) == before


def test_a_file_named_dash_can_be_written_with_a_path(finished: Path) -> None:
    gantt(finished, "--run", "f", "--svg", "./-")
    assert (finished / "-").read_bytes().startswith(b"<svg")


# --- the axis ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "most", "names"),
    [
        (3, 8, ["0s", "0.5s", "1s", "1.5s", "2s", "2.5s", "3s"]),
        (0.09, 5, ["0s", "0.02s", "0.04s", "0.06s", "0.08s"]),
        (100, 8, ["0s", "15s", "30s", "45s", "1m", "1m15", "1m30"]),
        (9 * 3600, 7, ["0s", "2h", "4h", "6h", "8h"]),
        (3 * 86_400, 8, ["0s", "12h", "1d", "1d12h", "2d", "2d12h", "3d"]),
        (5400, 4, ["0s", "30m", "1h", "1h30"]),
        (0, 5, ["0s"]),
    ],
)
def test_tick_marks_are_at_round_times(total: float, most: int, names: list[str]) -> None:
    assert [name for _, name in ticks(total, most)] == names


@given(st.floats(0, 1e10), st.integers(2, 100))
@example(10 - 1e-11, 10)
def test_there_are_never_too_many_ticks(total: float, most: int) -> None:
    found = [moment for moment, _ in ticks(total, most)]
    assert 1 <= len(found) <= most
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] <= total * (1 + 1e-6)


@given(st.floats(0.1, 1e8))
def test_tick_mark_labels_are_short_and_unique(total: float) -> None:
    names = [name for _, name in ticks(total, 9)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 8 for name in names)


# --- words -------------------------------------------------------------------------------


def test_the_summary_of_no_task_or_one_task_is_short() -> None:
    lines = gantt_summary(chart(Told()).figures, "", lambda text: text)
    assert lines == ["total time 0.0 s, agent work 0.0 s"]
    one = gantt_summary(chart(Told().run("a", 0, 5)).figures, "a", lambda text: text)
    assert one == ["total time 5.0 s, agent work 5.0 s", "critical path 5.0 s", "  a"]


def test_a_long_idle_time_is_shown_as_a_factor_not_a_percentage() -> None:
    rested = Told().run("a", 0, 5).run("b", 9000, 9005)
    lines = gantt_summary(chart(rested, places=2).figures, "a", lambda text: text)
    assert lines[0].endswith("speedup 0.0011")
    assert lines[1] == "critical path 5.0 s, the run took 1801 times as long"


@pytest.mark.parametrize("told", [
    pytest.param(Told().run("a", 0, 0.05).run("b", 0.5, 0.6), id="an-instant"),
    pytest.param(Told().run("a", 0, 5).run("b", 9000, 9005), id="one-place"),
])  # fmt: skip
def test_meaningless_ratios_are_left_out(told: Told) -> None:
    text = "\n".join(gantt_summary(chart(told, places=1).figures, "a", lambda text: text))
    assert not re.search("%|speedup|times|longer", text)


IN_ASCII = """\
demo - complete

  TASK     0s          30s         1m          1m30     WORK
* flaky    xxxx........########                       30.0 s
  lost     -...............--==                       10.0 s
* fine                         ????????????????            -
* publish                                      #####  10.0 s

## critical path   == accepted   xx failed
-- given back or lost   ?? waits for a person
.. waits for another try

total time 1 min 40 s, agent work 50.0 s, speedup 0.83
critical path 1 min 10 s, the run took 43% longer
  flaky -> fine -> publish
2 places for agents, 42% busy, at most 2 in use at once
40.0 s waiting only for people, not counted in the speedup or as idle places
"""


def text(told: Told, columns: int = 60, *, is_ascii: bool = False) -> str:
    return draw_gantt(chart(told), columns, is_ascii=is_ascii).to_text() + "\n"


def test_troubles_in_ascii() -> None:
    assert text(troubled(), is_ascii=True) == IN_ASCII
    assert text(troubled(), is_ascii=True).isascii()


def test_roles_have_a_column_where_there_are_roles() -> None:
    graph = team({"plan": "researcher", "parser": "implementer"}, more=["later"])
    lines = (
        draw_gantt(chart(side_by_side(), graph=graph), 90, is_ascii=False).to_text().splitlines()
    )
    assert lines[2].split()[:3] == ["TASK", "ROLE", "0s"]
    assert lines[3].split()[:3] == ["◆", "plan", "researcher"]
    # Nothing has reached it: a name, and no bar.
    assert lines[8].split() == ["later", "-"]
    assert "ROLE" not in text(side_by_side())


def test_a_short_failure_is_not_hidden_by_a_long_retry() -> None:
    told = Told().claim("a", 0).end("a", 0, 0.1, "failed")
    told.claim("a", 0.1, None, attempt=2).end("a", 0.1, 1000, attempt=2)
    (line,) = (line for line in text(told).splitlines() if line.startswith("◆ a"))
    assert line.startswith("◆ a     ✗█████")


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=50), st.floats(0, 1e5), st.floats(0, 1e5)),
        min_size=1,
        max_size=8,
        unique_by=lambda task: task[0],
    ),
    st.integers(60, 200),
    st.booleans(),
)
def test_no_line_is_wider_than_asked_for(
    tasks: list[tuple[str, float, float]], columns: int, is_ascii: bool
) -> None:
    told = Told()
    for name, begin, length in tasks:
        told.claim(name, begin).end(name, begin, begin + length)
    for line in text(told, columns, is_ascii=is_ascii).splitlines()[: len(tasks) + 3]:
        assert width(line) <= columns


SPACE = "{http://www.w3.org/2000/svg}"


def parsed(shown: Gantt) -> ET.Element:
    return ET.fromstring(gantt_svg(shown))  # noqa: S314 - our own


def bars(root: ET.Element, look: BarStyle) -> list[tuple[float, float, float]]:
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


def test_every_look_has_its_own_color_and_a_legend_entry() -> None:
    root = parsed(chart(troubled()))
    for look in (BarStyle.CRITICAL, BarStyle.DONE, BarStyle.FAILED, BarStyle.CUT, BarStyle.PERSON):
        assert bars(root, look), look
        assert look.value in texts(root)
    dashed = [e for e in root.iter(f"{SPACE}path") if "stroke-dasharray" in e.attrib]
    assert len(dashed) == 3  # the wait, and the legend's
    assert len({style.fill for style in STYLES.values()}) == len(STYLES)
    assert BarStyle.RUNNING.value not in texts(root)


def test_the_figures_and_the_title_are_in_it() -> None:
    root = parsed(chart(side_by_side(), title="demo · complete"))
    found = texts(root)
    assert found[0] == "demo · complete"
    assert "total time 10.0 s, agent work 14.0 s, speedup 1.40" in found
    assert "plan → parser → join" in found
    assert {"0s", "2s", "work", "6.0 s"} <= set(found)
    title = root.find(f"{SPACE}title")
    assert title is not None
    assert title.text == "demo · complete"


def test_roles_are_shown_next_to_the_names() -> None:
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
def test_everything_is_inside_the_picture(
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
            assert float(found.attrib["x"]) + estimate_width(found.text or "", size) <= wide


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("count", [0, 1, 60])
def test_a_png_of_any_number_of_tasks(count: int) -> None:
    told = Told()
    for number in range(count):
        told.run(f"t{number}", number, number + 1)
    data = render_png(gantt_svg(chart(told)))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    wide, high = struct.unpack(">II", data[16:24])
    assert wide > 1000
    assert high > 40 * count


def test_too_many_tasks_for_a_picture_are_refused() -> None:
    told = Told()
    for number in range(MAX_ROWS + 1):
        told.run(f"t{number}", number, number + 1)
    with pytest.raises(UsageRefused, match="too many for a picture"):
        gantt_svg(chart(told))


def test_a_legend_fits_under_the_chart() -> None:
    told = troubled().claim("now", 100)
    root = parsed(chart(told, now=110))
    wide = int(root.attrib["width"])
    last = [found for found in root.iter(f"{SPACE}text") if found.text == BarStyle.RETRY]
    assert float(last[0].attrib["x"]) + estimate_width(BarStyle.RETRY, 12) < wide
