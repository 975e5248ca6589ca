from __future__ import annotations

import pytest

from sequencer.model.net.graph import NodeKind
from tests.unit.resolution.flowcharts.flows import (
    bare,
    flow_text,
    read,
    refusal,
    sections,
    settings,
    shown,
    told,
    warned,
)


def of_chart(chart: str) -> list[str]:
    """Return what is told about a bare chart, whose first line is line 2."""
    return [shown(problem) for problem in bare(chart).warnings]


# Edges


@pytest.mark.parametrize("drawn", ["-->", "---->", "-.->", "-..->", "==>", "====>"])
def test_arrows_are_edges_whatever_their_line_and_length(drawn: str) -> None:
    graph = bare(f"a {drawn}|x| b\na {drawn}|y| c").graph
    assert [(edge.source, edge.target, edge.label) for edge in graph.edges] == [
        ("a", "b", "x"),
        ("a", "c", "y"),
    ]


def test_invisible_lines_are_for_the_layout_alone() -> None:
    flow = bare("a ~~~ b\na --> c")
    assert [(edge.source, edge.target) for edge in flow.graph.edges] == [("a", "c")]


@pytest.mark.parametrize(
    "drawn", ["---", "----", "--o", "--x", "<-->", "<---", "-.-", "===", "==o"]
)
def test_other_lines_have_no_meaning(drawn: str) -> None:
    text = flow_text(f"b --> a\na {drawn} b", sections("a", "b"))
    (only,) = told(text)
    assert only == "4:3 E-EDGE a b: only -->, -.-> and ==> are executable"


def test_equal_edges_are_one_edge() -> None:
    flow = bare("a -->|x| b\na ==>|x| b\na -->|y| b\nb & b --> c")
    assert [(edge.source, edge.target, edge.label) for edge in flow.graph.edges] == [
        ("a", "b", "x"),
        ("a", "b", "y"),
        ("b", "c", ""),
    ]
    assert [(problem.code, problem.subject) for problem in flow.warnings] == [
        ("W-TWICE", "a b"),
        ("W-TWICE", "b c"),
    ]


# Shapes and sections


@pytest.mark.parametrize(
    ("drawn", "kind"),
    [
        ("a", "agent"),
        ("a[x]", "agent"),
        ("a(x)", "agent"),
        ("a([x])", "agent"),
        ("a@{ shape: rect }", "agent"),
        ("a@{ shape: rectangle }", "agent"),
        ("a@{ shape: proc }", "agent"),
        ("a@{ shape: process }", "agent"),
        ("a{{x}}", "human"),
        ("a@{ shape: hex }", "human"),
        ("a@{ shape: hexagon }", "human"),
        ("a@{ shape: prepare }", "human"),
        ("a((x))", "marker"),
        ("a@{ shape: circle }", "marker"),
        ("a@{ shape: circ }", "marker"),
        ("a{x}", "decision"),
    ],
)
def test_the_shape_says_what_happens(drawn: str, kind: str) -> None:
    assert bare(drawn).graph.by_id["a"].kind == kind


@pytest.mark.parametrize(
    "drawn",
    ["a[[x]]", "a[(x)]", "a>x]", "a[/x/]", "a(((x)))", "a@{ shape: doc }", "a@{ shape: dbl-circ }"],
)
def test_other_shapes_have_no_meaning(drawn: str) -> None:
    (only,) = told(flow_text(f"b --> {drawn}", sections("b")))
    assert only.startswith("3:7 E-SHAPE a: the shape '")


def test_a_shape_without_meaning_is_all_that_is_told_of_its_node() -> None:
    (only,) = told(flow_text("b --> a[(x)]", sections("b") + settings("a", "model: x/y")))
    assert only.startswith("3:7 E-SHAPE a: the shape 'cylinder'")


def test_a_diamond_with_a_section_is_an_agent() -> None:
    chart = "a --> q{Which?}\nq -->|x| a\nq --> b"
    assert read(flow_text(chart, sections("a", "b"))).graph.by_id["q"].kind is NodeKind.DECISION
    with_section = read(flow_text(chart, sections("a", "b", "q")))
    assert with_section.graph.by_id["q"].kind is NodeKind.AGENT
    assert list(with_section.workflow.steps_by_name) == ["a", "q", "b"]


def test_agents_have_sections_with_prompts() -> None:
    text = flow_text("a --> b\nb --> c(C)\nh{{Q}} --> a", "### b\n---\nmode: all\n---\n")
    assert told(text)[:3] == [
        "3:1 E-SECTION a: there is no section '### a'",
        "4:7 E-SECTION c: there is no section '### c'",
        "7:1 E-SECTION b: its section has no prompt",
    ]


def test_two_sections_of_one_id_and_sections_of_nobody_are_told() -> None:
    nobodys = settings("ab", "mode: all") + sections("g")
    text = flow_text("a\nsubgraph g\nb\nend", sections("a", "b", "a") + nobodys + "###\nx\n")
    assert told(text) == [
        "12:1 E-SECTION a: a second section of this id; the first one is in line 8",
        "14:1 E-SECTION ab: the chart has no node of this id",
        "19:1 E-SECTION g: this is a group of nodes, and a section belongs to one node",
    ]
    hints = [problem.hint or "" for problem in refusal(text).problems]
    assert hints[1] == "did you mean 'b'? there are: a, b"


def test_a_heading_in_a_prompt_is_no_section_of_nobody() -> None:
    prompt = "Look.\n\n## Findings\n\n### What else\n\nAnswer in these parts."
    flow = read(flow_text("a --> b", f"### a\n{prompt}\n\n### b\nGo.\n"))
    assert flow.workflow.steps_by_name["a"].text == prompt
    assert flow.warnings == ()


def test_a_heading_that_is_nearly_a_nodes_is_pointed_out() -> None:
    chart = "a --> review --> ask{{Fine?}} --> on{Go on?}"
    text = flow_text(chart, "### a\nGo.\n### Revew\nLook.\n## ASK\nFine?\n### On it\n.\n")
    (problem,) = refusal(text).problems
    assert shown(problem) == "3:7 E-SECTION review: there is no section '### review'"
    assert problem.hint == "is it the heading in line 7? write '### review' there"
    fixed = text.replace("Revew", "review")
    assert warned(fixed) == [
        "9:1 W-SECTION ask: 'ASK' is part of the prompt above it, and names no node"
    ]
    assert warned(fixed.replace("## ASK", "### ask")) == []


def test_a_marker_may_have_a_description_and_nothing_to_do() -> None:
    chart = "s((Start)) --> a"
    described = settings("s", "description: Here it begins.", prompt="")
    flow = read(flow_text(chart, described + sections("a")))
    assert flow.graph.by_id["s"].description == "Here it begins."
    detail = "a circle does no work, and its section asks for some"
    for section in (sections("s"), settings("s", "output.key: x", prompt="")):
        assert told(flow_text(chart, section + sections("a"))) == [f"5:1 E-SECTION s: {detail}"]


@pytest.mark.parametrize(
    ("written", "column", "key"),
    [
        ("model: a/b", 1, "model"),
        ("mode: all", 1, "mode"),
        ("temperature: 0", 1, "temperature"),
        ("tools: {read: true}", 1, "tools"),
        ("agent: codex", 1, "agent"),
        ("max_turns: 1", 1, "max_turns"),
        ("continue_session: true", 1, "continue_session"),
        ("config: {retry: {maxAttempts: 2}}", 10, "config.retry"),
        ("output: {format: json}", 10, "output.format"),
        ("output.format: json", 1, "output.format"),
        ("output: {schema: {}}", 10, "output.schema"),
    ],
)
def test_what_is_for_agents_is_refused_for_people(written: str, column: int, key: str) -> None:
    assert told(flow_text("h{{Q}}", settings("h", written))) == [
        f"7:{column} E-NODE h: {key} is only for an agent"
    ]


def test_ids_have_a_greatest_length() -> None:
    long = "n" * 101
    (only,) = told(flow_text(f"a --> {long}", sections("a")))
    detail = "an id is one printable line of at most 100 characters"
    assert only == f"3:7 E-NODE {long[:100]}: {detail}"


# Entry, error handler, reach


def test_the_first_node_is_the_entry() -> None:
    assert bare("b --> a").graph.entries == ("b",)
    assert bare("subgraph g\nx --> y\nend\ng --> a").graph.entries == ("x",)


def test_nothing_is_run_that_nothing_leads_to() -> None:
    text = flow_text("a --> b\nc --> b\nm((m)) --> c\nh{{Q}} --> c", sections("a", "b", "c"))
    detail = "it is never run: nothing leads to it from a"
    assert warned(text) == [
        f"4:1 W-UNREACHABLE c: {detail}",
        f"6:1 W-UNREACHABLE h: {detail}",
    ]


def test_handlers_of_errors_and_of_time_limits_are_reached() -> None:
    rest = settings("h", "timeout: 5\nonTimeout: c") + sections("a", "b", "c")
    text = flow_text("a --> h{{Q}}\nb\nc --> d((d))", rest, "onError: b\n")
    flow = read(text)
    assert flow.warnings == ()
    assert (flow.graph.on_error, flow.graph.by_id["h"].on_timeout) == ("b", "c")


def test_unknown_targets_are_told_at_their_keys() -> None:
    rest = settings("h", "timeout: 5\nonTimeout: d") + sections("a", "b")
    text = flow_text("a --> h{{Q}} --> b", rest, "entrypoint: x\nonError: bb\n")
    assert told(text) == [
        "2:1 E-ENTRY x: there is no node 'x'",
        "3:1 E-ONERROR bb: there is no node 'bb'",
        "12:1 E-TIMEOUT h: onTimeout: there is no node 'd'",
    ]
    assert refusal(text).problems[1].hint == "did you mean 'b'? there are: a, h, b"


# Labels, defaults, options


@pytest.mark.parametrize(
    ("chart", "line"),
    [
        ("q -->|x| a\nq -->|default| b\nq --> c", 5),
        ("q --> c\nq -->|x| a\nq -->|Default.| b", 5),
        ("q --> c\nq -->|default| b\na", 4),
    ],
)
def test_default_beside_an_unlabelled_edge_is_told_at_the_second_one(chart: str, line: int) -> None:
    detail = 'both a "default" edge and an unlabelled edge'
    text = flow_text(chart, sections("q", "a", "b", "c"))
    assert told(text) == [f"{line}:3 E-DEFAULT q: {detail}"]


def test_a_single_label_of_an_agent_is_no_condition() -> None:
    detail = "the label 'then' is no condition: it is the only one, so it is always taken"
    assert of_chart("a -->|then| b") == [f"2:3 W-LABEL a: {detail}"]
    assert of_chart("a -->|then| b\na -->|Then!| c") == [f"2:3 W-LABEL a: {detail}"]
    assert of_chart("a -->|then| b\na --> c") == []
    assert of_chart("h{{Q}} -->|then| b") == []


def test_a_circle_with_several_labels_is_a_strange_place_to_choose() -> None:
    (only,) = of_chart("a --> m((m))\nm -->|x| b\nm --> c")
    assert only.startswith("3:3 W-LABEL m: a circle gives no answer")


def test_options_are_those_of_the_edges_unless_written() -> None:
    chart = "h{{Q}} -->|Yes| a\nh -->|no way| b\nh -->|yes!| b\nh -->|default| a\nh -->|timeout| b"
    options = bare(chart).graph.by_id["h"].options
    assert [(option.label, option.value) for option in options] == [
        ("Yes", "Yes"),
        ("no way", "no way"),
    ]
    assert bare("h{{Q}} --> a").graph.by_id["h"].options == ()


def test_written_options_have_labels_values_and_descriptions() -> None:
    written = "options:\n  - ok\n  - {label: Not yet, value: reject, description: Says why.}"
    chart = "h{{Q}} -->|ok| a\nh -->|reject| h"
    flow = read(flow_text(chart, settings("h", written, prompt="Fine?") + sections("a")))
    node = flow.graph.by_id["h"]
    assert [(o.label, o.value, o.description) for o in node.options] == [
        ("ok", "ok", ""),
        ("Not yet", "reject", "Says why."),
    ]
    assert node.question == "Fine?"


@pytest.mark.parametrize(
    ("options", "chart"),
    [
        ("[yes, no]", "h{{Q}} -->|yes| a\nh -->|no| b"),
        ("[Yes., NO]", "h{{Q}} -->|yes| a\nh -->|no| b"),
        ("[{label: yes, value: 1st}, no]", "h{{Q}} -->|yes| a\nh -->|no| b"),
        ("[{label: 1st, value: yes}, no]", "h{{Q}} -->|yes| a\nh -->|no| b"),
        ("[yes, no]", "h{{Q}} --> a --> b"),
        ("[yes, no]", "h{{Q}} -->|yes| a\nh --> b"),
        ("[yes, no]", "h{{Q}} -->|yes| a\nh -->|default| b"),
    ],
)
def test_options_and_labels_may_fit_in_several_ways(options: str, chart: str) -> None:
    text = flow_text(chart, settings("h", f"options: {options}") + sections("a", "b"))
    assert len(read(text).graph.by_id["h"].options) == 2


@pytest.mark.parametrize(
    ("options", "more", "expected"),
    [
        ("[yes, no]", "", "8:16 E-OPTION h: the option 'no' leads nowhere: no edge has that label"),
        ("[yes]", "h -->|nope| b", "4:3 E-OPTION h: the label 'nope' is none of its options"),
        ("[yes, yes!]", "", "8:16 E-OPTION h: two options have the value 'yes!'"),
        ("[yes, '']", "", "8:16 E-OPTION h: options[1]: string should have at least 1 character"),
        ("[yes, 5]", "", "8:16 E-OPTION h: options[1]: expected a mapping"),
        ("[yes, {value: x}]", "", "8:16 E-OPTION h: options[1].label: has to be there"),
        ("yes", "", "8:1 E-OPTION h: options: expected a list, not 'yes'"),
    ],
)
def test_options_that_fit_no_label_are_told_and_labels_that_fit_no_option(
    options: str, more: str, expected: str
) -> None:
    chart = f"h{{{{Q}}}} -->|yes| a\n{more or 'a --> b'}"
    rest = settings("h", f"options: {options}") + sections("a", "b")
    (only,) = told(flow_text(chart, rest))
    assert only.startswith(expected)


def test_custom_input_lets_labels_be_more_than_the_options() -> None:
    chart = "h{{Q}} -->|yes| a\nh -->|later| b\nh --> c"
    rest = settings("h", "options: [yes]\nallowCustomInput: true") + sections("a", "b", "c")
    assert read(flow_text(chart, rest)).graph.by_id["h"].allows_custom_input


def test_a_refused_edge_makes_no_second_problem_of_an_option() -> None:
    chart = "h{{Q}} -->|yes| a\nh ---|no| b"
    found = told(flow_text(chart, settings("h", "options: [yes, no]") + sections("a", "b")))
    assert [line.split()[1] for line in found] == ["E-EDGE"]


def test_an_edge_for_a_time_limit_needs_one() -> None:
    chart = "h{{Q}} -->|timeout| a\nh -->|ok| a"
    detail = "there is an edge 'timeout' and no time limit, so it is never taken"
    assert warned(flow_text(chart, sections("a"))) == [f"3:8 W-LABEL h: {detail}"]
    assert warned(flow_text(chart, settings("h", "timeout: 5") + sections("a"))) == []


def test_a_route_for_a_time_limit_needs_one_too() -> None:
    text = flow_text("h{{Q}} --> a", settings("h", "onTimeout: a") + sections("a"))
    assert told(text) == ["7:1 E-TIMEOUT h: onTimeout without timeout has no effect"]


FREE = "options: [yes, no]\nallowCustomInput: true"
ASKED = "h{{Fine?}} -->|yes| a\nh -->|no| b"


@pytest.mark.parametrize("written", [FREE, "config: {allowCustomInput: true}"])
def test_a_free_answer_without_an_edge_for_it_is_a_dead_end(written: str) -> None:
    text = flow_text(ASKED, settings("h", written) + sections("a", "b"))
    (only,) = warned(text)
    assert only.partition(" ")[2] == (
        "W-ANSWER h: any text is an answer, but no edge takes one that is no option: the run fails"
    )
    front = "onError: a\n"
    (only,) = warned(flow_text(ASKED, settings("h", written) + sections("a", "b"), front))
    assert only.endswith("the run goes to 'a'")


@pytest.mark.parametrize("way", ["h -->|default| b", "h --> b"])
def test_a_free_answer_with_a_way_for_it_is_fine(way: str) -> None:
    assert warned(flow_text(f"{ASKED}\n{way}", settings("h", FREE) + sections("a", "b"))) == []
    assert warned(flow_text("h{{What?}} --> a", settings("h", FREE) + sections("a"))) == []


def test_a_time_limit_without_a_way_is_a_dead_end() -> None:
    limited = settings("h", "options: [yes, no]\ntimeout: 1000") + sections("a", "b")
    found = warned(flow_text(ASKED, limited))
    assert found == ["9:1 W-ANSWER h: when its timeout is over no edge is taken: the run fails"]
    assert warned(flow_text(f"{ASKED}\nh -->|timeout| b", limited)) == []
    assert warned(flow_text(f"{ASKED}\nh -->|default| b", limited)) == []
    elsewhere = limited.replace("timeout: 1000", "timeout: 1000\nonTimeout: b")
    assert warned(flow_text(ASKED, elsewhere)) == []
