"""A completion promise counts in Markdown, too; where it doesn't, the run says why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sequencer import Outcome, OutcomeStatus, Step
from sequencer.engine.records import NEAR_MISS, apply_completion, near_miss
from tests.unit.cli.calling import call, state

CASE = Path(__file__).parent / "cases" / "promise-in-bold"
ANSWERS: dict[str, list[str]] = json.loads((CASE / "answers.json").read_text())
NOT_COMPLETE = [*ANSWERS["said_but_not_complete"], *ANSWERS["not"]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    return Path(shutil.copytree(CASE, tmp_path / "case"))


def answered(project: Path, answer: str) -> dict[str, Any]:
    (project / "answer.txt").write_text(answer)
    ran = call(project, "run", "--max-steps", "1")
    assert ran.code == 0, ran.err
    return state(project)


@pytest.mark.parametrize("answer", ANSWERS["complete"])
def test_a_promise_alone_on_its_line_counts_in_any_markdown(project: Path, answer: str) -> None:
    assert answered(project, answer)["status"] == "complete"
    assert NEAR_MISS not in call(project, "history").out


@pytest.mark.parametrize("answer", NOT_COMPLETE)
def test_log_status_and_history_explain_a_promise_that_does_not_count(
    project: Path, answer: str
) -> None:
    assert answered(project, answer)["status"] == "waiting-next"
    is_near = answer not in ANSWERS["not"]
    (log,) = project.rglob("*.log")
    lines = [line for line in log.read_text().splitlines() if line]
    assert (lines[-2] == f"[sequencer] {NEAR_MISS}") is is_near
    assert (f"note        {NEAR_MISS}" in call(project, "status").out) is is_near
    assert (NEAR_MISS[:40] in call(project, "history").out) is is_near
    record = json.loads(call(project, "history", "--json").out.splitlines()[-1])
    assert (record["outcome"].get("note") == NEAR_MISS) is is_near


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
