from __future__ import annotations

import pytest

from sequencer.engine.records import apply_completion
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step

STEP = Step(name="main", complete_when="ALL DONE")


@pytest.mark.parametrize(
    "output", ["ALL DONE", "Tests pass.\nALL DONE\n", "  ALL DONE \r\nbye", "x\n\n\tALL DONE"]
)
def test_a_mark_that_stands_alone_completes_the_run(output: str) -> None:
    outcome = apply_completion(STEP, Outcome(status=OutcomeStatus.OK, output=output))
    assert outcome.status is OutcomeStatus.COMPLETE
    assert outcome.output == output


@pytest.mark.parametrize(
    "output", ["", "I say ALL DONE when it is", "all done", "ALL DONE.", "ALL\nDONE", '"ALL DONE"']
)
def test_a_mark_in_a_sentence_does_not(output: str) -> None:
    outcome = Outcome(status=OutcomeStatus.OK, output=output)
    assert apply_completion(STEP, outcome) is outcome
