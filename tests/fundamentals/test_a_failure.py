"""A failed step does not move the run; after a few in a row a person has to look."""

from __future__ import annotations

import pytest

from tests.fundamentals.scratch import STANDARD, Project


@pytest.fixture
def broken(project: Project) -> Project:
    """Return a project whose agent fails."""
    project.agent("echo 'no compiler here' >&2; exit 7")
    return project


def test_a_failure_keeps_the_step_index(broken: Project) -> None:
    ran = broken.sequencer("run", code=1)
    head = broken.head()
    assert (head["step_index"], head["status"], head["failures_in_row"]) == (0, "failed", 1)
    assert "no compiler here" in ran.err
    assert "iter-00001_supervisor.log" in ran.err


def test_running_again_retries_the_step(broken: Project) -> None:
    broken.sequencer("run", code=1)
    broken.agent('echo "$SEQUENCER_ATTEMPT" >> done.txt')
    broken.sequencer("run", "--max-steps", "1")
    assert broken.done() == ["2"]
    assert broken.logs() == ["iter-00001_supervisor.2.log", "iter-00001_supervisor.log"]
    assert broken.head()["failures_in_row"] == 0


def test_three_failures_in_a_row_stop_the_run(broken: Project) -> None:
    for _ in range(3):
        broken.sequencer("tick", code=1)
    before = broken.state.read_bytes()
    for verb in ("tick", "run"):
        refused = broken.sequencer(verb, code=3)
        assert "sequencer retry" in refused.err
    assert broken.state.read_bytes() == before


@pytest.mark.parametrize(
    ("way_out", "step_index"), [(["retry"], 0), (["skip"], 1), (["skip", "--as-done"], 1)]
)
def test_retry_and_skip_get_a_stopped_run_going(
    broken: Project, way_out: list[str], step_index: int
) -> None:
    broken.configure(STANDARD + "limits: {max_failures_in_row: 1}\n")
    broken.sequencer("run", code=1)
    broken.sequencer("run", code=3)
    broken.sequencer(*way_out)
    assert broken.head()["step_index"] == step_index
    broken.agent("exit 0")
    broken.sequencer("run", "--max-steps", "1")
    assert broken.head()["step_index"] == step_index + 1


def test_a_step_can_be_failed_by_hand(project: Project) -> None:
    project.sequencer("skip", "--as-failed", "--note", "the tests are red")
    head = project.head()
    assert (head["status"], head["failures_in_row"]) == ("failed", 1)
    assert "the tests are red" in project.history()[-1]["outcome"]["note"]


def test_rewind_goes_back_to_an_earlier_step(project: Project) -> None:
    project.sequencer("run", "--max-steps", "5")
    project.sequencer("rewind", "2")
    project.sequencer("rewind", "4", code=3)
    project.sequencer("run", "--max-steps", "1")
    assert project.head()["step_index"] == 3
    assert project.logs()[2:4] == ["iter-00003_supervisor.2.log", "iter-00003_supervisor.log"]


def test_an_agent_can_report_that_it_failed(project: Project) -> None:
    project.agent('echo \'{"status": "failed", "output": "no idea"}\' > "$SEQUENCER_RESULT"')
    ran = project.sequencer("run", code=1)
    assert "no idea" in ran.err


def test_an_agent_cannot_turn_a_failure_into_a_success(project: Project) -> None:
    project.agent('echo \'{"status": "ok"}\' > "$SEQUENCER_RESULT"; exit 1')
    project.sequencer("run", code=1)
    assert project.head()["step_index"] == 0


def test_a_missing_agent_is_a_configuration_error(project: Project) -> None:
    project.configure("agent: {default: nobody}\n")
    ran = project.sequencer("run", code=2)
    assert "nobody" in ran.err
    assert "scribe" in ran.err, "the known ones are listed"
    assert not project.state.exists()


def test_a_missing_prompt_is_a_configuration_error(project: Project) -> None:
    project.configure("workflow: {name: standard}\nagent: {default: rehearsal}\n")
    (project.folder / "prompts" / "main.md").rename(project.folder / "prompts" / "mian.md")
    ran = project.sequencer("run", "--max-steps", "2", code=2)
    assert "did you mean 'mian.md'" in ran.err
    assert not (project.folder / "sync" / "state.json").exists(), "no step was paid before"
