from __future__ import annotations

import time

import pytest

from sequencer.model.net.rules import choose
from sequencer.workflows.flowfile.problems import FlowErrors
from tests.unit.resolution.flowcharts.flows import bare, flow_text, read, refusal, sections, told


def edges(chart: str) -> list[str]:
    """Return the edges of a bare chart as ``a>b`` or ``a>b|label``."""
    found = []
    for edge in bare(chart).graph.edges:
        label = f"|{edge.label}" if edge.label else ""
        found.append(f"{edge.source}>{edge.target}{label}")
    return found


def test_edges_of_a_group_are_those_of_its_entries_and_exits() -> None:
    chart = "m --> g\nsubgraph g[Review]\nx --> y\nx --> z\nend\ng --> n"
    assert edges(chart) == ["m>x", "x>y", "x>z", "y>n", "z>n"]
    assert [node.id for node in bare(chart).graph.nodes] == ["m", "x", "y", "z", "n"]


def test_an_edge_is_expanded_where_it_stands() -> None:
    chart = "a --> b\na -->|l| g\na --> c\nsubgraph g\nx\ny\nend"
    assert edges(chart) == ["a>b", "a>x|l", "a>y|l", "a>c"]


def test_from_each_exit_to_each_entry() -> None:
    chart = "subgraph g\na\nb\nend\nsubgraph h\nx\ny\nend\ng --> h"
    assert edges(chart) == ["a>x", "a>y", "b>x", "b>y"]


def test_entries_are_in_the_order_of_the_chart() -> None:
    chart = "y --> e\nm --> g\nsubgraph g\nx --> e\ny\nend"
    assert edges(chart) == ["y>e", "m>y", "m>x", "x>e"]


def test_without_a_member_that_nothing_leads_to_the_first_one_is_the_entry() -> None:
    chart = "m --> g\nsubgraph g\nx --> y\ny -->|again| x\nend\ny -->|on| n"
    assert edges(chart) == ["m>x", "x>y", "y>x|again", "y>n|on"]


def test_edges_from_outside_and_to_itself_make_no_member_less_of_an_entry() -> None:
    chart = "m --> y\nm --> g\nsubgraph g\nx --> y\nx -->|again| x\nend"
    assert edges(chart) == ["m>y", "m>x", "x>y", "x>x|again"]


def test_groups_in_groups_count_with_their_members() -> None:
    chart = """\
        m --> g
        subgraph g
            a --> h
            subgraph h
                b --> c
            end
            h --> d
        end
        g --> n
        """
    assert edges(chart) == ["m>a", "a>b", "b>c", "c>d", "d>n"]


def test_an_edge_into_an_inner_group_past_its_border_is_one_to_a_member() -> None:
    chart = "m --> g\nsubgraph g\nc --> b\nsubgraph h\na --> b\nend\nend\ng --> n"
    assert edges(chart) == ["m>c", "m>a", "c>b", "a>b", "b>n"]


def test_an_inner_circle_that_nothing_leads_to_is_begun_too() -> None:
    chart = "m --> g\nsubgraph g\nc\nsubgraph h\na --> b\nb --> a\nend\nend"
    assert edges(chart) == ["m>c", "m>a", "a>b", "b>a"]
    led = "m --> g\nsubgraph g\nc --> h\nsubgraph h\na --> b\nb --> a\nend\nend"
    assert edges(led) == ["m>c", "c>a", "a>b", "b>a"]


def test_a_member_may_lead_back_to_its_own_group() -> None:
    chart = "m --> g\nsubgraph g\nx --> y\ny -->|again| g\nend\ny -->|on| n"
    assert edges(chart) == ["m>x", "x>y", "y>x|again", "y>n|on"]


def test_a_member_of_an_inner_group_may_lead_back_to_the_outer_one() -> None:
    chart = "m --> g\nsubgraph g\nw\nsubgraph h\nx -->|again| g\nend\nend\nx -->|on| n"
    assert edges(chart) == ["m>w", "m>x", "x>w|again", "x>x|again", "x>n|on"]


def test_a_group_may_be_put_into_one_that_comes_before_it() -> None:
    chart = "m --> h\nsubgraph h\ng\nend\nsubgraph g\nx\nend\nh --> n"
    assert edges(chart) == ["m>x", "x>n"]


def test_of_groups_that_name_each_other_the_first_one_is_in_the_second() -> None:
    chart = "m --> h\nsubgraph h\nx --> g\nend\nsubgraph g\ny --> h\nend"
    assert edges(chart) == ["m>x", "x>y", "y>x"]


def test_the_entry_of_a_run_may_be_a_group() -> None:
    chart = "s((s)) --> g\nsubgraph g\nx --> z\ny --> z\nend\ng --> n"
    flow = read(flow_text(chart, sections("x", "y", "z", "n"), "entrypoint: g\n"))
    assert flow.graph.entries == ("x", "y")


def test_a_handler_may_be_a_group_with_one_entry() -> None:
    chart = "a\nsubgraph g\nx --> y\nend\nsubgraph h\nz\nw\nend"
    rest = sections("a", "x", "y", "z", "w")
    assert read(flow_text(chart, rest, "onError: g\n")).graph.on_error == "x"
    assert told(flow_text(chart, rest, "onError: h\n")) == [
        "2:1 E-ONERROR h: the group 'h' has not one entry: z, w"
    ]


def test_a_group_that_nothing_leaves_can_not_be_left() -> None:
    chart = "m --> g\nsubgraph g\nx --> y\ny --> x\nend\ng -->|l| n"
    assert told(flow_text(chart, sections("m", "x", "y", "n"))) == [
        "8:3 E-SUBGRAPH g n: the group 'g' has no exit: each member leads to another one"
    ]
    alone = "m --> g\nsubgraph g\nx -->|again| x\nend\ng --> n"
    assert [
        problem.code for problem in refusal(flow_text(alone, sections("m", "x", "n"))).problems
    ] == ["E-SUBGRAPH"]


def test_a_group_without_nodes_leads_nowhere() -> None:
    text = flow_text("m --> g\nsubgraph g\nend", sections("m"))
    assert told(text) == ["3:3 E-SUBGRAPH m g: the group 'g' has no nodes"]
    text = flow_text("m\nsubgraph g\nend\ng --> m", sections("m"))
    assert told(text) == ["6:3 E-SUBGRAPH g m: the group 'g' has no nodes"]


def test_edges_that_become_equal_are_one() -> None:
    flow = bare("g --> n\ny --> n\nsubgraph g\nx --> y\nend")
    assert [(edge.source, edge.target) for edge in flow.graph.edges] == [("y", "n"), ("x", "y")]
    assert [
        (w.message.split(":")[0], w.position) for w in flow.warnings if w.code == "W-TWICE"
    ] == [("W-TWICE y n", (3, 3))]


def test_refused_and_invisible_lines_lead_nowhere_within_a_group() -> None:
    assert edges("m --> g\nsubgraph g\nx ~~~ y\nend") == ["m>x", "m>y"]


def test_a_chart_of_groups_alone_has_no_node() -> None:
    assert told(flow_text("subgraph g\nend")) == ["- E-CHART flow.md: the chart has no node"]


@pytest.mark.parametrize("size", [400, 4_000])
def test_groups_can_not_multiply_without_end(size: int) -> None:
    members = [f"{letter}{place}" for letter in "ab" for place in range(size)]
    half = "\n".join(members[:size])
    chart = f"subgraph g\n{half}\nend\nsubgraph h\n" + "\n".join(members[size:]) + "\nend\ng --> h"
    problems = refusal(flow_text(chart, "")).problems
    assert "E-SUBGRAPH" in {problem.code for problem in problems} or len(problems) > 500


def test_the_same_edge_between_two_large_groups_is_not_made_for_ever() -> None:
    groups = (
        f"subgraph {name}\n" + "\n".join(f"{name}{n}" for n in range(300)) + "\nend"
        for name in ("g", "h")
    )
    begin = time.process_time()
    with pytest.raises(FlowErrors) as refused:
        bare("\n".join([*groups, *["g --> h"] * 3000]))
    assert time.process_time() - begin < 10
    text = "E-SUBGRAPH g h: more than 100000 edges, those of groups counted for each node"
    assert [problem.message for problem in refused.value.problems] == [text]


def test_labels_are_what_the_picture_shows() -> None:
    chart = """
        a{{"Is it #quot;ok#quot;<br/>now? &lt;b&gt;"}} -->|it#39;s<BR>ok| b
        a -->|R&D &amp; Co| c
        a -->|"#lt;br#gt;"| c
    """
    graph = read(flow_text(chart, sections("b", "c"))).graph
    assert graph.by_id["a"].label == 'Is it "ok" now? <b>'
    assert [edge.label for edge in graph.edges] == ["it's ok", "R&D & Co", "<br>"]
    assert [option.value for option in graph.by_id["a"].options] == ["it's ok", "R&D & Co", "<br>"]
    assert [choose(graph, "a", said) for said in ("It's ok.", "r&d_& co")] == [(0,), (1,)]


def test_edges_that_look_the_same_are_one() -> None:
    flow = read(flow_text("a -->|it's| b\na -->|it#39;s| b\na -->|no| b", sections("a", "b")))
    assert [edge.label for edge in flow.graph.edges] == ["it's", "no"]
    assert [warning.code for warning in flow.warnings] == ["W-TWICE"]
