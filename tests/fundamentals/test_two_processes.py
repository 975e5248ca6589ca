"""Processes that know nothing of each other take turns through the files."""

from __future__ import annotations

import threading

from tests.fundamentals.scratch import Project, ended, running, until

ALONE = """\
mkdir busy || { echo TWO AT ONCE >> done.txt; exit 1; }
echo "$SEQUENCER_STEP" >> done.txt
rmdir busy
"""


def test_a_supervisor_and_a_main_terminal(project: Project) -> None:
    project.agent(ALONE)
    terminals = [
        project.start("run", "--mode", "sync", "--position", position, "--max-steps", "5")
        for position in ("main", "supervisor")
    ]
    with running(*terminals):
        codes = [ended(terminal).code for terminal in terminals]
    assert codes == [0, 0]
    assert project.done() == ["supervisor", "main"] * 5


def test_more_processes_than_steps(project: Project) -> None:
    project.configure(
        "workflow: {name: standard}\nagent: {default: scribe}\nlimits: {max_steps: 12}\n"
    )
    project.agent(ALONE)
    workers = [project.start("run", "--mode", "sync") for _ in range(4)]
    with running(*workers):
        codes = [ended(worker).code for worker in workers]
    assert codes == [0] * 4
    assert project.done() == ["supervisor", "main"] * 6
    accepted = [f["step_index"] for f in project.history() if f["event"] == "succeeded"]
    assert accepted == list(range(12))


def test_two_ticks_at_once(project: Project) -> None:
    gate = project.folder / "go"
    project.agent("echo here > begun; until test -e go; do sleep 0.05; done")
    first = project.start("tick")
    with running(first):
        until((project.folder / "begun").exists)
        before = project.state.read_bytes()
        second = project.sequencer("tick", code=75)
        assert project.state.read_bytes() == before, "the loser changes nothing"
        assert "supervisor" in second.err
        gate.touch()
        assert ended(first).code == 0
    assert project.head()["step_index"] == 1


def test_waiting_for_a_turn_has_a_limit_if_you_want(project: Project) -> None:
    ran = project.sequencer(
        "run", "--mode", "sync", "--position", "main", "--max-wait", "0.3", code=75
    )
    assert "supervisor" in ran.err


def test_a_waiting_process_takes_over_from_a_killed_one(project: Project) -> None:
    project.agent("echo here > begun; sleep 60")
    first = project.start("run", "--mode", "sync")
    with running(first):
        until((project.folder / "begun").exists)
        project.agent('echo "$SEQUENCER_STEP" >> done.txt')
        second = project.start("run", "--mode", "sync", "--max-steps", "1")
        with running(second):
            threading.Event().wait(0.5)  # it may wait already, or not yet: both have to work
            first.kill()
            assert ended(second, 20).code == 0
    assert project.done() == ["supervisor"]
    assert "taken-over" in project.events()


def test_all_who_wait_hear_that_the_run_was_stopped(project: Project) -> None:
    waiting = [project.start("run", "--mode", "sync", "--position", "main") for _ in range(2)]
    with running(*waiting):
        until(project.state.exists)
        project.sequencer("stop", "--reason", "enough")
        ends = [ended(process) for process in waiting]
    assert [end.code for end in ends] == [0, 0]
    assert all("enough" in end.out + end.err for end in ends)


def test_all_who_wait_hear_that_a_step_failed_for_good(project: Project) -> None:
    waiting = project.start("run", "--mode", "sync", "--position", "main")
    with running(waiting):
        until(project.state.exists)
        project.agent("exit 3")
        project.sequencer("run", "--mode", "sync", "--position", "supervisor", code=1)
        assert ended(waiting).code == 1


def test_a_position_that_does_not_exist(project: Project) -> None:
    ran = project.sequencer("run", "--mode", "sync", "--position", "mian", code=2)
    assert "did you mean 'main'" in ran.err


def test_ticks_for_one_position(project: Project) -> None:
    project.sequencer("tick", "--position", "main")
    assert project.done() == []
    project.sequencer("tick", "--position", "supervisor")
    project.sequencer("tick", "--position", "1")
    assert project.done() == ["supervisor", "main"]
