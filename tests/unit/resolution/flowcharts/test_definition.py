from __future__ import annotations

import pytest
from pydantic import ValidationError

from sequencer.model.step import Output, Retry, Step
from sequencer.workflows.flowfile.settings import (
    AGENT_KEYS,
    PERSON_KEYS,
    STEP_FIELDS,
    FrontMatter,
    NodeSettings,
    RetrySettings,
    retry_of,
)
from tests.unit.resolution.flowcharts.flows import (
    flow_text,
    read,
    refusal,
    sections,
    settings,
    told,
)


def step(text: str, front: str = "") -> Step:
    """Return the step of an agent with the settings *text*."""
    return read(flow_text("a", settings("a", text), front)).workflow.steps[0]


def wrong(text: str) -> list[str]:
    """Return what is told about the settings *text*, the first of which is in line 7."""
    return told(flow_text("a", settings("a", text)))


def wrong_front(text: str) -> list[str]:
    """Return what is told about the front matter *text*, the first key of which is in line 2."""
    return told(flow_text("a", sections("a"), text))


def test_all_keys_of_the_front_matter_are_read() -> None:
    front = """\
        id: "review"
        name: "Code review"
        version: 0.1
        description: "What it does"
        entrypoint: "a"
        state: {input: "", result: null}
        config: {timeout: 300000, maxIterations: 5, maxParallel: 2}
        retry: {maxAttempts: 3, backoff: exponential, initialDelay: 1000, maxDelay: 5000}
        onError: "b"
        """
    flow = read(flow_text("a & b", sections("a", "b"), front))
    graph = flow.graph
    assert (flow.workflow.name, flow.title, flow.version) == ("review", "Code review", "0.1")
    assert (flow.description, graph.entries, graph.on_error) == ("What it does", ("a",), "b")
    assert graph.state == {"input": "", "result": None}
    assert (graph.timeout_ms, graph.max_iterations, graph.max_parallel) == (300_000, 5, 2)
    expected = Retry(max_attempts=3, backoff="exponential", initial_delay_s=1.0, max_delay_s=5.0)
    assert [step.retry for step in flow.workflow.steps] == [expected, expected]


def test_without_front_matter_the_defaults_hold() -> None:
    flow = read(flow_text("a", sections("a")))
    assert (flow.workflow.name, flow.title, flow.description, flow.version) == (
        "flow", "flow", "", None,
    )  # fmt: skip
    assert (flow.graph.max_iterations, flow.graph.timeout_ms) == (50, None)
    assert (flow.graph.max_parallel, flow.graph.on_error, flow.graph.state) == (None, None, {})
    assert flow.workflow.steps == (Step(name="a", text="Go."),)


def test_keys_without_a_value_mean_their_defaults() -> None:
    assert step("model:\ntools:\nconfig:\noutput:", "id:\nstate:\nconfig:\n") == Step(
        name="a", text="Go."
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("model: anthropic/claude-x", {"provider": "anthropic", "model": "claude-x"}),
        ("model: openrouter/a/b", {"provider": "openrouter", "model": "a/b"}),
        ("model: sonnet", {"model": "sonnet"}),
        ("temperature: 0.1", {"temperature": 0.1}),
        ("tools: {read: true, write: false}", {"tools": {"read": True, "write": False}}),
        ("timeout: 1500", {"timeout_s": 1.5}),
        ("config: {timeout: 1500}", {"timeout_s": 1.5}),
        ("mode: primary", {"continue_session": True}),
        ("mode: subagent", {}),
        ("mode: all", {}),
        ("continue_session: true", {"continue_session": True}),
        ("agent: codex", {"executor": "codex"}),
        ("executor: codex", {"executor": "codex"}),
        ("max_turns: 3", {"max_turns": 3}),
        ("max_cost_usd: 0.5", {"max_cost_usd": 0.5}),
        ("idle_timeout_s: 60", {"idle_timeout_s": 60.0}),
        ("system_prompt: s.md", {"system_prompt": "s.md"}),
        ("append_system_prompt: s.md", {"append_system_prompt": "s.md"}),
        ("append_system_prompt: [s.md, t.md]", {"append_system_prompt": ("s.md", "t.md")}),
        ("allowed_tools: [Read]", {"allowed_tools": ("Read",)}),
        ("disallowed_tools: [Bash]", {"disallowed_tools": ("Bash",)}),
        ("disallow_all_tools: true", {"disallow_all_tools": True}),
        ("single_turn: true", {"single_turn": True}),
        ("no_comment: true", {"no_comment": True}),
        ("suppress_thoughts: true", {"suppress_thoughts": True}),
        ("output: {key: a.b}", {"output": Output(key="a.b")}),
        ("output.key: a.b", {"output": Output(key="a.b")}),
        ("output: {format: json}", {"output": Output(format="json")}),
        ("output.format: json", {"output": Output(format="json")}),
        (
            "output: {key: k, schema: {type: object}}",
            {"output": Output.model_validate({"key": "k", "schema": {"type": "object"}})},
        ),
        (
            "output.schema: {type: object}",
            {"output": Output.model_validate({"schema": {"type": "object"}})},
        ),
    ],
)
def test_settings_are_fields_of_the_step(written: str, expected: dict[str, object]) -> None:
    assert step(written) == Step.model_validate({"name": "a", "text": "Go.", **expected})


def test_what_nobody_wrote_is_left_to_the_projects_defaults() -> None:
    assert step("model: x").model_fields_set == {"name", "text", "model"}
    assert "suppress_thoughts" in step("suppress_thoughts: false").model_fields_set


def test_an_output_key_is_the_nodes_too() -> None:
    flow = read(flow_text("a", settings("a", "output.key: k\ninput: {x: 1}\ndescription: D")))
    node = flow.graph.by_id["a"]
    assert (node.output_key, node.input, node.description) == ("k", {"x": 1}, "D")


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("", Retry(max_attempts=3, backoff="linear", initial_delay_s=1, max_delay_s=60)),
        (
            "config: {retry: {maxAttempts: 1}}",
            Retry(max_attempts=1, backoff="linear", initial_delay_s=1, max_delay_s=60),
        ),
        (
            "config: {retry: {initialDelay: 20, backoff: fixed, maxDelay: 50}}",
            Retry(max_attempts=3, backoff="fixed", initial_delay_s=0.02, max_delay_s=0.05),
        ),
    ],
)
def test_a_nodes_retry_lies_over_the_workflows_field_by_field(own: str, expected: Retry) -> None:
    front = "retry: {maxAttempts: 3, backoff: linear}\n"
    text = settings("a", own) if own else sections("a")
    assert read(flow_text("a", text, front)).workflow.steps[0].retry == expected


def test_no_retry_anywhere_is_none() -> None:
    assert retry_of(None, RetrySettings()) is None
    assert retry_of(RetrySettings(), RetrySettings()) == Retry(
        max_attempts=1, backoff="fixed", initial_delay_s=1, max_delay_s=60
    )


def test_delays_are_those_of_the_language() -> None:
    retry = step("config: {retry: {maxAttempts: 9, backoff: exponential}}").retry
    assert retry is not None
    assert [retry.delay_s(n) for n in (1, 2, 3, 7)] == [1.0, 2.0, 4.0, 60.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("modle: x", "7:1 E-NODE a: unknown key 'modle'"),
        ("config: {retries: 1}", "7:10 E-NODE a: config: unknown key 'retries'"),
        ("output: {keys: k}", "7:10 E-NODE a: output: unknown key 'keys'"),
        ("mode: main", "7:1 E-NODE a: mode: should be 'subagent', 'primary' or 'all', not 'main'"),
        ("timeout: 0", "7:1 E-TIMEOUT a: timeout: should be greater than 0, not 0"),
        ("timeout: -5", "7:1 E-TIMEOUT a: timeout: should be greater than 0, not -5"),
        ("timeout: 1.5", "7:1 E-TIMEOUT a: timeout: expected a whole number, not 1.5"),
        ("timeout: 5s", "7:1 E-TIMEOUT a: timeout: expected a whole number, not '5s'"),
        ('timeout: "5"', "7:1 E-TIMEOUT a: timeout: expected a whole number, not '5'"),
        ("timeout: true", "7:1 E-TIMEOUT a: timeout: expected a whole number, not True"),
        (
            "config:\n  timeout: 0",
            "8:3 E-TIMEOUT a: config.timeout: should be greater than 0, not 0",
        ),
        (
            "config: {retry: {maxAttempts: 0}}",
            "7:18 E-RETRY a: config.retry.maxAttempts: should be greater than or equal to 1, not 0",
        ),
        (
            "config: {retry: {backoff: slow}}",
            "7:18 E-RETRY a: config.retry.backoff: should be 'fixed', 'linear' or 'exponential'",
        ),
        ("temperature: 3", "7:1 E-NODE a: temperature: should be less than or equal to 2, not 3"),
        ("temperature: hot", "7:1 E-NODE a: temperature: expected a number, not 'hot'"),
        ("tools:\n  reed: true", "8:3 E-TOOLS a: there is no tool 'reed'"),
        ("tools: [read]", "7:1 E-TOOLS a: tools: expected a mapping"),
        ("tools: {read: maybe}", "7:9 E-TOOLS a: tools.read: expected true or false, not 'maybe'"),
        ("model: /x", "7:1 E-MODEL a: '/x' is no model"),
        ("model: x/", "7:1 E-MODEL a: 'x/' is no model"),
        ("model: x/-y", "7:1 E-MODEL a: 'x/-y' is no model"),
        ("model: -y", "7:1 E-MODEL a: '-y' is no model"),
        ("model: 5", "7:1 E-MODEL a: model: expected text; put it in quotes, not 5"),
        ("options: [yes]", "7:1 E-NODE a: options is only for a person, drawn as {{text}}"),
        ("onTimeout: a", "7:1 E-NODE a: onTimeout is only for a person, drawn as {{text}}"),
        (
            "config: {allowCustomInput: true}",
            "7:10 E-NODE a: config.allowCustomInput is only for a person, drawn as {{text}}",
        ),
        (
            "timeout: 5\nconfig: {timeout: 6}",
            "8:10 E-NODE a: timeout and config.timeout say the same thing; keep one of them",
        ),
        (
            "output: {key: a}\noutput.key: b",
            "7:10 E-NODE a: output.key and output.key say the same thing; keep one of them",
        ),
        (
            "agent: x\nexecutor: y",
            "8:1 E-NODE a: agent and executor say the same thing; keep one of them",
        ),
        (
            "mode: all\ncontinue_session: true",
            "8:1 E-NODE a: mode and continue_session say the same thing; keep one of them",
        ),
        ("- a", "7:1 E-NODE a: expected 'key: value' lines at the top level"),
        ("a: [", "8:1 E-NODE a: not YAML: "),
        ("mode: all\nmode: all", "8:1 E-NODE a: key 'mode' is there twice, first in line 7"),
        ("input: {{state.x}}", "7:9 E-NODE a: a key has to be text, not a list or mapping"),
    ],
)
def test_what_is_wrong_with_a_nodes_settings_is_told_at_its_place(text: str, expected: str) -> None:
    (only,) = wrong(text)
    assert only.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ide: x\n", "2:1 E-FRONT flow.md: unknown key 'ide'"),
        ("id: ''\n", "2:1 E-FRONT flow.md: id: "),
        ("- a\n", "2:1 E-FRONT flow.md: expected 'key: value' lines at the top level"),
        ("just words\n", "2:1 E-FRONT flow.md: expected 'key: value' lines at the top level"),
        ("config: {timeout: 0}\n", "2:10 E-TIMEOUT flow.md: config.timeout: should be greater"),
        ("config: {timeout: 1e3}\n", "2:10 E-TIMEOUT flow.md: config.timeout: expected a whole"),
        ("config: 5\n", "2:1 E-FRONT flow.md: config: expected a mapping"),
        (
            "config:\n  maxIterations: many\n",
            "3:3 E-FRONT flow.md: config.maxIterations: expected a whole number, not 'many'",
        ),
        ("config: {maxParallel: 0}\n", "2:10 E-FRONT flow.md: config.maxParallel: should be"),
        ("retry: {maxAttempts: x}\n", "2:9 E-RETRY flow.md: retry.maxAttempts: expected a whole"),
        ("retry: {initialDelay: -1}\n", "2:9 E-RETRY flow.md: retry.initialDelay: should be"),
        ("retry: 3\n", "2:1 E-RETRY flow.md: retry: expected a mapping"),
        ("state: [1]\n", "2:1 E-STATE flow.md: state: expected a mapping"),
        ("state: {_x: 1}\n", "2:9 E-STATE flow.md: the key '_x' is the run's own"),
        ("entrypoint: [a]\n", "2:1 E-ENTRY flow.md: entrypoint: expected text"),
        ("onError: 5\n", "2:1 E-ONERROR flow.md: onError: expected text; put it in quotes, not 5"),
        ("a: {b: {{state.x}}}\n", "2:9 E-FRONT flow.md: a key has to be text"),
    ],
)
def test_what_is_wrong_with_the_front_matter_is_told_at_its_place(text: str, expected: str) -> None:
    (only,) = wrong_front(text)
    assert only.startswith(expected)


def test_an_unknown_key_lists_the_known_ones() -> None:
    (problem,) = refusal(flow_text("a", settings("a", "tmperature: 1"))).problems
    assert problem.hint is not None
    assert problem.hint.startswith(
        "did you mean 'temperature'? known keys: agent, allowCustomInput"
    )
    assert "output.key" in problem.hint
    (problem,) = refusal(flow_text("a", settings("a", "tools: {wirte: true}"))).problems
    assert problem.hint is not None
    assert problem.hint.startswith("did you mean 'write'? there are: read, write, edit, bash")


def test_a_template_without_quotes_is_explained() -> None:
    (problem,) = refusal(flow_text("a", settings("a", "input: {x: {{output}}}"))).problems
    assert problem.hint is not None
    assert "double quotes" in problem.hint


def test_every_wrong_key_of_a_section_is_told() -> None:
    assert [line.split(":")[0] for line in wrong("modle: x\ntimeout: 0\ntools: {x: true}")] == [
        "7", "8", "9",
    ]  # fmt: skip


def test_settings_that_are_a_steps_fields_have_its_limits() -> None:
    for name in STEP_FIELDS:
        own, its = NodeSettings.model_fields[name], Step.model_fields[name]
        assert own.metadata == its.metadata, name
        values: tuple[object, ...] = (0, -1, 1, 0.5, "", "x", [], ["x"], [""], {}, True)
        for value in values:
            assert _accepts(NodeSettings, {name: value}) == _accepts(
                Step, {"name": "a", name: value}
            ), (name, value)


def _accepts(model: type[NodeSettings | Step], raw: dict[str, object]) -> bool:
    try:
        model.model_validate(raw)
    except ValidationError:
        return False
    return True


def test_every_setting_is_an_agents_a_persons_or_both() -> None:
    written = {field.alias or name for name, field in NodeSettings.model_fields.items()}
    both = {"description", "input", "output", "output.key", "timeout", "config"}
    top = {path[0] for path in (*AGENT_KEYS, *PERSON_KEYS) if len(path) == 1}
    assert top | both == written
    assert not top & both


def test_the_languages_names_are_the_keys() -> None:
    assert {field.alias or name for name, field in FrontMatter.model_fields.items()} == {
        "id", "name", "version", "description", "entrypoint", "state", "config", "retry", "onError",
    }  # fmt: skip
