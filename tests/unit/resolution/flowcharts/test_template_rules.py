from __future__ import annotations

import pytest

from sequencer.workflows import templates
from sequencer.workflows.flowfile import rules as template_rules
from tests.unit.resolution.flowcharts.flows import (
    flow_text,
    refusal,
    sections,
    settings,
    told,
    warned,
)


def wrong(prompt: str, front: str = "state: {x: 1}\n") -> list[str]:
    """Return what is told about *prompt*, which begins in line 12, without its code."""
    chart = "a --> b --> c.d"
    rest = settings("a", "output.key: out.text\ninput: {k: 1}", prompt) + sections("b", "c.d")
    found = told(flow_text(chart, rest, front))
    assert all(" E-TEMPLATE a: " in line for line in found)
    return [line.replace(" E-TEMPLATE a:", "") for line in found]


INPUT = """
output.key: out.text
input: {k: 1, map: {one: [5, {two: x}]}, json: '{"in": [1]}', later: "{{output}}", none: null}
"""
STATE = """
state:
  x: 1
  text: a
  unset: null
  empty: {}
  map: {in: {deep: 1}, items: [1]}
  out: {other: 1}
"""


def fine(prompt: str) -> list[str]:
    rest = settings("a", INPUT, prompt) + sections("b", "c.d")
    return warned(flow_text("b --> a --> c.d", rest, STATE))


def deep(prompt: str) -> list[str]:
    """Return what is told about *prompt*, each with its hint."""
    rest = settings("a", INPUT, prompt) + sections("b", "c.d")
    problems = refusal(flow_text("a --> b --> c.d", rest, STATE)).problems
    assert {problem.code for problem in problems} == {"E-TEMPLATE"}
    return [f"{problem.detail.partition(': ')[2]}; {problem.hint}" for problem in problems]


@pytest.mark.parametrize(
    "template",
    [
        *("state.x", "state.out", "state.out.text.0", "state", "output"),
        *("output.field", "nodes.b.output", "nodes.b.output.0", "nodes.c.d.output", "input"),
        *("input.k", "input.map.one.0", "input.map.one.1.two", "input.json.in.0", "input.later.x"),
        *("state.text.may.be.json", "state.unset.x", "state.empty.x.0", "state.map.in.deep"),
        *("state.map", "state.map.items.7", "state.out.text", "state.out.other", "input.none"),
        *("state._error", "state._error.message", "state._iteration_count"),
        *("state._workflow_id", "state._current_node", "state._completed_nodes.0"),
        *("request.title", "other", "nodesx.y", "inputs.k", "steps.a", "statement"),
    ],
)
def test_templates_that_may_have_a_value_are_fine(template: str) -> None:
    assert fine(f"Go {{{{{template}}}}} and {{{{ {template} }}}}.") == []


@pytest.mark.parametrize(
    ("template", "detail"),
    [
        ("nodes.z.output", "there is no node 'z'"),
        ("nodes.b", "a node has nothing but its output"),
        ("nodes.b.result", "a node has nothing but its output"),
        ("nodes.c.output", "there is no node 'c'"),
        ("nodes", "there is no node ''"),
        ("input.none", "input has no key 'none'"),
        ("state.none", "nothing sets state.none"),
        ("state.text", "nothing sets state.text"),
        ("state._unknown", "nothing sets state._unknown"),
        ("state..x", "a name between its dots is empty"),
        ("state.x.", "a name between its dots is empty"),
    ],
)
def test_templates_that_can_have_none_are_told(template: str, detail: str) -> None:
    assert wrong(f"Go\n and {{{{{template}}}}}.") == [f"14:6 {{{{{template}}}}}: {detail}"]


@pytest.mark.parametrize(
    ("template", "missing", "known"),
    [
        ("state.x.deep", "state.x.deep", "there is none"),
        ("state.out.texd.0", "state.out.texd", "did you mean 'text'? there are: other, text"),
        ("state.map.im.deep", "state.map.im", "there are: in, items"),
        ("state.map.in.deep.er", "state.map.in.deep.er", "there is none"),
        ("state.map.items.first", "state.map.items.first", "there is none"),
        ("state._error.xyz", "state._error.xyz", "there are: attempts, message, node, type"),
        ("state._iteration_count.x", "state._iteration_count.x", "there is none"),
    ],
)
def test_a_path_is_followed_as_far_as_the_state_goes(
    template: str, missing: str, known: str
) -> None:
    found = deep(f"{{{{{template}}}}}")
    assert found == [f"nothing sets {missing}; {known}; or set it under 'state:'"]


@pytest.mark.parametrize(
    ("template", "missing", "known"),
    [
        ("input.k.deep", "k.deep", "there is none"),
        ("input.none.x", "none.x", "there is none"),
        ("input.map.ones", "map.ones", "did you mean 'one'? there are: one"),
        ("input.map.one.2", "map.one.2", "there is none"),
        ("input.map.one.99999999999999999999", "map.one.99999999999999999999", "there is none"),
        ("input.json.im", "json.im", "there are: in"),
        ("input.map.one.1.two.three", "map.one.1.two.three", "there is none"),
    ],
)
def test_a_path_is_followed_as_far_as_the_input_goes(
    template: str, missing: str, known: str
) -> None:
    assert deep(f"{{{{{template}}}}}") == [f"input has no key {missing!r}; {known}"]


def test_a_path_longer_than_any_that_is_looked_into_is_told() -> None:
    detail = "at most 10 parts are looked into; None"
    assert deep("{{state.text.1.2.3.4.5.6.7.8.9.10}}") == [detail]
    assert fine("{{state.text.1.2.3.4.5.6.7.8.9}}") == []


def test_nothing_can_be_looked_into_where_nothing_has_reached() -> None:
    detail = "nothing leads to this node, so the output that reached it is empty; None"
    assert deep("{{output}} {{output.field}}") == [detail]


def test_what_is_only_set_by_outputs_has_their_keys_alone() -> None:
    nodes = settings("a", "output.key: found.facts") + settings("b", "output.key: found.tone.all")
    text = flow_text(
        "a --> b --> c",
        nodes + sections("c", prompt="{{state.found.fact}} {{state.found.tone}} {{state.found}}"),
    )
    assert [(problem.detail, problem.hint) for problem in refusal(text).problems] == [
        (
            "{{state.found.fact}}: nothing sets state.found.fact",
            "did you mean 'facts'? there are: facts, tone; or set it under 'state:'",
        )
    ]


def test_an_output_reaches_where_a_person_s_time_leads() -> None:
    person = settings("h", "timeout: 5\nonTimeout: late\noptions: [x]")
    rest = sections("a", "b") + person + sections("late", prompt="{{output.x}}")
    found = warned(flow_text("a --> h{{Q}} -->|x| b\n late", rest))
    assert [line for line in found if "TEMPLATE" in line] == []


def test_each_is_told_at_its_own_place() -> None:
    found = wrong("{{state.p}} {{state.x}} {{ state.q }}\n\nüü {{input.r}}")
    assert [line.split(":", 2)[:2] for line in found] == [
        ["13", "1 {{state.p}}"],
        ["13", "25 {{ state.q }}"],
        ["15", "4 {{input.r}}"],
    ]


def test_without_a_state_only_the_outputs_are_there() -> None:
    assert len(wrong("{{state.x}} {{state.out}}", "id: demo\n")) == 1


def test_the_known_names_are_listed() -> None:
    text = flow_text("a --> b", sections("a", prompt="{{nodes.bb.output}}") + sections("b"))
    assert refusal(text).problems[0].hint == "did you mean 'b'? there are: a, b"
    text = flow_text("a", sections("a", prompt="{{state.resutl}}"), "state: {result: 1}\n")
    hint = refusal(text).problems[0].hint or ""
    assert hint.startswith("did you mean 'result'? there are: result, _completed_nodes")
    assert hint.endswith("or set it under 'state:'")


def test_texts_of_input_are_looked_at_where_they_stand() -> None:
    written = """\
        input:
          good: "{{state.x}}"
          list: ["{{output}}", "{{nodes.z.output}}"]
          map: {deep: "{{state.y}}"}
          self: "{{input.good}}"
        """
    text = flow_text("a", settings("a", written), "state: {x: 1}\n")
    assert told(text) == [
        "12:24 E-TEMPLATE a: {{nodes.z.output}}: there is no node 'z'",
        "13:9 E-TEMPLATE a: {{state.y}}: nothing sets state.y",
        "14:3 E-TEMPLATE a: {{input.good}}: input can't hold itself",
    ]


def test_what_a_person_is_asked_is_looked_at_too() -> None:
    asked = flow_text("a --> h{{Q}}", sections("a") + sections("h", prompt="{{state.no}}?"))
    assert told(asked) == ["8:1 E-TEMPLATE h: {{state.no}}: nothing sets state.no"]
    label = flow_text('a --> h{{"Is {{state.no}} fine?"}}', sections("a"))
    assert told(label) == ["3:7 E-TEMPLATE h: {{state.no}}: nothing sets state.no"]


@pytest.mark.parametrize(
    "template", ["{{state.x | upper}}", "{{ state.items[0] }}", "{{output + 1}}", "{{nodes.a/b.x}}"]
)
def test_what_only_looks_like_a_template_is_a_warning(template: str) -> None:
    detail = f"{template} is not read as a template, it stays as it is"
    assert fine(f"Go\n  {template}") == [f"21:3 W-TEMPLATE a: {detail}"]


def test_other_braces_are_text() -> None:
    assert fine("{{#if x}} {{ }} {{{state}} {state.none} {{.Values.x}} ${{ secrets.X }}") == []


def test_what_is_looked_at_is_what_is_filled_in() -> None:
    assert template_rules._TEMPLATE.pattern == templates._TEMPLATE.pattern


# Keys of the state


@pytest.mark.parametrize(
    ("key", "detail"),
    [
        ("_x", "keys that begin with '_' are the run's own"),
        ("_x.y", "keys that begin with '_' are the run's own"),
        ("a..b", "a part between its dots is empty"),
        (".a", "a part between its dots is empty"),
        ("one.b", "state.one is no mapping, so nothing can be put below it"),
        ("two.deep.b", "state.two.deep is no mapping, so nothing can be put below it"),
        ("list.0", "state.list is no mapping, so nothing can be put below it"),
        ("false.b", "state.false is no mapping, so nothing can be put below it"),
    ],
)
def test_keys_that_can_not_be_set_are_told(key: str, detail: str) -> None:
    front = "state: {one: 1, two: {deep: text}, list: [1], 'false': false, empty: null}\n"
    text = flow_text("a", settings("a", f"output: {{key: '{key}'}}"), front)
    assert told(text) == [f"10:10 E-STATE a: output.key {key!r}: {detail}"]


@pytest.mark.parametrize("key", ["one", "two.deep", "two.other.x", "empty.x", "new.x", "a_b-c"])
def test_keys_that_can_be_set_are_fine(key: str) -> None:
    front = "state: {one: 1, two: {deep: text}, empty: null}\n"
    assert warned(flow_text("a", settings("a", f"output.key: {key}"), front)) == []


def keyed(chart: str, **keys: str) -> list[str]:
    """Return the warnings of *chart*, the agents of *keys* having those output keys."""
    rest = "".join(settings(name, f"output.key: {key}") for name, key in keys.items())
    found = warned(flow_text(chart, rest))
    assert all("W-KEY" in line for line in found)
    return [line.split(" W-KEY ")[1].split(":")[0] for line in found]


@pytest.mark.parametrize(
    ("chart", "expected"),
    [
        ("s((s)) --> a & b", ["a b"]),
        ("s((s)) --> a & m((m))\nm --> b", ["a b"]),
        ("s((s)) -->|x| a & b", ["a b"]),
        ("s((s)) --> m((m)) & n((n))\nm --> a\nn --> b\na & b --> e((e))", ["a b"]),
        ("s((s)) --> m((m)) & n((n))\nm --> a & b\nn --> a & b", ["a b"]),
        ("a --> b", []),
        ("s((s)) --> a & m((m))\na & m --> b", []),
        ("h{{Q}} -->|x| a\nh -->|y| b", []),
        ("h{{Q}} -->|x| a\nh --> b", []),
        ("a --> h{{Q}}\nh -->|again| a\nh -->|on| b", []),
    ],
)
def test_nodes_that_may_run_at_once_and_write_one_key_are_a_warning(
    chart: str, expected: list[str]
) -> None:
    assert keyed(chart, a="k", b="k") == expected


def test_different_keys_are_no_matter_and_one_warning_a_key_is_enough() -> None:
    assert keyed("s((s)) --> a & b & c", a="k", b="l", c="m") == []
    assert keyed("s((s)) --> a & b & c & d", a="k", b="k", c="k", d="l") == ["a b"]


def test_several_entries_run_at_once() -> None:
    chart = "subgraph g\na\nb\nend"
    rest = settings("a", "output.key: k") + settings("b", "output.key: k")
    (only,) = warned(flow_text(chart, rest, "entrypoint: g\n"))
    assert only.startswith("18:1 W-KEY a b: both may run at once and write state.k")


def test_a_key_below_another_ones_is_a_warning() -> None:
    assert keyed("a --> b", a="k", b="k.x.y") == ["b"]
    assert keyed("a --> b", a="k", b="kk.x") == []
