from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from sequencer.errors import StorageFailed, UsageRefused
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.graph.graph import Graph, Node, NodeKind
from sequencer.plugins.drawing.pictures import find_missing_letters, flow_svg, render_png, save
from sequencer.project.dependencies import extra_hint
from sequencer.workflows.mermaid.parser import read_chart
from tests.unit.cli.flow.views import HOSTILE, chain, drawn_by_hand, flows, graph, of, views

SPACE = "{http://www.w3.org/2000/svg}"
ALLOWED = {
    f"{SPACE}{name}" for name in ("svg", "title", "rect", "text", "g", "path", "polygon", "ellipse")
}


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - our own


def size(data: bytes) -> tuple[int, int]:
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    wide, high = struct.unpack(">II", data[16:24])
    return wide, high


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize("name", list(flows()))
def test_every_box_line_and_text_is_inside(name: str) -> None:
    root = parsed(flow_svg(of(flows()[name], "running")))
    wide, high = int(root.attrib["width"]), int(root.attrib["height"])
    inner = root.find(f"{SPACE}g")
    assert inner is not None
    dx, dy = numbers(inner.attrib["transform"])
    boxes = 0
    for element in inner.iter():
        if element.tag == f"{SPACE}rect":
            x, y = float(element.attrib["x"]) + dx, float(element.attrib["y"]) + dy
            assert 0 <= x <= x + float(element.attrib["width"]) <= wide
            assert 0 <= y <= y + float(element.attrib["height"]) <= high
            boxes += 1
        elif element.tag == f"{SPACE}path":
            found = numbers(element.attrib["d"])
            assert all(0 <= x + dx <= wide for x in found[::2])
            assert all(0 <= y + dy <= high for y in found[1::2])
    assert len(inner.findall(f".//{SPACE}path")) == 2 * len(flows()[name].edges)
    assert boxes or inner.findall(f".//{SPACE}polygon")


@given(views())
@settings(max_examples=30)
def test_the_svg_of_any_graph_has_no_external_references(shown: FlowView) -> None:
    text = flow_svg(shown)
    for element in parsed(text).iter():
        assert element.tag in ALLOWED
        assert not [name for name in element.attrib if "href" in name or name.startswith("on")]
    assert text.isprintable() or "\x1b" not in text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_drawn_as_text(text: str) -> None:
    node = Node(id="a", kind=NodeKind.AGENT, label=text)
    jump = Graph(nodes=(node,), entries=("a",), on_error="a")
    shown = FlowView(text, jump, (NodeView(node, NodeState.FAILED),), "running")
    assert {element.tag for element in parsed(flow_svg(shown)).iter()} <= ALLOWED
    assert size(render_png(flow_svg(shown)))


@pytest.mark.parametrize("direction", ["TB", "BT", "LR", "RL"])
def test_directions_shapes_and_strokes_come_from_the_author(direction: str) -> None:
    shown, chart = drawn_by_hand(direction)
    text = flow_svg(shown, chart)
    assert text.count('stroke-dasharray="2 4"') == 1
    assert text.count('stroke-width="3.2"') == 1
    assert text.count("<polygon") == 1
    wide, high = (int(parsed(text).attrib[name]) for name in ("width", "height"))
    assert (wide > high) is (direction in ("LR", "RL"))
    # Each head's tip is where the line comes to the border, of a diamond as well.
    heads = [numbers(d) for d in re.findall(r'd="(M[^"]*Z)"', text)]
    across = [x - (a + b) / 2 for a, _, b, _, x, _ in heads]
    down = [y - (a + b) / 2 for _, a, _, b, _, y in heads]
    way = {"TB": (0, 9), "BT": (0, -9), "LR": (9, 0), "RL": (-9, 0)}[direction]
    for got, expected in ((across, way[0]), (down, way[1])):
        assert got == pytest.approx([expected] * len(heads), abs=0.01)


def test_a_large_png_has_fewer_pixels_per_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.plugins.drawing.pictures.MAX_PIXELS", 100_000)
    wide, high = size(render_png(flow_svg(of(chain(12)))))
    assert 80_000 < wide * high <= 102_000


@pytest.mark.slow
def test_text_is_visible_on_a_machine_without_fonts(tmp_path: Path) -> None:
    """An empty folder stands over the machine's fonts, if namespaces can be made here."""
    code = (
        "import re, sys; sys.path.insert(0, '.')\n"
        "import resvg_py\n"
        "from tests.unit.cli.flow.views import view\n"
        "from sequencer.plugins.drawing.pictures import flow_svg, render_png\n"
        "shown = view('a[Many words]')\n"
        "bare = re.sub('<text.*</text>', '', flow_svg(shown))\n"
        "full = render_png(flow_svg(shown))\n"
        "print(len(full), len(resvg_py.svg_to_bytes(svg_string=bare, zoom=2.0)))\n"
    )
    folders = [f for f in ("/usr/share/fonts", "/usr/local/share/fonts") if Path(f).is_dir()]
    hide = " && ".join((*(f"mount --bind {tmp_path} {folder}" for folder in folders), "true"))
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{hide} && exec "$0" -c "$1"', sys.executable, code],
        capture_output=True,
        check=False,
        timeout=60,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
    )
    if b"Operation not permitted" in done.stderr or b"unshare failed" in done.stderr:
        pytest.skip("no namespaces here")
    assert done.returncode == 0, done.stderr
    with_texts, without = map(int, done.stdout.split())
    assert with_texts > without + 1000


def test_without_the_extra_the_error_names_what_to_install() -> None:
    code = (
        "import sys; sys.path.insert(0, '.'); sys.modules['resvg_py'] = None\n"
        "from tests.unit.cli.flow.views import view\n"
        "from sequencer.plugins.drawing.pictures import flow_svg, render_png\n"
        "from sequencer.errors import ConfigurationError\n"
        "assert flow_svg(view('a')).startswith('<svg')\n"
        "try: render_png(flow_svg(view('a')))\n"
        "except ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert extra_hint("picture") in done.stdout
    assert "extra 'picture'" in done.stdout


def test_a_graph_that_is_too_large_for_a_picture_is_refused() -> None:
    with pytest.raises(UsageRefused, match="too large for a picture"):
        flow_svg(of(chain(3001)))


# --- the file --------------------------------------------------------------------------


@pytest.mark.parametrize("head", [b"\x89PNG\r\n\x1a\nold", b"<svg old", b"", b'<?xml?>\n<svg "'])
def test_an_earlier_picture_is_replaced(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "flow"
    path.write_bytes(head)
    save(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("content", [b"# My flow\n", b"\x00\x01", b"flowchart TD"])
def test_a_file_that_is_not_a_picture_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "flow.md"
    path.write_bytes(content)
    with pytest.raises(UsageRefused, match="left as it is") as refused:
        save(path, b"new")
    assert refused.value.where == str(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_earlier_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "flow.svg"
    path.write_bytes(b"<svg old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(StorageFailed, match="No space left"):
        save(path, b"<svg new/>")
    assert path.read_bytes() == b"<svg old"
    assert list(tmp_path.iterdir()) == [path]


def test_groups_and_colors_of_the_chart() -> None:
    chart = read_chart(
        "flowchart TD\na --> b\nsubgraph one [One <of> them]\nb\nend\nstyle a fill:#112233\n"
        "style one fill:#eeffee,stroke:#00aa00\n"
    )
    text = flow_svg(of(graph("a --> b")), chart)
    assert "One &lt;of&gt; them" in text
    assert 'rx="8" fill="#eeffee" stroke="#00aa00"/>' in text
    assert 'fill="#112233" stroke="#868e96"' in text
    # Dark ground, light letters.
    assert 'fill="#ffffff" text-anchor="middle">a</text>' in text
    ran = flow_svg(of(graph("a --> b"), "running", a="done"), chart)
    assert "#112233" not in ran


def test_the_title_of_a_group_is_above_its_boxes() -> None:
    chart = read_chart("flowchart TD\na --> b\nsubgraph one [Look closely]\na\nend\n")
    text = flow_svg(of(graph("a --> b")), chart)
    rects = [rect.attrib for rect in parsed(text).iter() if rect.tag.endswith("rect")]
    tops = {rect["height"]: float(rect["y"]) for rect in rects if "y" in rect}
    title, frame = tops.pop("15"), min(tops.values())
    assert title <= frame < title + 15 <= min(y for y in tops.values() if y > frame)


def test_letters_that_no_font_has_are_found() -> None:
    assert find_missing_letters("<text>plan → ✓ Ж</text>") == ""
    assert find_missing_letters("a\U00012000b\U00012000") in ("\U00012000", "")
