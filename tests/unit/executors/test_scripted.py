from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.executors.protocol import Cancellation
from sequencer.executors.stand_ins import ScriptedExecutor, ScriptedOptions
from sequencer.model.fields import ValidationError
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step
from tests.contract.executor_cases import Recorder, request_for


class Script:
    """A scripted executor and short words to drive it."""

    def __init__(self, folder: Path, *outcomes: dict[str, Any]) -> None:
        self.folder = folder
        self.recorder = Recorder()
        options = ScriptedOptions.model_validate({"outcomes": outcomes})
        self.executor = ScriptedExecutor("canned", options)

    def perform(self, step: str = "main", step_index: int = 0, attempt: int = 1) -> Outcome:
        environment = {
            "SEQUENCER_STEP_INDEX": str(step_index),
            "SEQUENCER_ATTEMPT": str(attempt),
        }
        cancellation = Cancellation()
        request = request_for(self.folder, step=Step(name=step), environment=environment)
        outcome = self.executor.perform(request, self.recorder, cancellation)
        cancellation.close()
        return outcome

    def outputs(self, *calls: tuple[str, int, int]) -> list[str]:
        return [self.perform(*call).output for call in calls]


def test_a_place_decides_before_the_sequence(tmp_path: Path) -> None:
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
def test_options_without_meaning_are_refused(outcomes: list[dict[str, Any]]) -> None:
    with pytest.raises(ValidationError):
        ScriptedOptions.model_validate({"outcomes": outcomes})
