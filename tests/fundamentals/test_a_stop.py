"""Ways to end or hold a run, from outside and from an agent."""

from __future__ import annotations

import pytest

from tests.fundamentals.scratch import Project, ended, running, until


def test_stop_waits_for_the_running_step_to_end(project: Project) -> None:
    project.agent("echo here > begun; until test -e go; do sleep 0.05; done")
    worker = project.start("run")
    with running(worker):
        until((project.folder / "begun").exists)
        project.sequencer("stop", "--reason", "release freeze")
        (project.folder / "go").touch()
        end = ended(worker)
    assert end.code == 0
    assert "release freeze" in end.out + end.err
    assert project.head()["step_index"] == 1


def test_a_stopped_run_starts_nothing_until_it_is_resumed(project: Project) -> None:
    project.sequencer("stop")
    project.sequencer("run")
    project.sequencer("tick")
    assert project.done() == []
    project.sequencer("resume")
    project.sequencer("run", "--max-steps", "1")
    assert project.done() == ["supervisor"]


def test_pause_holds_waiting_processes(project: Project) -> None:
    project.sequencer("stop", "--pause")
    assert project.head()["status"] == "paused"
    waiting = project.start("run", "--mode", "sync", "--max-steps", "1")
    with running(waiting):
        project.sequencer("tick")
        assert project.done() == []
        assert waiting.poll() is None
        project.sequencer("resume")
        assert ended(waiting).code == 0
    assert project.done() == ["supervisor"]


def test_a_pause_during_a_step_takes_effect_after_it(project: Project) -> None:
    project.agent("echo here > begun; until test -e go; do sleep 0.05; done")
    worker = project.start("run")
    with running(worker):
        until((project.folder / "begun").exists)
        project.sequencer("stop", "--pause")
        assert project.head()["status"] == "running"
        (project.folder / "go").touch()
        ended(worker)
    assert (project.head()["status"], project.head()["step_index"]) == ("paused", 1)


def test_an_agent_can_complete_the_run(project: Project) -> None:
    project.agent('echo \'{"status": "complete"}\' > "$SEQUENCER_RESULT"')
    project.sequencer("run")
    head = project.head()
    assert (head["status"], head["step_index"]) == ("complete", 1)
    assert project.events()[-2:] == ["succeeded", "completed"]
    project.sequencer("run")
    assert project.head()["revision"] == head["revision"], "a complete run stays as it is"


@pytest.mark.parametrize(
    ("answer", "status"),
    [("ALL DONE", "complete"), ("I am not ALL DONE yet", "waiting-next")],
)
def test_a_completion_mark_counts_only_on_its_own_line(
    project: Project, answer: str, status: str
) -> None:
    project.configure(
        "workflow: {name: w}\nagent: {default: scribe}\n"
        "workflows: {w: {steps: [{name: main, complete_when: ALL DONE}]}}\n"
    )
    project.agent(f"echo '{answer}'")
    project.sequencer("run", "--max-steps", "1")
    assert project.head()["status"] == status


def test_completion_on_the_last_allowed_step_completes_the_run(project: Project) -> None:
    project.agent('echo \'{"status": "complete"}\' > "$SEQUENCER_RESULT"')
    project.sequencer("run", "--max-steps", "1")
    assert project.head()["status"] == "complete"


def test_an_agent_can_stop_the_run_by_setting_exit(project: Project) -> None:
    project.agent('sed -i \'s/"exit": false/"exit": true/\' "$SEQUENCER_STATE"; echo x >> done.txt')
    ran = project.sequencer("run")
    assert project.done() == ["x"]
    assert "stopped" in ran.out + ran.err
    assert (project.head()["step_index"], project.head()["exit"]) == (1, True)


def test_a_reset_starts_over_and_forgets_nothing(project: Project) -> None:
    project.sequencer("run", "--max-steps", "2")
    before = project.head()
    project.sequencer("reset", code=2)
    assert project.head() == before, "it asks first"
    project.sequencer("reset", "--yes")
    after = project.head()
    assert (after["step_index"], after["token"]) == (0, before["token"])
    assert after["run_id"] != before["run_id"]
    assert project.events().count("succeeded") == 2
