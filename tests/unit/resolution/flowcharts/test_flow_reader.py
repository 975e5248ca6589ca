from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.documents.keys import ConfigurationErrors
from sequencer.model.net.graph import NodeKind
from sequencer.model.step import Retry
from sequencer.workflows.flowfile.markdown import MAX_CHARS
from sequencer.workflows.flowfile.problems import MAX_PROBLEMS, FlowErrors
from sequencer.workflows.flowfile.reader import load_flow, read_flow
from sequencer.workflows.flowfile.settings import Overrides
from tests.unit.resolution.flowcharts.flows import (
    FILE,
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

DOCUMENTED = """\
---
id: "workflow-id"
name: "Workflow Name"
version: "0.1"
description: "..."
entrypoint: "start"

state:
  input: ""
  result: null

config:
  timeout: 300000           # Workflow timeout (ms)
  maxIterations: 50         # Max loop iterations

retry:
  maxAttempts: 3
  backoff: exponential
  initialDelay: 1000

onError: "error_handler"
---

# Workflow Name

```mermaid
flowchart TD
    start[Start Node] --> process[Process]
    process --> decision{{Human Decision}}
    decision -->|approve| end_node[End]
    decision -->|reject| start
    error_handler[Handler]
```

### start

Look at {{state.input}}.

### process

---
description: "Process the input"
mode: subagent
model: anthropic/claude-sonnet-4-20250514
temperature: 0.1

tools:
  read: true
  write: false

input:
  data: "{{state.input}}"

output:
  key: "process_result"
---

You are a processing agent. Process the following input:

**Input:** {{state.input}}

Analyze and return structured results.

### end_node
{{nodes.decision.output}} of {{state.process_result}}

### error_handler
What went wrong: {{state._error.message}}
"""


def test_the_documents_own_example_is_a_graph() -> None:
    flow = read(DOCUMENTED)
    graph = flow.graph
    assert flow.warnings == ()
    assert flow.workflow.kind == "graph"
    assert flow.workflow.graph is graph
    assert [step.name for step in flow.workflow.steps] == [
        "start", "process", "end_node", "error_handler",
    ]  # fmt: skip
    assert graph.by_id["decision"].kind is NodeKind.HUMAN
    assert [option.value for option in graph.by_id["decision"].options] == ["approve", "reject"]
    assert [(edge.source, edge.target, edge.label) for edge in graph.edges] == [
        ("start", "process", ""),
        ("process", "decision", ""),
        ("decision", "end_node", "approve"),
        ("decision", "start", "reject"),
    ]
    assert (graph.entries, graph.on_error) == (("start",), "error_handler")
    step = flow.workflow.steps_by_name["process"]
    assert (step.provider, step.model) == ("anthropic", "claude-sonnet-4-20250514")
    assert (step.text or "").startswith("You are a processing agent.")
    assert (step.text or "").endswith("structured results.")
    assert step.retry == Retry(
        max_attempts=3, backoff="exponential", initial_delay_s=1, max_delay_s=60
    )


def test_a_setting_has_its_place_and_what_is_not_written_that_of_its_section_or_node() -> None:
    flow = read(DOCUMENTED)
    assert flow.where("process", "model") == "flow.md:44:1"
    assert flow.where("process", "tools", "write") == "flow.md:49:3"
    assert flow.where("process", "max_turns") == "flow.md:39:1"
    assert flow.where("decision", "timeout") == "flow.md:29:17"
    assert (flow.mermaid_line, flow.mermaid.splitlines()[0]) == (27, "flowchart TD")


def test_the_name_is_the_asked_one_else_the_id_else_the_files() -> None:
    text = flow_text("a", sections("a"), "id: mine\n")
    assert read_flow(text, file=FILE).workflow.name == "mine"
    assert read_flow(text, file=FILE, name="asked").workflow.name == "asked"
    text = flow_text("a", sections("a"))
    assert read_flow(text, file=Path("dir/review.md")).workflow.name == "review"


def test_the_title_is_the_name_else_the_heading_else_the_workflows_name() -> None:
    chart = flow_text("a", sections("a"))
    assert read("# Heading\n" + chart).title == "Heading"
    assert read("---\nname: Name\n---\n# Heading\n" + chart).title == "Name"
    assert read(chart).title == "flow"


def test_prompts_change_no_digest_and_edges_do() -> None:
    one = read(flow_text("a --> b", sections("a", "b")))
    other = read(flow_text("a --> b", sections("a", "b", prompt="Go on.")))
    third = read(flow_text("b --> a", sections("a", "b")))
    assert one.workflow.digest() == other.workflow.digest() != third.workflow.digest()


def test_a_bare_chart_needs_no_sections() -> None:
    flow = bare("s((Start)) --> a[Do] --> h{{Fine?}}\nh -->|yes| q{which}\nq -->|l| b\nq --> c")
    kinds = {node.id: node.kind.value for node in flow.graph.nodes}
    assert kinds == {
        "s": "marker", "a": "agent", "h": "human", "q": "decision", "b": "agent", "c": "agent",
    }  # fmt: skip
    assert [step.name for step in flow.workflow.steps] == ["a", "b", "c"]
    assert flow.workflow.steps[0].text is None
    assert flow.graph.by_id["h"].label == "Fine?"
    assert (flow.workflow.name, flow.mermaid_line) == ("flow", 1)


def test_a_chart_of_people_alone_is_a_workflow_too() -> None:
    assert bare("h{{Fine?}}").workflow.steps == ()


def test_overrides_lie_over_the_front_matter() -> None:
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


def test_wrong_overrides_are_told_like_anything_else() -> None:
    overrides = Overrides(
        entry="x", on_error="y", retry={"max": 1}, timeout=0, timeouts={"a": 0, "z": 1}
    )
    found = told(flow_text("a", sections("a")), overrides)
    assert [line.split(": ")[0] for line in found] == [
        "- E-TIMEOUT flow.md", "- E-RETRY flow.md", "- E-TIMEOUT z", "- E-ONERROR y", "- E-ENTRY x",
        "5:1 E-TIMEOUT a",
    ]  # fmt: skip


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
---
entrypoint: nobody
onError: nobody_else
config: {timeout: -1}
state: {a: 1}
colour: red
---

```mermaid
flowchart TD
    a --- b
    b --> c[(Store)]
    b -->|x| q
    q{Which?} -->|y| a
    q -->|default| b
    q --> c
    subgraph g
        d --> e
        e --> d
    end
    g --> a
```

### a
---
timeout: soon
---
### b
{{nodes.zz.output}}
and {{state.unset}} and {{input.none}}
### a
Again.
### zz
---
mode: all
---
Nobody.
### d
---
output: {key: a.b}
tools: {fly: true}
---
Go.
"""
    assert told(text) == [
        "2:1 E-ENTRY nobody: there is no node 'nobody'",
        "3:1 E-ONERROR nobody_else: there is no node 'nobody_else'",
        "4:10 E-TIMEOUT flow.md: config.timeout: should be greater than 0, not -1",
        "6:1 E-FRONT flow.md: unknown key 'colour'",
        "11:7 E-EDGE a b: only -->, -.-> and ==> are executable",
        "12:11 E-SHAPE c: the shape 'cylinder' has no meaning in a workflow",
        '16:7 E-DEFAULT q: both a "default" edge and an unlabelled edge',
        "18:15 E-SECTION e: there is no section '### e'",
        "21:7 E-SUBGRAPH g a: the group 'g' has no exit: each member leads to another one",
        "24:1 E-SECTION a: its section has no prompt",
        "26:1 E-TIMEOUT a: timeout: expected a whole number, not 'soon'",
        "29:1 E-TEMPLATE b: {{nodes.zz.output}}: there is no node 'zz'",
        "30:5 E-TEMPLATE b: {{state.unset}}: nothing sets state.unset",
        "30:25 E-TEMPLATE b: {{input.none}}: input has no key 'none'",
        "31:1 E-SECTION a: a second section of this id; the first one is in line 24",
        "33:1 E-SECTION zz: the chart has no node of this id",
        "40:10 E-STATE d: output.key 'a.b': state.a is no mapping, so nothing can be put below it",
        "41:9 E-TOOLS d: there is no tool 'fly'",
    ]


def test_the_error_is_a_refused_configuration_and_says_all() -> None:
    error = refusal(flow_text("a --- b\na --x c", sections("a", "b", "c")))
    assert isinstance(error, ConfigurationErrors)
    assert error.exit_code == 2
    assert error.errors == error.problems
    first = error.problems[0]
    assert (first.code, first.subject, first.position) == ("E-EDGE", "a b", (3, 3))
    assert first.message == "E-EDGE a b: only -->, -.-> and ==> are executable"
    assert str(error).splitlines()[:2] == [
        "flow.md:3:3: E-EDGE a b: only -->, -.-> and ==> are executable",
        "  write a --> b, or ~~~ if it is for the layout alone",
    ]


def test_a_chart_that_can_not_be_read_hides_no_other_problem() -> None:
    found = told(flow_text("a[x --> b", settings("a", "timeout: 0"), "colour: red\n"))
    assert [line.split(": ")[0] for line in found] == [
        "2:1 E-FRONT flow.md", "6:2 E-CHART flow.md", "10:1 E-TIMEOUT a",
    ]  # fmt: skip


def test_warnings_stop_nothing_and_stay_beside_the_errors() -> None:
    text = flow_text("a --> b\na --> b", sections("a", "b"))
    detail = "the same edge is there already, in line 3; it is one edge"
    assert warned(text) == [f"4:3 W-TWICE a b: {detail}"]
    error = refusal(text + settings("c", "mode: all"))
    assert [problem.code for problem in error.problems] == ["E-SECTION"]
    assert [problem.code for problem in error.warnings] == ["W-TWICE"]


def test_of_very_many_problems_the_rest_is_counted() -> None:
    text = flow_text("\n".join(f"a --- b{place}" for place in range(MAX_PROBLEMS + 100)))
    problems = refusal(text).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].message.startswith("E-MORE flow.md: ")


def test_files_are_read_by_their_suffix(tmp_path: Path) -> None:
    chart = tmp_path / "c.mmd"
    chart.write_text("graph TD\na --> b\n")
    assert len(load_flow(chart).workflow.steps) == 2
    document = tmp_path / "d.md"
    document.write_text(flow_text("a", sections("a")))
    assert load_flow(document, name="x").workflow.name == "x"
    document.write_text("graph TD\na --> b\n")
    with pytest.raises(FlowErrors, match="there is no flowchart"):
        load_flow(document)


def test_a_file_that_is_not_utf_8_is_told_where(tmp_path: Path) -> None:
    file = tmp_path / "f.md"
    file.write_bytes(b"# T\nab\xff\n")
    with pytest.raises(FlowErrors) as refused:
        load_flow(file)
    assert [shown(problem) for problem in refused.value.problems] == [
        "2:3 E-FILE f.md: byte 0xff is not UTF-8"
    ]


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
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
