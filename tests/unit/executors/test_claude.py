"""The arguments that claude gets, and what is made of what it printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ConfigurationError
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.claude import (
    ClaudeExecutor,
    ClaudeOptions,
    ClaudeParser,
    claude_argv,
    explain_no_subagents,
)
from sequencer.executors.process import ProcessCore, ProcessEnd
from sequencer.executors.protocol import Piece
from sequencer.frozen.fields import ValidationError
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.step import Step
from sequencer.project.agents import ensure_supported
from tests.contract.executor_cases import Recorder, request_for
from tests.unit.executors.replay import RULES, STRICT, encoded, feed, replay

BASE = ["claude", "-p", "--output-format=stream-json", "--verbose", "--include-partial-messages"]
SESSION = "0b5c0000-0000-4000-8000-000000000001"
VERSIONS = ["197", "330"]
NO_TOOLS = ["--tools=", "--strict-mcp-config"]


def argv(
    folder: Path,
    entry: dict[str, Any] | None = None,
    step: dict[str, Any] | None = None,
    **request: Any,
) -> list[str]:
    options = ClaudeOptions.model_validate(entry or {})
    made = claude_argv(
        options, request_for(folder, step=Step(name="main", **step or {}), **request)
    )
    assert made[: len(BASE)] == [options.program, *BASE[1:]]
    return made[len(BASE) :]


@pytest.mark.parametrize(
    ("entry", "step", "expected"),
    [
        ({}, {}, []),
        ({"model": "sonnet"}, {}, ["--model=sonnet"]),
        ({"model": "sonnet"}, {"model": "opus"}, ["--model=opus"]),
        ({"permission_mode": "acceptEdits"}, {}, ["--permission-mode=acceptEdits"]),
        ({"allowed_tools": ["Bash(git *)", "Edit"]}, {}, ["--allowedTools=Bash(git *),Edit"]),
        ({"tools": ["Read"]}, {}, ["--tools=Read"]),
        (
            {"allowed_tools": ["Bash"], "tools": ["Bash", "Edit"]},
            {"allowed_tools": ["Read", "Bash(git log*)", "Bash(git diff*)"]},
            ["--tools=Read,Bash", "--allowedTools=Read,Bash(git log*),Bash(git diff*)"],
        ),
        (
            {"disallowed_tools": ["WebFetch"]},
            {"disallowed_tools": ["Agent"]},
            ["--disallowedTools=WebFetch,Agent"],
        ),
        ({}, {"single_turn": True}, [*NO_TOOLS, "--max-turns=1"]),
        ({"tools": ["Read"]}, {"single_turn": True, "max_turns": 9}, [*NO_TOOLS, "--max-turns=1"]),
        ({"tools": ["Read"]}, {"disallow_all_tools": True}, NO_TOOLS),
        (
            {"allowed_tools": ["Bash"]},
            {"disallow_all_tools": True, "allowed_tools": ["Read"], "max_turns": 4},
            [*NO_TOOLS, "--allowedTools=Read", "--max-turns=4"],
        ),
        ({}, {"output": {"format": "json"}}, []),
        ({}, {"output": {"schema": {"type": "object"}}}, ['--json-schema={"type":"object"}']),
        # The form is a tool call, which may take a reminder.
        (
            {},
            {"output": {"schema": {"type": "null"}}, "single_turn": True},
            [*NO_TOOLS, "--max-turns=2", '--json-schema={"type":"null"}'],
        ),
        ({}, {"max_turns": 7}, ["--max-turns=7"]),
        ({"setting_sources": []}, {}, ["--setting-sources="]),
        ({"setting_sources": ["user", "project"]}, {}, ["--setting-sources=user,project"]),
        ({"extra_args": ["--add-dir=../lib"]}, {"model": "m"}, ["--add-dir=../lib", "--model=m"]),
    ],
)
def test_options_and_step_become_arguments(
    tmp_path: Path, entry: dict[str, Any], step: dict[str, Any], expected: list[str]
) -> None:
    assert argv(tmp_path, entry, step) == expected


def test_the_prompt_is_never_an_argument(tmp_path: Path) -> None:
    made = argv(tmp_path, prompt="SECRET PROMPT", system_prompt="SECRET SYSTEM")
    assert not any("SECRET" in word for word in made)
    assert made == [f"--system-prompt-file={tmp_path / 'results' / 'system-prompt.md'}"]


@pytest.mark.parametrize(
    ("mark", "budget", "expected"),
    [
        (SESSION, None, [f"--resume={SESSION}"]),
        (SESSION, 0.5, [f"--resume={SESSION}", "--max-budget-usd=0.500000"]),
        # 2.1.330 compares the whole session's cost with the budget.
        (
            f"{SESSION};cost_usd=1.25;version=2.1.330",
            0.5,
            [f"--resume={SESSION}", "--max-budget-usd=1.750000"],
        ),
        (
            f"{SESSION};version=2.1.197",
            0.5,
            [f"--resume={SESSION}", "--max-budget-usd=0.500000"],
        ),
    ],
)
def test_a_resumed_session_gets_the_budget_that_its_version_understands(
    tmp_path: Path, mark: str, budget: float | None, expected: list[str]
) -> None:
    assert argv(tmp_path, resume_session=mark, max_cost_usd=budget) == expected


@pytest.mark.parametrize(
    ("version", "has_flag"), [("2.1.330", True), ("2.2.0", True), ("2.1.197", False), ("x", False)]
)
def test_a_new_system_prompt_reaches_a_resumed_session(
    tmp_path: Path, version: str, has_flag: bool
) -> None:
    mark = f"{SESSION};version={version}"
    made = argv(tmp_path, resume_session=mark, append_system_prompt="B")
    assert ("--system-prompt-snapshot=off" in made) is has_flag


def test_a_session_id_that_is_an_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a session id"):
        argv(tmp_path, resume_session="--dangerously-skip-permissions")


def test_a_schema_too_long_for_an_argument_is_refused(tmp_path: Path) -> None:
    output = {"schema": {"description": "x" * 110_000}}
    with pytest.raises(ValueError, match=r"output\.schema is longer than 100000 bytes"):
        argv(tmp_path, {}, {"output": output})


@pytest.mark.parametrize(
    ("result", "structured", "output"),
    [
        ({"structured_output": {"pass": True}, "result": "It is."}, {"pass": True}, "It is."),
        ({"structured_output": {"pass": True}, "result": ""}, {"pass": True}, '{"pass": true}'),
        ({"structured_output": None, "result": "no form"}, None, "no form"),
        ({"result": '{"pass": true}'}, None, '{"pass": true}'),
    ],
)
def test_a_structured_answer_is_saved_alongside_the_text(
    result: dict[str, Any], structured: Any, output: str
) -> None:
    event = {"type": "result", "subtype": "success", "is_error": False, **result}
    outcome = feed(ClaudeParser(RULES), encoded(event)).outcome
    assert (outcome.status, outcome.structured, outcome.output) == ("ok", structured, output)


def test_a_form_in_a_failed_answer_counts_for_nothing() -> None:
    event = {"type": "result", "is_error": True, "structured_output": {"pass": True}}
    outcome = feed(ClaudeParser(RULES), encoded(event)).outcome
    assert (outcome.status, outcome.structured) == (OutcomeStatus.FAILED, None)


@pytest.mark.parametrize(
    "entry",
    [
        {"permission_mode": "a b"},
        {"permission_mode": "--yolo"},
        {"unknown": 1},
        {"program": ""},
        {"limit_wait_s": 0},
    ],
)
def test_invalid_entries_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ClaudeOptions.model_validate(entry)


@pytest.mark.parametrize("version", VERSIONS)
def test_refused_edits_are_a_warning_or_a_failure(version: str) -> None:
    outcome, heard = _replayed(f"claude-{version}-denied")
    assert outcome.status is OutcomeStatus.OK
    assert outcome.denials == ('Write file_path="/project/no.txt" content="hi"',)
    strict = replay(f"claude-{version}-denied", ClaudeParser(STRICT)).outcome
    assert strict.status is OutcomeStatus.FAILED
    assert strict.error is not None
    assert "no.txt" in strict.error
    assert "error:" in heard.text(Piece.ACTION)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("400", "API Error: 400 bad thing"),
        ("max-turns", "raise max_turns"),
        ("budget", "raise max_cost_usd"),
        ("no-session", "No conversation found"),
    ],
)
def test_errors_are_failures_that_state_the_reason(version: str, case: str, said: str) -> None:
    outcome, _ = _replayed(f"claude-{version}-{case}")
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert said in outcome.error
    assert outcome.not_before is None


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"api_error_status": 500, "result": "API Error: 500"}, OutcomeStatus.UNAVAILABLE),
        (
            {"terminal_reason": "api_error", "result": "API Error: Connection error."},
            OutcomeStatus.UNAVAILABLE,
        ),
        (
            {"result": "API Error: Unable to connect to API (ECONNREFUSED)"},
            OutcomeStatus.UNAVAILABLE,
        ),
        # Said by the agent, about something else.
        (
            {"terminal_reason": "aborted_tools", "result": "curl: ECONNREFUSED"},
            OutcomeStatus.FAILED,
        ),
        ({"api_error_status": 400, "result": "API Error: 400 overloaded"}, OutcomeStatus.FAILED),
    ],
)
def test_only_claudes_own_temporary_errors_are_believed(
    facts: dict[str, object], status: OutcomeStatus
) -> None:
    result = {"type": "result", "is_error": True, **facts}
    end = ProcessEnd(exit_code=1)
    assert feed(ClaudeParser(RULES), encoded(result), end=end).outcome.status is status


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_that_the_budget_stopped_is_charged(version: str) -> None:
    # Its own usage says 0; only the models' shares are right.
    usage = _replayed(f"claude-{version}-budget")[0].usage
    assert (usage.cost_usd, usage.input_tokens, usage.output_tokens) == (0.300405, 100_000, 27)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_resumed_session_is_charged_its_own_share(version: str) -> None:
    first = _replayed(f"claude-{version}-first")[0]
    second = _replayed(f"claude-{version}-resumed")[0]
    assert first.session_id is not None
    assert second.session_id is not None
    assert second.session_id.partition(";")[0] == first.session_id.partition(";")[0]
    assert 0.8 < second.usage.cost_usd / first.usage.cost_usd < 1.2
    if version == "330":
        total = first.usage.cost_usd + second.usage.cost_usd
        assert f";cost_usd={total:g};" in second.session_id
        known = ClaudeParser(RULES, first.usage.cost_usd)
        assert replay("claude-330-resumed", known).outcome.session_id == second.session_id
    else:
        assert "cost_usd" not in second.session_id


@pytest.mark.parametrize(
    ("exit_code", "is_error", "status"),
    [
        (0, False, OutcomeStatus.OK),
        (0, True, OutcomeStatus.FAILED),  # SIGINT while a tool runs
        (1, False, OutcomeStatus.FAILED),
        (143, False, OutcomeStatus.FAILED),
        (0, None, OutcomeStatus.FAILED),
    ],
)
def test_exit_code_and_result_decide_together(
    exit_code: int, is_error: bool | None, status: OutcomeStatus
) -> None:
    event = {"type": "result", "subtype": "success", "is_error": is_error, "result": "text"}
    end = ProcessEnd(exit_code=exit_code)
    assert feed(ClaudeParser(RULES), encoded(event), end=end).outcome.status is status


def test_nothing_starts_without_a_budget(tmp_path: Path) -> None:
    with ProcessCore() as core:
        cancellation = Cancellation()
        executor = ClaudeExecutor("claude", ClaudeOptions(program="no-such-claude"), core)
        request = request_for(tmp_path, max_cost_usd=0.0)
        outcome = executor.perform(request, Recorder(), cancellation)
        cancellation.close()
    assert outcome.error is not None
    assert "budget" in outcome.error


def _replayed(name: str) -> tuple[Any, Recorder]:
    replayed = replay(name, ClaudeParser(RULES))
    return replayed.outcome, replayed.heard


# --- the arguments that claude gets for words that mean the same for every client -------------


@pytest.mark.parametrize(
    ("entry", "step", "expected"),
    [
        ({}, {"provider": "anthropic", "model": "opus"}, ["--model=opus"]),
        ({}, {"text": "the prompt"}, []),
        ({}, {"tools": {}}, []),
        (
            {},
            {"tools": {"write": True, "read": False, "grep": True, "webfetch": False}},
            ["--allowedTools=Write,Grep", "--disallowedTools=Read,WebFetch"],
        ),
        (
            {"tools": ["Read"], "allowed_tools": ["Bash(git *)"], "disallowed_tools": ["LS"]},
            {"tools": {"read": True, "glob": True, "list": False}, "disallowed_tools": ["X"]},
            [
                "--tools=Read,Glob",
                "--allowedTools=Bash(git *),Read,Glob",
                "--disallowedTools=LS,X",
            ],
        ),
        # A list of the step names all that there is; a word takes no more than away.
        (
            {},
            {"tools": {"read": True, "write": False}, "allowed_tools": ["Read", "Bash(ls *)"]},
            [
                "--tools=Read,Bash",
                "--allowedTools=Read,Bash(ls *)",
                "--disallowedTools=Write",
            ],
        ),
        (
            {},
            {"tools": {"websearch": False}, "single_turn": True},
            [*NO_TOOLS, "--disallowedTools=WebSearch", "--max-turns=1"],
        ),
    ],
)
def test_words_add_to_the_entrys_lists(
    tmp_path: Path, entry: dict[str, Any], step: dict[str, Any], expected: list[str]
) -> None:
    request = request_for(tmp_path, step=Step(name="main", **step))
    options = ClaudeOptions.model_validate({"stream_text": False, **entry})
    argv = claude_argv(options, request)
    assert argv == ["claude", "-p", "--output-format=stream-json", "--verbose", *expected]


# --- claude's own subagents in a step: the argument that it gets, and where they are refused --

SCOUT = {"description": "looks around", "prompt": "You look.\nYou write nothing."}
BOTH = {
    "scout": {**SCOUT, "tools": ["Read", "Grep"], "model": "haiku"},
    "second-reader": {"description": "reads again", "prompt": "Größe “zählt”\x00\x1b[31m"},
}


def step_with(agents: dict[str, Any] = BOTH, **fields: Any) -> Step:
    return Step.model_validate({"name": "main", "agents": agents, **fields})


def argument(folder: Path, step: Step) -> str:
    made = claude_argv(ClaudeOptions(), request_for(folder, step=step))
    (found,) = [word for word in made if word.startswith("--agents")]
    return found


def test_agents_too_long_for_an_argument_are_refused(tmp_path: Path) -> None:
    many = {f"a{n}": {**SCOUT, "prompt": "x" * 60_000} for n in range(2)}
    with pytest.raises(ValueError, match="agents are longer than 100000 bytes"):
        claude_argv(ClaudeOptions(), request_for(tmp_path, step=step_with(many)))


@pytest.mark.parametrize(
    "agents",
    [
        {},
        {"": SCOUT},
        {"-p": SCOUT},
        {"a b": SCOUT},
        {"a\n": SCOUT},
        {"x" * 65: SCOUT},
        {"scout": {}},
        {"scout": {"description": "d"}},
        {"scout": {"prompt": "p"}},
        {"scout": {**SCOUT, "prompt": ""}},
        {"scout": {**SCOUT, "description": ""}},
        {"scout": {**SCOUT, "tools": [""]}},
        {"scout": {**SCOUT, "tools": "Read"}},
        {"scout": {**SCOUT, "model": "--opus"}},
        {"scout": {**SCOUT, "color": "red"}},
        {f"a{n}": SCOUT for n in range(101)},
    ],
)
def test_invalid_subagents_are_refused(agents: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step_with(agents)


NO_TOOL = [
    ({"single_turn": True}, {}, "single_turn"),
    ({"disallow_all_tools": True}, {}, "disallow_all_tools"),
    ({"tools": {"task": False}}, {}, "task: false"),
    ({"disallowed_tools": ["Task"]}, {}, "disallowed_tools takes"),
    ({"disallowed_tools": ["Ag*"]}, {}, "disallowed_tools takes"),
    ({}, {"disallowed_tools": ["Agent"]}, "agents.mine.disallowed_tools takes"),
    ({"allowed_tools": ["Read", "Bash(git *)"]}, {}, "allowed_tools does not name it"),
    ({"allowed_tools": []}, {}, "allowed_tools does not name it"),
    ({}, {"tools": ["Read"]}, "agents.mine.tools does not name it"),
]
HAS_TOOL = [
    ({}, {}),
    ({"tools": {"task": True}}, {"tools": ["Read"]}),
    ({"tools": {"bash": False}}, {}),
    ({"allowed_tools": ["Read", "Agent(scout)"]}, {}),
    ({"allowed_tools": ["Task"]}, {"tools": ["Read"]}),
    ({"disallowed_tools": ["Agent(other)", "Bash"]}, {}),
    ({}, {"tools": ["Read", "Agent"]}),
]


@pytest.mark.parametrize(("fields", "entry", "said"), NO_TOOL)
def test_subagents_that_nothing_could_start_are_refused(
    fields: dict[str, Any], entry: dict[str, Any], said: str
) -> None:
    with ProcessCore() as core:
        executor = ClaudeExecutor("mine", ClaudeOptions.model_validate(entry), core)
        with pytest.raises(
            ConfigurationError, match="agents, but nothing could start them"
        ) as caught:
            ensure_supported(step_with(**fields), "mine", executor)
        # The same fields without subagents are nobody's business.
        ensure_supported(Step.model_validate({"name": "main", **fields}), "mine", executor)
    assert said in caught.value.message
    assert "give the agent the tool Agent" in str(caught.value.hint)


@pytest.mark.parametrize(("fields", "entry"), HAS_TOOL)
def test_subagents_that_can_be_started_are_accepted(
    fields: dict[str, Any], entry: dict[str, Any]
) -> None:
    options = ClaudeOptions.model_validate(entry)
    assert explain_no_subagents(step_with(**fields), options, "mine") is None
    with ProcessCore() as core:
        ensure_supported(step_with(**fields), "mine", ClaudeExecutor("mine", options, core))
