"""A completion promise counts in Markdown, too; where it doesn't, the run says why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.calling import call, state

CASE = Path(__file__).parent / "cases" / "promise-in-bold"
ANSWERS: dict[str, list[str]] = json.loads((CASE / "answers.json").read_text())
NEAR_MISS = "the answer has the text of complete_when, but not alone on a line"
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
