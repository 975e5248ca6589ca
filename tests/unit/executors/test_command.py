from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import StorageFailed, UnsafeFolder
from sequencer.executors.command import ANSWER_BYTES, CommandExecutor, CommandOptions
from sequencer.executors.process import ProcessCore
from sequencer.executors.protocol import Cancellation
from sequencer.model.fields import ValidationError
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step
from tests.contract.executor_cases import Recorder, request_for

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


def test_the_end_of_a_long_answer_is_kept(bench: Bench) -> None:
    outcome = bench.perform("{python}", "-c", "print('a' * 200_000 + 'end')")
    assert len(outcome.output) == ANSWER_BYTES - 1
    assert outcome.output.endswith("aend")
    assert len(bench.recorder.text()) == 200_004


def test_placeholders_are_whole_arguments_or_whole_values(bench: Bench) -> None:
    said = bench.arguments(
        "{model}",
        "--model={model}",
        "x{model}",
        "{}",
        '{"model": 1}',
        "--system={system_prompt}",
        step=Step(name="main", model="m 1", system_prompt="s.md"),
        system_prompt="Be {model}; $(touch canary)\n",
    )
    assert said == str(
        [
            "m 1",
            "--model=m 1",
            "x{model}",
            "{}",
            '{"model": 1}',
            "--system=Be {model}; $(touch canary)\n",
        ]
    )


def test_a_provider_without_a_model_would_be_lost(bench: Bench) -> None:
    executor = bench.executor("x", "--m={model}")
    (objection,) = executor.objections(Step(name="main", provider="openai"))
    assert objection.hint == "add model, or leave provider out"
    assert executor.objections(Step(name="main", provider="openai", model="m")) == []
    assert executor.objections(Step(name="main")) == []


def test_an_option_without_a_value_is_left_out(bench: Bench) -> None:
    assert bench.arguments("a", "--model={model}", "b") == "['a', 'b']"


def test_an_argument_without_a_value_fails_the_step(bench: Bench) -> None:
    outcome = bench.perform("echo", "{model}")
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "agents.tests.argv" in outcome.error
    assert "'main'" in outcome.error


def test_the_prompt_file_is_private_and_gone_afterwards(bench: Bench) -> None:
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
    with pytest.raises(UnsafeFolder, match="results: is a link where a folder"):
        bench.perform("cat", "{prompt_file}", result_path=path)
    assert not list(outside.iterdir())


def test_a_folder_that_somebody_has_made_ahead_is_refused(bench: Bench) -> None:
    (bench.folder / "made").mkdir()
    (bench.folder / "made" / "result.json").write_text('{"status": "ok", "output": "FORGED"}')
    with pytest.raises(StorageFailed, match="can't be made: File exists"):
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
        ([], "at least 1"),
        ([""], "empty"),
        (["x", "{modle}"], "{model}"),
        (["x", "--m={modle}"], "{model}"),
        (["{model}"], "for the program"),
        (["x", "{python}"], "for the program"),
        (["a\0b"], "pattern"),
    ],
)
def test_an_argv_without_meaning_is_refused(argv: list[str], said: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        CommandOptions.model_validate({"argv": argv})
    assert said in str(refusal.value)


def test_a_missing_program_is_a_problem_and_a_failure_that_says_what_to_do(bench: Bench) -> None:
    (problem,) = bench.executor("no-such-program").problems()
    error = bench.perform("no-such-program").error
    assert error is not None
    for said in (problem, error):
        assert "'no-such-program'" in said
        assert "agents.tests.argv" in said
    assert bench.executor("sh").problems() == []
    assert bench.executor("./scripts/agent").problems() == []


def test_a_relative_program_is_the_projects(
    bench: Bench, make_program: Callable[[str], Path]
) -> None:
    make_program("#!/bin/sh\necho ran in $PWD\n")
    assert bench.perform("./agent").output == f"ran in {os.path.realpath(bench.folder)}"


@pytest.fixture
def make_program(tmp_path: Path) -> Callable[[str], Path]:
    def make(content: str) -> Path:
        program = tmp_path / "agent"
        program.write_text(content)
        program.chmod(0o755)
        return program

    return make
