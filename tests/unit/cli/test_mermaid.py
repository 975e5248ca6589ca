from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.model.step import Step
from sequencer.model.workflow import Review, Workflow
from sequencer.plugins.drawing.mermaid import format_workflow_chart, quote_text

PLAN, BUILD, CHECK = Step(name="plan"), Step(name="build"), Step(name="check")
NODE = re.compile(
    r'    (?:[sr]\d+\["[^"]*"\]|r\d+\[\["[^"]*"\]\]|done\(\["complete"\]\)|cadence\{"[^"]*"\})'
)
EDGE = re.compile(r'    ([a-z]+\d*) -->(?:\|"[^"]*"\|)? ([a-z]+\d*)')


def parsed(text: str) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the chart's nodes and edges; every line has to be one or the other."""
    first, *lines = text.splitlines()
    assert first == "flowchart TD"
    nodes, edges = set(), set()
    for line in lines:
        edge = EDGE.fullmatch(line)
        if edge:
            edges.add((edge[1], edge[2]))
        else:
            assert NODE.fullmatch(line), line
            nodes.add(re.split(r"[\[({]", line.strip())[0])
    return nodes, edges


def test_a_procedure_ends() -> None:
    nodes, edges = parsed(format_workflow_chart(Workflow("w", (PLAN, BUILD), kind="procedure")))
    assert nodes == {"s0", "s1", "done"}
    assert edges == {("s0", "s1"), ("s1", "done")}


def test_a_review_has_its_own_cycle() -> None:
    text = format_workflow_chart(Workflow("w", (PLAN, BUILD), Review(every=3, step=CHECK)))
    nodes, edges = parsed(text)
    assert nodes == {"s0", "s1", "r0", "r1", "cadence"}
    assert edges == {
        ("s0", "s1"),
        ("s1", "cadence"),
        ("cadence", "s0"),
        ("cadence", "r0"),
        ("r0", "r1"),
        ("r1", "cadence"),
    }
    assert '|"2 of 3 cycles"| s0' in text
    assert '|"1 of 3 cycles"| r0' in text
    assert "check at build" in text


def test_a_review_of_every_cycle_leaves_nothing_else() -> None:
    nodes, edges = parsed(
        format_workflow_chart(Workflow("w", (PLAN, BUILD), Review(every=1, step=CHECK)))
    )
    assert nodes == {"r0", "r1", "cadence"}
    assert edges == {("r0", "r1"), ("cadence", "r0"), ("r1", "cadence")}


@pytest.mark.parametrize("every", [0, -2])
def test_a_review_that_is_never_due_is_not_drawn(every: int) -> None:
    nodes, _ = parsed(
        format_workflow_chart(Workflow("w", (PLAN, BUILD), Review(every=every, step=CHECK)))
    )
    assert nodes == {"s0", "s1"}


@pytest.mark.parametrize(
    "name", ['"]; x[', "end", "a-->b", "`md`", "%%{init}%%", "<script>", "#quot;"]
)
def test_a_name_stays_a_name(name: str) -> None:
    nodes, edges = parsed(
        format_workflow_chart(Workflow("w", (Step(name=name, prompt="p.md"), BUILD)))
    )
    assert nodes == {"s0", "s1"}
    assert edges == {("s0", "s1"), ("s1", "s0")}


@given(st.text(max_size=60))
def test_a_quoted_text_has_no_syntax_and_can_be_read_back(text: str) -> None:
    found = quote_text(text)
    assert not set(found[1:-1]) & set('"`<>{}[]()|%&\\')
    back = re.sub(r"#(\d+);", lambda match: chr(int(match[1])), found[1:-1])
    assert back == text
