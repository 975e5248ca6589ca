"""Lists of tasks in orchestration.yaml, and the roles that their tasks have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.settings.loading import loaded, refusal, refusals


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = """
workflows:
  mine:
    tasks:
      - {id: a, subject: A, role: nobody, blocked_by: [b, x]}
      - {id: b, subjct: B, blocked_by: [a]}
      - {id: a, subject: A, executor: nobody}
  other:
    tasks:
      - {id: a, subject: A, blocked_by: a}
"""
    said = "\n".join(map(str, refusals(tmp_path, text)))
    for place, what in (
        ("5:29: workflows.mine.tasks[0].role", "there is no role 'nobody'"),
        ("5:43: workflows.mine.tasks[0].blocked_by", "circle: a -> b -> a"),
        ("5:59: workflows.mine.tasks[0].blocked_by[1]", "there is no task 'x'"),
        ("6:9: workflows.mine.tasks[1].subject", "has to be there"),
        ("6:17: workflows.mine.tasks[1]", "unknown key 'subjct'"),
        ("7:10: workflows.mine.tasks[2].id", "two tasks are called 'a'"),
        ("10:29: workflows.other.tasks[0].blocked_by[0]", "waits for itself"),
    ):
        found = [line for line in said.splitlines() if f"orchestration.yaml:{place}: " in line]
        assert [what in line for line in found] == [True], place


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{tasks: []}", "there is no task in it"),
        ("{size: 3}", "there is no task in it"),
        ("{tasks: [{id: a, subject: A}], steps: [b]}", "steps can't stand beside tasks"),
        ("{tasks: [{id: a, subject: A}], kind: procedure}", "kind can't stand beside tasks"),
        ("{tasks: [{id: a, subject: A}], review: {step: b}}", "review can't stand beside tasks"),
        ("{tasks: [{id: a, subject: A}], extends: standard}", "extends can't stand beside tasks"),
        ("{tasks: [{id: a, subject: A}], file: x.md}", "tasks can't stand beside file"),
        ("{tasks: [{id: a, subject: A}], size: 0}", "greater than or equal to 1"),
        ("{tasks: 3}", "expected a list"),
        ("{tasks: [a]}", "expected a mapping"),
        ("{tasks: [{id: a, subject: A, requires_approval: true}]}", "a flowchart can"),
    ],
)
def test_what_can_t_be_a_list(tmp_path: Path, entry: str, said: str) -> None:
    assert said in str(refusal(tmp_path, f"workflows: {{mine: {entry}}}"))


@pytest.mark.parametrize("name", ["tasks.md", "tasks.yaml"])
def test_a_list_in_a_file_of_its_own(tmp_path: Path, name: str) -> None:
    texts = {
        "tasks.md": "# T\n\n## a: A\n\n## b: B\nblocked_by: a\n",
        "tasks.yaml": "tasks: [{id: a, subject: A}, {id: b, subject: B, blocked_by: a}]\n",
    }
    (tmp_path / name).write_text(texts[name])
    settings = loaded(tmp_path, f"workflows: {{mine: {name}}}")
    workflow = settings.registry.get("mine")
    assert (workflow.name, workflow.kind) == ("mine", "graph")
    assert workflow.graph is not None
    assert workflow.graph.is_team
    assert settings.registry.get("mine") is workflow
