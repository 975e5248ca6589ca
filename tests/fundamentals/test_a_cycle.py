"""A cycle runs its steps in order, for ever, and remembers where it is."""

from __future__ import annotations

import json

from tests.fundamentals.scratch import Project


def test_steps_run_in_order_and_begin_again(project: Project) -> None:
    project.sequencer("run", "--max-steps", "5")
    assert project.done() == ["supervisor", "main", "supervisor", "main", "supervisor"]


def test_the_next_run_continues_where_the_last_one_ended(project: Project) -> None:
    project.sequencer("run", "--max-steps", "3")
    project.sequencer("run", "--max-steps", "1")
    assert project.done()[3:] == ["main"]
    assert project.head()["step_index"] == 4


def test_eight_steps_leave_eight_logs_a_head_and_their_facts(project: Project) -> None:
    project.sequencer("run", "--max-steps", "8")
    names = ["supervisor", "main"] * 4
    assert project.logs() == [f"iter-{i + 1:05d}_{name}.log" for i, name in enumerate(names)]
    head = project.head()
    assert (head["step_index"], head["iteration"], head["status"]) == (8, 9, "waiting-next")
    assert head["claims"] == []
    events = project.events()
    assert events == ["initialised", *["claimed", "succeeded"] * 8]


def test_plan_shows_steps_at_any_distance(project: Project) -> None:
    far = 10**12
    printed = project.sequencer("plan", "--count", "2", "--step-index", str(far), "--json").out
    first, second = json.loads(printed)
    assert first == {
        "step_index": far,
        "iteration": far + 1,
        "cycle_index": far // 2,
        "position": "supervisor",
        "step": "supervisor",
        "prompt": "supervisor.md",
        "review": False,
    }
    assert second["step"] == "main"


def test_looking_starts_nothing(project: Project) -> None:
    for command in (["plan"], ["status"], ["history"], ["check"], ["run", "--dry-run"]):
        project.sequencer(*command)
    assert not project.state.exists()


def test_a_custom_cycle_runs_its_own_steps(project: Project) -> None:
    project.prompts("plan", "build", "verify")
    project.configure(
        "workflow: {name: team}\n"
        "agent: {default: scribe}\n"
        "workflows: {team: {steps: [plan, {name: work, prompt: build.md}, verify]}}\n"
    )
    project.sequencer("run", "--max-cycles", "2")
    assert project.done() == ["plan", "work", "verify"] * 2


def test_the_project_is_found_from_a_subfolder(project: Project) -> None:
    below = project.folder / "src" / "deep"
    below.mkdir(parents=True)
    inside = Project.__new__(Project)
    inside.folder = below
    inside.sequencer("run", "--max-steps", "1")
    assert project.head()["step_index"] == 1
    assert project.done() == ["supervisor"], "the agent works in the project's folder"
    assert list(below.iterdir()) == []
