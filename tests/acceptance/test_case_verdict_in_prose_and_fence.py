"""A verdict in prose and a fence is read the same way everywhere; without one it is asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sequencer import open_run
from tests.unit.cli.calling import Called, call

CASE = Path(__file__).parent / "cases" / "verdict-in-prose-and-fence"
ANSWERS: dict[str, list[str]] = json.loads((CASE / "answers.json").read_text())
FENCED = 'I read it all, and it is fine:\n\n```json\n{"pass": true}\n```\n\nAsk me for more.\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    return Path(shutil.copytree(CASE, tmp_path / "case"))


def answering(project: Path, answer: str) -> Called:
    (project / "answer.txt").write_text(answer)
    flow = (project / "flow.md").read_text()
    (project / "flow.md").write_text(
        flow.replace("initialDelay: 1}", "initialDelay: 1, maxDelay: 1}")
    )
    return call(project, "--run", "a", "run", "flow.md")


def facts(project: Path, event: str) -> list[dict[str, Any]]:
    found = open_run(project, "a", environment={}).history()
    return [fact for fact in found if fact["event"] == event]


def test_a_decision_reads_it(project: Path) -> None:
    ran = answering(project, (CASE / "answer.txt").read_text())
    assert ran.code == 0, ran.err
    assert [fact["step"] for fact in facts(project, "succeeded")] == ["r", "p"]


@pytest.mark.parametrize("answer", ANSWERS["approve"])
def test_every_form_of_a_label_selects_it(project: Path, answer: str) -> None:
    ran = answering(project, answer)
    assert ran.code == 0, ran.err
    assert [fact["step"] for fact in facts(project, "succeeded")] == ["r", "p"]


@pytest.mark.parametrize("answer", ANSWERS["none"])
def test_words_in_prose_never_count_and_the_labels_are_named(project: Path, answer: str) -> None:
    ran = answering(project, answer)
    assert ran.code == 1
    assert facts(project, "succeeded") == []
    assert "the last line has to be one of `approve`, `send back`" in ran.err
    # The retry of the flow applies: three tries in all.
    assert [fact["attempt"] for fact in facts(project, "failed")] == [1, 2, 3]


def test_the_next_prompt_names_the_labels(project: Path) -> None:
    counting = "tee -a asked.txt | grep -c 'has to be one of' | cat"
    agent = f'{{kind: command, argv: [sh, -c, "{counting}"], free: true}}'
    (project / "orchestration.yaml").write_text(f"agent: a\nagents: {{a: {agent}}}\n")
    flow = (project / "flow.md").read_text()
    (project / "flow.md").write_text(flow.replace("approve|", "1|").replace("retry:", "#"))
    ran = call(project, "--run", "a", "run", "flow.md")
    assert ran.code == 0, ran.err
    asked = (project / "asked.txt").read_text()
    assert asked.count("the last line has to be one of `1`, `send back` and nothing else") == 1
    assert [fact["attempt"] for fact in facts(project, "failed")] == [1]


def test_a_judge_reads_it_too(project: Path) -> None:
    (project / "prompts").mkdir()
    (project / "prompts" / "check.md").write_text("Check it.\n")
    (project / "answer.txt").write_text(FENCED)
    steps = (
        "workflows: {w: {kind: procedure, steps: [{name: check, validation: {}}]}}\nworkflow: w\n"
    )
    with (project / "orchestration.yaml").open("a") as file:
        file.write(steps)
    ran = call(project, "--run", "a", "run")
    assert ran.code == 0, ran.err
