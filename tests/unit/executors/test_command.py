from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer.engine.records import apply_completion
from sequencer.errors import StorageFailed, UnsafeFolder
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.command import CommandExecutor, CommandOptions
from sequencer.executors.fake_agents import ScriptedExecutor, ScriptedOptions, wait_like_an_agent
from sequencer.executors.process import ProcessCore
from sequencer.frozen.fields import ValidationError
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step
from tests.contract.executor_cases import IDENTITY, Recorder, request_for

ARGUMENTS = "import sys; print(sys.argv[1:])"


class Bench:
    def __init__(self, core: ProcessCore, folder: Path) -> None:
        self.core = core
        self.folder = folder
        self.recorder = Recorder()
        self.cancellation = Cancellation()

    def executor(self, *argv: str, **options: Any) -> CommandExecutor:
        return CommandExecutor("tests", CommandOptions(argv=argv, **options), self.core)

    def perform(self, *argv: str, **update: Any) -> Outcome:
        options = update.pop("options", {})
        return self.executor(*argv, **options).perform(
            request_for(self.folder, **update), self.recorder, self.cancellation
        )

    def arguments(self, *arguments: str, **update: Any) -> str:
        return self.perform("{python}", "-c", ARGUMENTS, *arguments, **update).output


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ProcessCore() as core:
        bench = Bench(core, tmp_path)
        yield bench
        bench.cancellation.close()


def test_a_provider_without_a_model_is_refused(bench: Bench) -> None:
    executor = bench.executor("x", "--m={model}")
    (objection,) = executor.objections(Step(name="main", provider="openai"))
    assert objection.hint == "add model, or leave provider out"
    assert executor.objections(Step(name="main", provider="openai", model="m")) == []
    assert executor.objections(Step(name="main")) == []


def test_an_argument_without_a_value_fails_the_step(bench: Bench) -> None:
    outcome = bench.perform("echo", "{model}")
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "agents.tests.argv" in outcome.error
    assert "'main'" in outcome.error


def test_the_prompt_file_is_private_and_removed_afterwards(bench: Bench) -> None:
    script = "import os, sys; p = sys.argv[1]; print(oct(os.stat(p).st_mode), open(p).read(), p)"
    outcome = bench.perform("{python}", "-c", script, "{prompt_file}", prompt="ask ü")
    mode, *words, path = outcome.output.split()
    assert (mode, words) == (oct(stat.S_IFREG | 0o600), ["ask", "ü"])
    assert Path(path).parent == bench.folder / "results"
    assert not Path(path).exists()


def test_a_link_in_the_place_of_the_prompt_file_is_not_followed(bench: Bench) -> None:
    outside = bench.folder / "outside"
    outside.mkdir()
    (bench.folder / "results").symlink_to(outside)
    path = bench.folder / "results/attempt/result.json"
    with pytest.raises(UnsafeFolder, match="results: is a link, but it has to be a folder"):
        bench.perform("cat", "{prompt_file}", result_path=path)
    assert not list(outside.iterdir())


def test_a_result_folder_created_in_advance_is_refused(bench: Bench) -> None:
    (bench.folder / "made").mkdir()
    (bench.folder / "made" / "result.json").write_text('{"status": "ok", "output": "FORGED"}')
    with pytest.raises(
        StorageFailed, match="can't create the folder for the agent's result: File exists"
    ):
        bench.perform("true", result_path=bench.folder / "made/result.json")


PAYLOADS = [
    "$(touch canary)",
    "`touch canary`",
    "; touch canary",
    "x\ntouch canary\n",
    "| touch canary",
    "&& touch canary #",
    "'; touch canary; '",
    '"; touch canary; "',
    "> canary",
    "%s%n",
    "../../canary",
]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_nothing_reaches_a_shell(bench: Bench, payload: str) -> None:
    line = payload.replace("\n", " ")
    said = bench.arguments(
        payload,
        "--model={model}",
        "--system={system_prompt}",
        prompt=payload,
        step=Step(name=line, model=line),
        system_prompt=payload,
        options={"env": {"HOSTILE": payload}},
    )
    assert said == str([payload, f"--model={line}", f"--system={payload}"])
    assert not list(bench.folder.rglob("canary"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "at least one"),
        ([""], "empty"),
        (["x", "{modle}"], "{model}"),
        (["x", "--m={modle}"], "{model}"),
        (["{model}"], "for the program"),
        (["x", "{python}"], "for the program"),
        (["a\0b"], "NUL"),
    ],
)
def test_an_invalid_argv_is_refused(argv: list[str], said: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        CommandOptions.model_validate({"argv": argv})
    assert said in str(refusal.value)


STEP = Step(name="main", complete_when="ALL DONE")


@pytest.mark.parametrize(
    "output", ["ALL DONE", "Tests pass.\nALL DONE\n", "  ALL DONE \r\nbye", "x\n\n\tALL DONE"]
)
def test_a_mark_that_stands_alone_completes_the_run(output: str) -> None:
    outcome = apply_completion(STEP, Outcome(status=OutcomeStatus.OK, output=output))
    assert outcome.status is OutcomeStatus.COMPLETE
    assert outcome.output == output


@pytest.mark.parametrize(
    "output", ["", "I say ALL DONE when it is", "all done", "ALL DONE.", "> ALL DONE"]
)
def test_a_mark_in_a_sentence_does_not(output: str) -> None:
    outcome = Outcome(status=OutcomeStatus.OK, output=output)
    assert apply_completion(STEP, outcome) is outcome


class Script:
    """A scripted executor and short words to drive it."""

    def __init__(self, folder: Path, *outcomes: dict[str, Any]) -> None:
        self.folder = folder
        self.recorder = Recorder()
        options = ScriptedOptions.model_validate({"outcomes": outcomes})
        self.executor = ScriptedExecutor("canned", options)

    def perform(self, step: str = "main", step_index: int = 0, attempt: int = 1) -> Outcome:
        identity = replace(IDENTITY, step_index=step_index, attempt=attempt)
        cancellation = Cancellation()
        request = request_for(self.folder, step=Step(name=step), identity=identity)
        outcome = self.executor.perform(request, self.recorder, cancellation)
        cancellation.close()
        return outcome

    def outputs(self, *calls: tuple[str, int, int]) -> list[str]:
        return [self.perform(*call).output for call in calls]


def test_a_position_takes_precedence_over_the_sequence(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        {"output": "usual"},
        {"step_index": 3, "attempt": 2, "output": "second try of 3"},
        {"step_index": 3, "status": "failed"},
        {"attempt": 5, "output": "fifth try"},
    )
    calls = [("main", 0, 1), ("main", 3, 2), ("main", 7, 5), ("main", 4, 1)]
    assert script.outputs(*calls) == ["usual", "second try of 3", "fifth try", "usual"]
    failed = script.perform(step_index=3)
    assert failed.status is OutcomeStatus.FAILED
    assert failed.error


def test_a_step_without_an_entry_fails_and_names_the_key(tmp_path: Path) -> None:
    outcome = Script(tmp_path, {"step": "plan"}).perform("build")
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error == "agents.canned.outcomes has no entry for step 'build'"


@pytest.mark.parametrize(
    "outcomes", [[], [{"status": "fine"}], [{"step_index": -1}], [{"attempt": 0}], [{"says": "x"}]]
)
def test_invalid_options_are_refused(outcomes: list[dict[str, Any]]) -> None:
    with pytest.raises(ValidationError):
        ScriptedOptions.model_validate({"outcomes": outcomes})


@pytest.mark.parametrize(
    ("limits", "said", "key"),
    [
        ({"timeout_s": 0.1}, "timed out after 0.1 s", "timeout_s"),
        ({"idle_timeout_s": 0.1}, "no progress for 0.1 s", "idle_timeout_s"),
        ({"timeout_s": 5, "idle_timeout_s": 0.1}, "no progress for 0.1 s", "idle_timeout_s"),
        ({"timeout_s": 0.1, "idle_timeout_s": 5}, "timed out after 0.1 s", "timeout_s"),
    ],
)
def test_the_first_limit_reached_ends_the_attempt(
    tmp_path: Path, limits: dict[str, float], said: str, key: str
) -> None:
    cancellation = Cancellation()
    outcome = wait_like_an_agent(30, request_for(tmp_path, **limits), cancellation)
    cancellation.close()
    assert outcome is not None
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert outcome.error.startswith(said)
    assert f"raise {key} of step 'main'" in outcome.error
    assert outcome.is_timed_out is (key == "timeout_s")
    assert 0.1 <= outcome.usage.seconds < 5


def test_tokens_a_program_reports_are_priced_by_its_model(bench: Bench) -> None:
    script = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1]).with_name('result.json'); "
        """p.write_text('{"usage": {"input_tokens": 1000000}}')"""
    )
    argv = ("{python}", "-c", script, "{prompt_file}")
    priced = {"prices": {"m": {"input": 3, "output": 15}}}
    usage = bench.perform(*argv, options=priced, step=Step(name="main", model="m")).usage
    assert (usage.cost_usd, usage.estimated_usd, usage.unpriced) == (3.0, 3.0, 0)
