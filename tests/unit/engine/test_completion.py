"""Which answers have the text of `complete_when`, and which only seem to."""

from __future__ import annotations

import pytest

from sequencer.engine.records import NEAR_MISS, apply_completion, near_miss
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step


@pytest.mark.parametrize(
    ("mark", "output", "status"),
    [
        ("ALL DONE", "```\nALL DONE\n```", "complete"),
        ("ALL DONE", "1. **ALL  DONE**", "complete"),
        ("ALL DONE", '* "ALL DONE"', "complete"),
        ("ALL DONE", "__ALL\n\nDONE__", "complete"),
        ("ALL DONE", "**\nALL DONE\n**\nBye.", "complete"),
        ("**ALL DONE**", "ALL DONE", "complete"),
        ("- done", "- done", "complete"),
        ("***", "so:\n***\n", "complete"),
        ("***", "so: ***", "ok"),
        ("ALL DONE", "> ALL DONE", "ok"),
        ("ALL DONE", "## ALL DONE", "ok"),
        ("ALL DONE", "~~ALL DONE~~", "ok"),
        ("ALL DONE", "- [ ] ALL DONE", "ok"),
        ("ALL DONE", "I say `ALL DONE` when I am.", "ok"),
        ("ALL DONE", "ALL\nDONE and more", "ok"),
        ("ALL DONE", "ALL", "ok"),
        ("ALL DONE", "NOT\nALL DONE YET", "ok"),
        ("ALL DONE", "ALL DONE?", "ok"),
    ],
)
def test_only_a_promise_that_stands_alone_counts(mark: str, output: str, status: str) -> None:
    step = Step(name="main", complete_when=mark)
    ended = apply_completion(step, Outcome(status=OutcomeStatus.OK, output=output))
    assert ended.status == status
    missed = near_miss(step, ended)
    assert missed == (NEAR_MISS if status == "ok" and output != "ALL" else None)


def test_a_failed_attempt_is_not_a_near_miss() -> None:
    step = Step(name="main", complete_when="ALL DONE")
    failed = Outcome(status=OutcomeStatus.FAILED, output="I am ALL DONE.")
    assert near_miss(step, failed) is None
    assert near_miss(Step(name="main"), Outcome(status=OutcomeStatus.OK, output="x")) is None
