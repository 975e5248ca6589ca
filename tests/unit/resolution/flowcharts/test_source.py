"""A text that knows where each of its characters stood before pieces were cut out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.workflows.mermaid.text import ChartText, prepare, reveal


def test_positions_count_from_one_and_from_the_first_line() -> None:
    source = ChartText("ab\ncd\n", None, 10)

    assert [source.position(offset) for offset in range(7)] == [
        (10, 1),
        (10, 2),
        (10, 3),
        (11, 1),
        (11, 2),
        (11, 3),
        (12, 1),
    ]
    assert source.position(99) == (12, 1)


def test_a_refusal_names_the_file_if_there_is_one() -> None:
    assert ChartText("ab", None, 1).refusal("bad", 1).where == "line 1, column 2"
    assert ChartText("ab", Path("x.md"), 4).refusal("bad", 1, "hint").where == "x.md:4:2"
    assert str(ChartText("ab", Path("x.md"), 4).refusal("bad", 1, "do")) == "x.md:4:2: bad\n  do"


@given(st.text("ab\n", max_size=30), st.data())
def test_what_is_left_keeps_its_place(text: str, data: st.DataObject) -> None:
    original = ChartText(text, None, 1)
    source = ChartText(text, None, 1)
    offsets = list(range(len(text)))
    for _ in range(data.draw(st.integers(0, 3))):
        ends = data.draw(
            st.lists(st.integers(0, len(source.text)), unique=True, max_size=6).map(sorted)
        )
        spans = list(zip(ends[::2], ends[1::2], strict=False))
        source.cut(spans)
        cut = {offset for start, end in spans for offset in range(start, end)}
        offsets = [value for index, value in enumerate(offsets) if index not in cut]

    assert source.text == "".join(text[offset] for offset in offsets)
    assert [source.position(index) for index in range(len(offsets))] == [
        original.position(offset) for offset in offsets
    ]


def prepared(text: str) -> str:
    source = ChartText(text, None, 1)
    prepare(source)
    return reveal(source.text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("graph TD\na", "graph TD\na\n"),
        ("\n  \n graph", "graph\n"),
        ("a\n%% x\nb", "a\nb\n"),
        ("a\n\n  \n  %% x\n\nb", "a\n\nb\n"),
        ("a\n%%\nb", "a\n%%\nb\n"),
        ("a %% x", "a %% x\n"),
        ("%%{init: {}}%%a", "a\n"),
        ("%%{a}%%b%%{c: d}%%e", "be\n"),
        ("%%{init: word more}%%a", "more}%%a\n"),
        ("a%%{open", "a\n"),
        ("---\nx: y\n---\na", "a\n"),
        ("---\nx: y\n---\n\n\na", "a\n"),
        ("---\nx: y\na", "---\nx: y\na\n"),
        ("---x\ny: z\n---\na", "---x\ny: z\n---\na\n"),
        ("\t---\n\tx: y\n\t---\na", "a\n"),
        ("}  \n\n b", "}\n b\n"),
        ("} b", "} b\n"),
        ("style a fill:#fff;\nb;", "style a fill:#fff\nb;\n"),
        ("style a fill:red;", "style a fill:red;\n"),
        ("classDef a fill:#fff,b:#000;c;", "classDef a fill:#fff,b:&#000;c\n"),
        ("#35;#amp;#no", "&#35;&amp;#no\n"),
        ('<a b="c" d="e">f="g"', "<a b='c' d='e'>f=\"g\"\n"),
        ('< a b="c">', '< a b="c">\n'),
        ('<a b="c"', '<a b="c"\n'),
    ],
)
def test_what_mermaid_takes_out_before_it_reads(text: str, left: str) -> None:
    assert prepared(text) == left
