"""Workflow files: cases with their answers, limits, and texts that nobody wrote."""

from __future__ import annotations

import json
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.model.step import Retry
from sequencer.workflows.finding import MAX_CHARS, MAX_LISTED, GraphFile
from sequencer.workflows.flowfile.markdown import NodeSection, split
from sequencer.workflows.flowfile.problems import MAX_PROBLEMS, Diagnostics, FlowErrors
from sequencer.workflows.flowfile.reader import load_flow, read_flow
from sequencer.workflows.flowfile.rules import find_parallel_pairs
from sequencer.workflows.flowfile.settings import (
    AGENT_KEYS,
    KEYS,
    PERSON_KEYS,
    NodeSettings,
    Overrides,
)
from tests.project.documents import ROOT
from tests.unit.workflows.flow_cases import CASES, outcome, shown, taken_apart

FILE = Path("flow.md")
CHART = "```mermaid\nflowchart TD\na --> b\n```\n"


def flow_text(chart: str, rest: str = "", front: str = "") -> str:
    """Return a file; without *front* the chart's first line is line 3."""
    before = f"---\n{dedent(front)}---\n" if front else ""
    return f"{before}```mermaid\nflowchart TD\n{dedent(chart).strip()}\n```\n{dedent(rest)}"


def sections(*names: str, prompt: str = "Go.") -> str:
    return "".join(f"### {name}\n{prompt}\n" for name in names)


def settings(name: str, text: str, prompt: str = "Go.") -> str:
    """Return a section with settings; the first one is in its third line."""
    return f"### {name}\n---\n{dedent(text).strip()}\n---\n{prompt}\n"


def read(text: str, overrides: Overrides | None = None) -> GraphFile:
    return read_flow(text, file=FILE, overrides=overrides)


def refusal(text: str, overrides: Overrides | None = None) -> FlowErrors:
    with pytest.raises(FlowErrors) as refused:
        read(text, overrides)
    return refused.value


def told(text: str, overrides: Overrides | None = None) -> list[str]:
    """Return the errors of *text* as ``line:column CODE SUBJECT: detail``, without hints."""
    return [line.split(" (")[0] for line in shown(*refusal(text, overrides).problems)]


@pytest.mark.parametrize("first", range(0, len(CASES), 50))
def test_recorded_files_give_the_expected_results(first: int) -> None:
    for case in CASES[first : first + 50]:
        text, file = case["text"], case["file"]
        found = outcome(text, file) if file else taken_apart(text)
        assert json.loads(json.dumps(found)) == case["expect"], case["name"]


# Thirty flows with what has to come of them; here as far as reading them goes


FLOWS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "data" / "flowcharts" / "flows.json").read_text()
)
VALID = [flow for flow in FLOWS if flow["expect"]["status"] != "invalid"]


def overrides_of(flow: dict[str, Any]) -> Overrides:
    nodes = flow.get("nodes", {})
    return Overrides(
        entry=flow.get("entry"),
        on_error=flow.get("onError"),
        retry=flow.get("retry"),
        max_iterations=flow.get("maxIterations"),
        timeout=flow.get("timeout"),
        timeouts={name: node["timeout"] for name, node in nodes.items() if "timeout" in node},
    )


def back(flow: GraphFile) -> list[str]:
    edges = [flow.graph.edges[place] for place in flow.graph.back_edges]
    return sorted(f"{e.source}->{e.target}" + (f"[{e.label}]" if e.label else "") for e in edges)


@pytest.mark.parametrize("given", VALID, ids=lambda flow: flow["name"])
def test_each_valid_flow_is_read_with_its_loops(given: dict[str, Any]) -> None:
    flow = read_flow(given["mermaid"], file=Path("f.mmd"), overrides=overrides_of(given))
    assert back(flow) == sorted(given["expect"]["back"])
    assert flow.graph.on_error == given.get("onError")
    assert flow.graph.timeout_ms == given.get("timeout")


# The whole file


def test_a_setting_has_a_place_or_that_of_its_section_or_node() -> None:
    rest = settings("a", "model: m\ntools:\n  write: false") + sections("b")
    flow = read(flow_text("a --> h{{Q}}\nh --> b", rest))
    assert flow.locate_setting("a", "model") == "flow.md:8:1"
    assert flow.locate_setting("a", "tools", "write") == "flow.md:10:3"
    assert flow.locate_setting("a", "max_turns") == "flow.md:6:1"
    assert flow.locate_setting("h", "timeout") == "flow.md:3:7"
    assert flow.mermaid.splitlines()[0] == "flowchart TD"


def test_overrides_take_precedence_over_the_front_matter() -> None:
    text = flow_text(
        "a --> b --> h{{Q}}",
        settings("a", "timeout: 5")
        + settings("b", "config: {timeout: 7, retry: {maxAttempts: 9}}"),
        """\
        entrypoint: a
        onError: a
        config: {timeout: 1, maxParallel: 4}
        retry: {maxAttempts: 2}
        """,
    )
    flow = read(
        text,
        Overrides(
            entry="b",
            on_error="b",
            retry={"maxAttempts": 3, "backoff": "linear"},
            max_iterations=0,
            timeout=60,
            timeouts={"b": 200, "h": 300},
        ),
    )
    graph, steps = flow.graph, flow.workflow.steps_by_name
    assert (graph.entries, graph.on_error, graph.max_iterations) == (("b",), "b", 0)
    assert (graph.timeout_ms, graph.max_parallel) == (60, 4)
    assert (steps["a"].timeout_s, steps["b"].timeout_s) == (0.005, 0.2)
    assert graph.by_id["h"].timeout_ms == 300
    assert [step.retry.max_attempts for step in steps.values() if step.retry] == [3, 9]
    assert steps["a"].retry == Retry(
        max_attempts=3, backoff="linear", initial_delay_s=1, max_delay_s=60
    )


def test_wrong_overrides_are_reported_like_other_errors() -> None:
    overrides = Overrides(
        entry="x", on_error="y", retry={"max": 1}, timeout=0, timeouts={"a": 0, "z": 1}
    )
    found = told(flow_text("a", sections("a")), overrides)
    assert [line.split(": ")[0] for line in found] == [
        "- E-TIMEOUT flow.md", "- E-RETRY flow.md", "- E-TIMEOUT z", "- E-ONERROR y", "- E-ENTRY x",
        "5:1 E-TIMEOUT a",
    ]  # fmt: skip


def test_problems_of_a_file_beyond_the_limit_are_counted() -> None:
    text = flow_text("\n".join(f"a --- b{place}" for place in range(MAX_PROBLEMS + 100)))
    problems = refusal(text).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].message.startswith("E-MORE flow.md: ")


def test_files_that_cannot_be_flows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlowErrors, match=r"E-FILE none\.md: can't be read"):
        load_flow(tmp_path / "none.md")
    with pytest.raises(FlowErrors, match="is not a regular file"):
        load_flow(tmp_path)
    large = tmp_path / "large.md"
    large.write_bytes(b"x" * (4 * MAX_CHARS + 1))
    with pytest.raises(FlowErrors, match="has more than"):
        load_flow(large)
    large.write_bytes(b"x" * (MAX_CHARS + 1))
    with pytest.raises(FlowErrors, match="characters"):
        load_flow(large)
    with pytest.raises(FlowErrors, match="characters"):
        load_flow(large.rename(tmp_path / "large.mmd"))


# Keys


def test_every_setting_applies_to_an_agent_a_person_or_both() -> None:
    written = {field.alias or name for name, field in NodeSettings.model_fields.items()}
    both = {"description", "input", "output", "output.key", "timeout", "config"}
    top = {path[0] for path in (*AGENT_KEYS, *PERSON_KEYS) if len(path) == 1}
    assert top | both == written
    assert not top & both


# Problems


def raised(findings: Diagnostics) -> FlowErrors:
    with pytest.raises(FlowErrors) as refused:
        findings.ensure_none()
    return refused.value


def test_without_errors_nothing_is_raised() -> None:
    findings = Diagnostics(Path("f.md"))
    findings.add("W-X", "a", "strange", (1, 2))
    findings.ensure_none()
    assert not findings.has_errors
    assert [str(problem) for problem in findings.warnings] == ["f.md:1:2: W-X a: strange"]


def test_findings_beyond_the_limit_are_counted() -> None:
    findings = Diagnostics(Path("f.md"))
    for place in range(MAX_PROBLEMS + 7):
        findings.add("E-X", "x", "wrong", (place + 1, 1))
        findings.add("W-X", "x", "strange", (place + 1, 1))
    problems = raised(findings).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].message == "E-MORE f.md: 7 more problems are not shown"
    assert len(findings.warnings) == MAX_PROBLEMS


def test_known_names_are_listed_up_to_a_limit_with_the_nearest_first() -> None:
    findings = Diagnostics(Path("f.md"))
    assert findings.hint_for("x", []) == "there is none"
    assert findings.hint_for("biuld", ["plan", "build"]) == (
        "did you mean 'build'? there are: plan, build"
    )
    assert findings.hint_for("zzz", ["plan"]) == "there are: plan"
    many = [f"node{place}" for place in range(MAX_LISTED + 1)]
    assert findings.hint_for("zzz", many).endswith("node19, …")
    assert "did you mean" not in findings.hint_for("node", [f"node{place}" for place in range(501)])


# Markdown


def sections_of(text: str, *names: str) -> tuple[NodeSection, ...]:
    """Return the sections of *text*; without *names* each ``###`` heading starts one."""
    return split(text, Diagnostics(FILE)).read_sections(names or None, KEYS)


@pytest.mark.parametrize(
    "text",
    [
        CHART + "### a\n" + "- " * 2_000,
        CHART + "### a\n" + "> " * 2_000,
        "```mermaid\n" + "%%{" * 30_000,
        "```mermaid\n" + "---\n" * 3_000,
        "### a\n---\n" * 2_500 + CHART,
        CHART + "a\n" * 10_000,
        "---\n" + "a: 1\n" * 10_000,
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


# Hostile and random files


def test_deep_nesting_is_refused_with_a_message() -> None:
    chart = "\n".join(f"subgraph g{depth}" for depth in range(90)) + "\na\n" + "end\n" * 90
    found = told(flow_text(chart, sections("a")))
    assert [line.split(":")[2] for line in found] == [" groups are nested deeper than 32 levels"]
    deeper = "\n".join(f"subgraph g{depth}" for depth in range(5_000)) + "\na\n" + "end\n" * 5_000
    assert [problem.code for problem in refusal(flow_text(deeper, sections("a"))).problems] == [
        "E-CHART"
    ]
    state = "state: " + "{a: " * 100 + "1" + "}" * 100 + "\n"
    assert told(flow_text("a", sections("a"), state)) == [
        "2:132 E-FRONT flow.md: nested deeper than 32 levels"
    ]


_LINES = st.sampled_from(
    [
        "---", "```mermaid", "```", "flowchart TD", "a --> b", "b -->|x| a", "a --- c", "### a",
        "### b", "### g", "subgraph g", "end", "g --> a", "h{{Q}} -->|no| a", "q{x} --> h",
        "timeout: 5", "options: [no]", "output.key: a.b", "state: {a: 1}", "entrypoint: g",
        "onError: h", "{{state.a.b}} {{nodes.a.output}}", "tools: {read: true}", "x: [", "",
        "config: {timeout: 1, retry: {maxAttempts: 2}}", "onTimeout: q", "a[(x)]", "## t", "text",
    ]
)  # fmt: skip


@given(st.lists(_LINES, max_size=40).map("\n".join) | st.text(max_size=200))
def test_any_text_is_a_workflow_or_is_refused_with_problems(text: str) -> None:
    for file in (FILE, Path("flow.mmd")):
        try:
            read_flow(text, file=file)
        except FlowErrors as error:
            assert error.problems  # noqa: PT017 - most texts are refused, and some are not


@given(st.lists(_LINES, max_size=25), st.lists(_LINES, max_size=25))
def test_any_chart_with_any_sections_is_a_workflow_or_is_refused(
    chart: list[str], rest: list[str]
) -> None:
    text = "```mermaid\nflowchart TD\n" + "\n".join(chart) + "\n```\n" + "\n".join(rest)
    try:
        flow = read_flow(text, file=FILE)
    except FlowErrors:
        event("refused")
    else:
        event("loaded")
        assert json.loads(flow.workflow.model_dump_json())["kind"] == "graph"


# Which nodes may run at once


def graph_of(*edges: str, entries: tuple[str, ...] = ()) -> Graph:
    """Return a graph of agents; an edge is ``ab`` or, with a label, ``ab:x``."""
    found = [Edge(source=e[0], target=e[1], label=e[3:]) for e in edges]
    names = list(dict.fromkeys(name for e in found for name in (e.source, e.target)))
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in names)
    return Graph(nodes=nodes, edges=tuple(found), entries=entries or (names[0],))


def meet(graph: Graph, *names: str) -> bool:
    return list(find_parallel_pairs(graph, {"k": names})) != []


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        (("sa", "sb"), True),
        (("sm", "sn", "ma", "nb"), True),
        (("sa", "ab"), False),
        (("sa", "sm", "ab", "mb"), False),
        (("sa:x", "sb:y"), False),
        (("sa:x", "sb:x", "sc:y"), True),
        (("sq", "qa:x", "qb:y"), False),
        (("sq", "sr", "qa:x", "qm:y", "rb:x", "rm:y"), True),
        (("sa", "as:again", "ab:on"), False),
        (("sm", "sn", "mc", "nc", "ca", "cb:x", "cd:y"), False),
    ],
)
def test_only_nodes_reached_from_a_split_by_separate_paths_meet(
    edges: tuple[str, ...], *, expected: bool
) -> None:
    assert meet(graph_of(*edges), "a", "b") is expected


def test_several_entries_are_a_split() -> None:
    assert meet(graph_of("ax", "bx", entries=("a", "b")), "a", "b")
    assert not meet(graph_of("ax", "bx", entries=("a",)), "a", "b")


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=14))
def test_a_node_that_leads_to_another_never_meets_it(pairs: set[tuple[int, int]]) -> None:
    letters = "abcdefg"
    graph = graph_of(*sorted(f"{letters[one]}{letters[other]}" for one, other in pairs))
    names = sorted(graph.by_id)
    for _, one, other in find_parallel_pairs(graph, {"k": names}):
        assert one != other
        assert not _leads(graph, one, other)
        assert not _leads(graph, other, one)


def _leads(graph: Graph, one: str, other: str) -> bool:
    seen, pending = {one}, [one]
    while pending:
        for place in graph.outgoing[pending.pop()]:
            target = graph.edges[place].target
            if place not in graph.back_edges and target not in seen:
                seen.add(target)
                pending.append(target)
    return other in seen
