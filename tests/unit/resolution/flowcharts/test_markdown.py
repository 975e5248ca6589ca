from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sequencer.workflows.flowfile.markdown import (
    MAX_CHARS,
    MAX_LINES,
    Excerpt,
    NodeSection,
    Parts,
    split,
)
from sequencer.workflows.flowfile.problems import Findings, FlowErrors
from sequencer.workflows.flowfile.settings import KEYS
from tests.unit.resolution.flowcharts.flows import shown

CHART = "```mermaid\nflowchart TD\na --> b\n```\n"


def parts_of(text: str) -> Parts:
    findings = Findings(Path("flow.md"))
    found = split(text, findings)
    findings.ensure_none()
    return found


def sections_of(
    text: str, *names: str, findings: Findings | None = None
) -> tuple[NodeSection, ...]:
    """Return the sections of *text*; without *names* each ``###`` heading starts one."""
    parts = split(text, findings or Findings(Path("flow.md")))
    return parts.sections(names or None, KEYS)


def told(text: str) -> list[str]:
    findings = Findings(Path("flow.md"))
    sections_of(text, findings=findings)
    with pytest.raises(FlowErrors) as refused:
        findings.ensure_none()
    return [shown(problem) for problem in refused.value.problems]


def warned(text: str) -> list[str]:
    findings = Findings(Path("flow.md"))
    sections_of(text, findings=findings)
    return [shown(problem) for problem in findings.warnings]


def prompts(text: str, *names: str) -> dict[str, str]:
    findings = Findings(Path("flow.md"))
    found = sections_of(text, *names, findings=findings)
    findings.ensure_none()
    return {section.id: section.prompt.text for section in found}


def test_a_whole_file_comes_apart_with_the_lines_of_its_parts() -> None:
    text = (
        "---\nid: demo\n---\n# Title\n\nWords.\n\n"
        + CHART
        + "\n### a\n\n---\nmode: all\n---\n\n  Go.\n\nOn.\n\n### b\nEnd.\n"
    )
    found = parts_of(text)
    assert found.front == Excerpt("id: demo\n", 2)
    assert found.chart == Excerpt("flowchart TD\na --> b", 9)
    assert found.title == "Title"
    first, second = sections_of(text)
    assert (first.id, first.line) == ("a", 13)
    assert first.settings == Excerpt("mode: all", 16)
    assert first.prompt == Excerpt("  Go.\n\nOn.", 19)
    assert (second.id, second.line, second.settings) == ("b", 23, None)
    assert second.prompt == Excerpt("End.", 24)


def test_front_matter_may_be_missing_empty_or_after_blank_lines() -> None:
    assert parts_of(CHART).front is None
    assert parts_of("---\n---\n" + CHART).front == Excerpt("", 2)
    assert parts_of("\n \n---\nid: x\n---\n" + CHART).front == Excerpt("id: x\n", 4)
    assert parts_of("---  \nid: x\n...\n" + CHART).front == Excerpt("id: x\n", 2)


def test_a_rule_in_the_middle_is_no_front_matter() -> None:
    assert parts_of("Words.\n\n---\nid: x\n---\n" + CHART).front is None


def test_an_open_front_matter_is_told_where_it_begins() -> None:
    assert (
        told("\n---\nid: x\n" + CHART)[0] == "2:1 E-FRONT flow.md: the front matter is not closed"
    )


def test_a_byte_order_mark_and_windows_line_ends_change_nothing() -> None:
    text = "---\nid: demo\n---\n" + CHART + "### a\n---\nmode: all\n---\nGo.\nOn.\n"
    for other in ("\ufeff" + text.replace("\n", "\r\n"), text.replace("\n", "\r")):
        assert parts_of(other) == parts_of(text)
        assert sections_of(other) == sections_of(text)


@pytest.mark.parametrize(
    "prompt",
    [
        "```\n### x\n```",
        "~~~~md\n### x\n~~~\n### y\n~~~~",
        "    ### x",
        "- item\n\n  ### x",
        "> ### x",
        "<!--\n### x\n-->",
        "#### x\ndeeper",
        "####### x",
        "###x",
        "\\### x",
        "Words\n---\nmore words",
        "Words\n=====",
        "1. one\n   ```\n   ### x\n   ```",
        "| a | b |\n|---|---|",
        "a\n***\nb",
    ],
)
def test_what_is_no_heading_stays_in_the_prompt(prompt: str) -> None:
    text = CHART + f"### a\n{prompt}\n### b\nGo.\n"
    assert prompts(text) == {"a": prompt, "b": "Go."}


HEADINGS = ["# x", "## x", "### x", "  ### x", "### x ###", "###\tx"]


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_that_is_no_node_belongs_to_the_text_above_it(heading: str) -> None:
    text = CHART + f"### a\nGo.\n{heading}\nOn.\n\n### b\nEnd.\n"
    assert prompts(text, "a", "b") == {"a": f"Go.\n{heading}\nOn.", "b": "End."}
    headings = sections_of(text, "a", "b")[0].headings
    assert [(one.text, one.line) for one in headings] == [("x", 7)]


@pytest.mark.parametrize("heading", HEADINGS[2:])
def test_the_heading_of_a_node_ends_the_section_before_it(heading: str) -> None:
    text = CHART + f"### a\nGo.\n{heading}\nOn.\n"
    assert prompts(text, "a", "x") == {"a": "Go.", "x": "On."}
    assert prompts(text) == {"a": "Go.", "x": "On."}


def test_what_stands_before_the_first_node_is_for_people() -> None:
    text = CHART + "## Nodes\n### Notes\nAs follows.\n### a\nGo.\n"
    assert prompts(text, "a") == {"a": "Go."}


@pytest.mark.parametrize(
    "key", ["model: x", "output.key: y", "description : z", "# of it\nmode: all"]
)
def test_settings_make_a_section_of_a_heading_that_is_no_node(key: str) -> None:
    text = CHART + f"### a\nGo.\n### x\n---\n{key}\n---\nOn.\n"
    assert prompts(text, "a") == {"a": "Go.", "x": "On."}


@pytest.mark.parametrize("between", ["", "Note: this", "words", "key model: x"])
def test_lines_below_a_heading_that_are_no_settings_are_text(between: str) -> None:
    text = CHART + f"### a\nGo.\n### x\n---\n{between}\n---\nOn."
    assert prompts(text, "a") == {"a": f"Go.\n### x\n---\n{between}\n---\nOn."}
    open_rule = CHART + "### a\nGo.\n### x\n---\nmodel: x\n### b\nEnd."
    assert prompts(open_rule, "a", "b")["a"] == "Go.\n### x\n---\nmodel: x"


def test_an_id_is_what_stands_in_the_heading() -> None:
    text = CHART + "###   end_node  ##\nGo.\n### week-end.2\nGo.\n### naïve\nGo.\n"
    assert list(prompts(text)) == ["end_node", "week-end.2", "naïve"]


def test_settings_are_no_markdown() -> None:
    written = "# which model\nmodel: x\n```\n<!--\n- a\n  ---\n#### deep"
    text = CHART + f"### a\n---\n{written}\n---\nGo.\n### b\nOn.\n"
    first = sections_of(text)[0]
    assert first.settings == Excerpt(written, 7)
    assert prompts(text) == {"a": "Go.", "b": "On."}


def test_settings_stand_directly_below_the_heading() -> None:
    text = CHART + "### a\nGo.\n\n---\nmode: all\n---\n"
    assert sections_of(text)[0].settings is None
    assert prompts(text)["a"] == "Go.\n\n---\nmode: all\n---"


def test_only_the_first_pair_of_lines_is_settings() -> None:
    text = CHART + "### a\n---\nmode: all\n---\n---\nGo.\n---\n"
    assert prompts(text)["a"] == "---\nGo.\n---"


def test_settings_belong_to_headings_of_nodes_only() -> None:
    text = CHART + "#### a\n---\nb: c\n---\n"
    assert sections_of(text) == ()


@pytest.mark.parametrize("rest", ["mode: all\n", "mode: all\n### b\n---\nmode: all\n---\nGo.\n"])
def test_open_settings_are_told_where_they_begin(rest: str) -> None:
    text = CHART + f"### a\n---\n{rest}"
    assert told(text) == ["6:1 E-SECTION a: the settings below its heading are not closed"]


def test_the_chart_has_the_columns_of_the_file() -> None:
    found = parts_of("  ```mermaid\n  graph LR\n    a --> b\n  ```\n")
    assert found.chart == Excerpt("  graph LR\n    a --> b", 2)


@pytest.mark.parametrize(
    "begin",
    [
        "graph TD",
        "flowchart-elk LR",
        "flowchart",
        "%% note\n\n  graph TD",
        "%%{init: {'theme': 'dark'}}%%\ngraph TD",
        "%%{init:\n {}}%% graph TD",
        "---\ntitle: T\n---\nflowchart LR",
        "graph;a-->b",
        "flowchart lr",
    ],
)
def test_flowcharts_are_known_by_their_first_word(begin: str) -> None:
    chart = parts_of(f"```mermaid\n{begin}\n```\n").chart
    assert chart is not None
    assert chart.text == begin


@pytest.mark.parametrize(
    "begin",
    [
        "sequenceDiagram",
        "flowcharts TD",
        "graph-x",
        "",
        "%%",
        "%%{graph TD",
        "---\ngraph TD",
        "pie",
    ],
)
def test_other_diagrams_are_passed_over(begin: str) -> None:
    other = f"```mermaid\n{begin}\n```\n"
    assert parts_of(other + CHART).chart == Excerpt("flowchart TD\na --> b", begin.count("\n") + 5)
    assert told(other) == ["1:1 E-CHART flow.md: there is no flowchart"]


def test_other_fences_are_no_charts() -> None:
    others = "```\ngraph TD\n```\n```mermaidx\ngraph TD\n```\n- ```mermaid\n  graph TD\n  ```\n"
    assert told(others) == ["1:1 E-CHART flow.md: there is no flowchart"]
    assert parts_of(others + "~~~ Mermaid theme\ngraph TD\n~~~\n").chart == Excerpt("graph TD", 11)


def test_no_chart_at_all_is_told() -> None:
    assert told("") == ["1:1 E-CHART flow.md: there is no flowchart"]
    assert told("# Title\n\nWords.\n") == ["1:1 E-CHART flow.md: there is no flowchart"]


def test_a_second_flowchart_is_told_where_it_begins() -> None:
    detail = "a second flowchart; the first one begins in line 1"
    assert told(CHART + "\n" + CHART + CHART) == [
        f"6:1 E-CHART flow.md: {detail}",
        f"10:1 E-CHART flow.md: {detail}",
    ]


def test_a_chart_in_a_prompt_is_part_of_the_prompt() -> None:
    text = CHART + "### a\nDraw this:\n" + CHART
    assert prompts(text)["a"] == "Draw this:\n" + CHART.strip()


def test_if_it_is_the_only_one_the_message_says_where_to_put_it() -> None:
    findings = Findings(Path("flow.md"))
    split("### a\nDraw this:\n" + CHART, findings)
    with pytest.raises(FlowErrors) as refused:
        findings.ensure_none()
    (problem,) = refused.value.problems
    assert shown(problem) == "3:1 E-CHART flow.md: there is no flowchart"
    assert "move it above" in (problem.hint or "")


def test_the_chart_may_come_after_the_sections() -> None:
    text = "### a\nGo.\n## Chart\n" + CHART
    assert parts_of(text).chart == Excerpt("flowchart TD\na --> b", 5)
    assert warned(text) == []


def test_a_block_that_is_not_closed_is_told() -> None:
    text = "Words.\n\n````mermaid\ngraph TD\na --> b\n```\n### a\nGo.\n"
    assert told(text) == ["3:1 E-CHART flow.md: the block of the chart is not closed"]
    assert told("```mermaid\ngraph TD") == [
        "1:1 E-CHART flow.md: the block of the chart is not closed"
    ]


def test_a_chart_below_a_heading_of_a_prompt_is_part_of_the_prompt() -> None:
    text = CHART + "### a\nDraw this:\n## Example\n" + CHART + "### b\nGo.\n"
    assert prompts(text, "a", "b")["a"] == "Draw this:\n## Example\n" + CHART.strip()


def test_the_section_before_the_chart_ends_at_its_heading() -> None:
    text = "### a\nGo.\n### Hints\nOn.\n## Chart\nSee:\n" + CHART + "### b\nEnd.\n"
    assert prompts(text, "a", "b") == {"a": "Go.\n### Hints\nOn.", "b": "End."}
    assert warned(text) == ["6:1 W-TEXT Chart: this text belongs to no node"]


def test_of_a_second_chart_beside_the_sections_is_told() -> None:
    text = "### a\nGo.\n## Chart\n" + CHART + "## Another\n" + CHART
    assert told(text) == ["9:1 E-CHART flow.md: a second flowchart; the first one begins in line 4"]


def test_the_title_is_no_heading_of_a_prompt() -> None:
    assert parts_of("# T\n" + CHART + "### a\n# Role\n").title == "T"
    assert parts_of(CHART + "### a\n# Role\n").title is None


def test_a_file_has_a_greatest_length() -> None:
    detail = f"has more than {MAX_CHARS} characters or {MAX_LINES} lines"
    assert told("x" * (MAX_CHARS + 1)) == [f"1:1 E-FILE flow.md: {detail}"]
    assert told("\n" * MAX_LINES) == [f"1:1 E-FILE flow.md: {detail}"]
    assert parts_of(CHART + "\n" * (MAX_LINES - 5)).chart is not None


@pytest.mark.parametrize(
    "text",
    [
        CHART + "### a\n" + "- " * 5_000,
        CHART + "### a\n" + "> " * 5_000,
        "```mermaid\n" + "%%{" * 100_000,
        "```mermaid\n" + "---\n" * 10_000,
        "### a\n---\n" * 10_000 + CHART,
        CHART + "a\n" * 40_000,
        "---\n" + "a: 1\n" * 40_000,
        CHART + "### a\n" + "".join("  " * depth + "- x\n" for depth in range(300)),
    ],
)
def test_no_text_takes_long(text: str) -> None:
    begin = time.process_time()
    sections_of(text)
    sections_of(text, "b")
    assert time.process_time() - begin < 5


@given(st.text(alphabet="#-`~ \n>ab<!*1.\t", max_size=200))
def test_headings_are_those_of_the_library(text: str) -> None:
    """Without settings and underlined headings, nothing differs from plain CommonMark."""
    plain = MarkdownIt("commonmark", {"maxNesting": 100}).disable(["lheading", "reference"])
    tokens = plain.parse(text)
    expected = [
        (token.map[0] + 1, tokens[place + 1].content)
        for place, token in enumerate(tokens)
        if token.type == "heading_open" and token.level == 0 and token.tag == "h3" and token.map
    ]
    found = [(section.line, section.id) for section in sections_of(text)]
    has_settings = any(
        line.strip() == "---" and place and lines[place - 1].lstrip().startswith("###")
        for lines in [[line for line in text.split("\n") if line.strip()]]
        for place, line in enumerate(lines)
    )
    begins_with_rule = text.lstrip(" \t\n").startswith("---")
    if not has_settings and not begins_with_rule:
        assert found == expected


@given(st.text(max_size=300))
def test_any_text_is_taken_apart(text: str) -> None:
    sections_of(text)


@given(
    st.lists(
        st.sampled_from(["### a", "## b", "### x", "---", "# x", "```", "mode: v", "", "text"])
    ),
    st.sampled_from([(), ("a",), ("a", "b", "x")]),
)
def test_no_line_of_a_prompt_is_lost_or_doubled(lines: list[str], names: tuple[str, ...]) -> None:
    text = CHART + "\n".join(lines)
    written = text.split("\n")
    found = sections_of(text, *names)
    for place, section in enumerate(found):
        end = found[place + 1].line - 1 if place + 1 < len(found) else len(written)
        begin = section.prompt.line - 1
        taken = section.prompt.text.split("\n") if section.prompt.text else []
        assert written[begin : begin + len(taken)] == taken
        # Up to the next section nothing is left but blank lines.
        assert not "".join(written[begin + len(taken) : end]).strip()
