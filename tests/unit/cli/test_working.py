from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from sequencer.cli.run_work import Plan
from sequencer.cli.views.progress import WorkCount, summary_json
from sequencer.engine.events import AttemptEnded, AttemptStarted
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.run import Run
from sequencer.errors import Interrupted, StaleClaim, StorageFailed, UnknownName
from sequencer.model.limits import InvocationLimits
from sequencer.model.outcome import Outcome, Usage
from sequencer.project.agents import AgentOverrides, ensure_known_names
from sequencer.project.project import open_project
from sequencer.workflows.registry import BuiltinPrompts, BuiltinWorkflows
from tests.unit.cli.calling import project
from tests.unit.cli.test_progress import LOG, attempt, outcome

ROUTED = """\
agent: {default: rehearsal}
router: {enabled: true, prompt: router.md, allowlist: [main.md, extra.md]}
"""


def tally(*outcomes: Outcome) -> WorkCount:
    counted = WorkCount()
    for ended in outcomes:
        counted(AttemptStarted(attempt(), LOG))
        counted(AttemptEnded(attempt(), ended))
    return counted


@pytest.mark.parametrize(
    ("error", "steps"),
    [
        (StaleClaim("taken over"), 1),
        (StorageFailed("no space"), 1),
        (Interrupted("now"), 2),
    ],
)
def test_a_step_that_the_store_rejected_is_not_counted(error: Interrupted, steps: int) -> None:
    assert tally(outcome(), outcome()).summarize(error).usage.steps == steps


def test_the_end_as_json_without_a_head() -> None:
    class Named:
        name = "nightly"

    facts = summary_json(cast("Run", Named()), Summary("x", Usage(steps=2)), 3)
    assert (facts["run"], facts["exit_code"], facts["steps"]) == ("nightly", 3, 2)
    assert facts["head"] is None


def test_overrides_have_to_name_what_exists(tmp_path: Path) -> None:
    settings = open_project(project(tmp_path / "p", ROUTED)).settings
    workflow = BuiltinWorkflows(BuiltinPrompts())["review_cadence"]

    def check(by_prompt: dict[str, str], by_step: dict[str, str]) -> None:
        ensure_known_names(settings, AgentOverrides(by_prompt, by_step), workflow)

    check({}, {})
    check({"reviewer.md": "claude", "prompts/main.md": "claude", "main": "claude"}, {})
    # The router may choose it, although no step has it.
    check({"extra.md": "claude"}, {"reviewer": "claude", "ralph": "claude"})
    with pytest.raises(UnknownName, match=r"unknown prompt 'other\.md'"):
        check({"other.md": "claude"}, {})
    with pytest.raises(UnknownName, match="unknown step 'other'"):
        check({}, {"other": "claude"})


def test_usage_before_a_question_is_subtracted_from_the_limits() -> None:
    plan = Plan(Mode.COMBINED, InvocationLimits(max_steps=5, max_cost_usd=1.0))
    left = plan.subtract_usage(Usage(steps=3, cost_usd=0.5), Usage(steps=1, cost_usd=0.25)).limits
    assert (left.max_steps, left.max_cost_usd) == (3, 0.75)
    assert plan.subtract_usage(Usage(steps=9), Usage()).limits.max_steps == 0
