from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import StorageFailed, UnsafeFolder
from sequencer.executors.command import CommandExecutor, CommandOptions
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


def test_a_provider_without_a_model_would_be_lost(bench: Bench) -> None:
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
