"""A crash can make an agent run again; it can't lose, double or reorder an accepted step."""

from __future__ import annotations

import signal

from tests.fundamentals.scratch import Project, is_running, running, until

SLOW = 'echo $$ > agent.pid; echo "$SEQUENCER_STEP" >> begun.txt; sleep 60'


def killed_in_mid_step(project: Project) -> int:
    """Kill the sequencer while its agent works; return the agent's pid."""
    project.agent(SLOW)
    pid_file = project.folder / "agent.pid"
    process = project.start("run")
    with running(process):
        until(lambda: pid_file.exists() and pid_file.read_text().strip())
        process.send_signal(signal.SIGKILL)
        process.wait()
    return int(pid_file.read_text())


def test_the_agent_of_a_killed_sequencer_ends(project: Project) -> None:
    agent = killed_in_mid_step(project)
    until(lambda: not is_running(agent), timeout_s=8)


def test_the_next_tick_takes_over_at_once(project: Project) -> None:
    killed_in_mid_step(project)
    before = project.head()["claims"][0]
    project.agent('echo "$SEQUENCER_STEP $SEQUENCER_TOKEN $SEQUENCER_ATTEMPT" >> done.txt')
    project.sequencer("tick")
    assert (before["token"], before["attempt"]) == (1, 1)
    assert project.done() == ["supervisor 2 2"]
    assert project.events() == ["initialised", "claimed", "taken-over", "claimed", "succeeded"]


def test_a_crash_does_not_count_as_a_failure(project: Project) -> None:
    killed_in_mid_step(project)
    project.agent("exit 0")
    project.sequencer("tick")
    head = project.head()
    assert (head["step_index"], head["failures_in_row"], head["attempt"]) == (1, 0, 0)


def test_a_step_that_always_kills_its_worker_is_not_restarted_forever(project: Project) -> None:
    project.configure(
        "workflow: {name: standard}\nagent: {default: scribe}\nlimits: {max_attempts: 2}\n"
    )
    for _ in range(2):
        (project.folder / "agent.pid").unlink(missing_ok=True)
        killed_in_mid_step(project)
    refused = project.sequencer("tick", code=3)
    assert "started 2 times" in refused.err
    assert (project.folder / "begun.txt").read_text() == "supervisor\n" * 2


def test_accepted_steps_are_there_after_a_crash(project: Project) -> None:
    project.sequencer("run", "--max-steps", "3")
    (project.folder / "agent.pid").unlink(missing_ok=True)
    killed_in_mid_step(project)
    project.agent('echo "$SEQUENCER_STEP" >> done.txt')
    project.sequencer("run", "--max-steps", "2")
    assert project.done() == ["supervisor", "main", "supervisor", "main", "supervisor"]
    accepted = [f["step_index"] for f in project.history() if f["event"] == "succeeded"]
    assert accepted == [0, 1, 2, 3, 4]


def test_an_interrupted_sequencer_gives_the_step_back(project: Project) -> None:
    project.agent(SLOW)
    pid_file = project.folder / "agent.pid"
    process = project.start("run")
    with running(process):
        until(lambda: pid_file.exists() and pid_file.read_text().strip())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 130
    assert not is_running(int(pid_file.read_text()))
    head = project.head()
    assert (head["claims"], head["step_index"], head["failures_in_row"]) == ([], 0, 0)
    assert project.events()[-1] == "released"
