"""Processes that know nothing of each other take turns through the files."""

from __future__ import annotations

import threading

from tests.fundamentals.scratch import Project, ended, running, until

ALONE = """\
mkdir busy || { echo TWO AT ONCE >> done.txt; exit 1; }
echo "$SEQUENCER_STEP" >> done.txt
rmdir busy
"""


def test_a_supervisor_and_a_main_terminal_take_turns(project: Project) -> None:
    project.agent(ALONE)
    terminals = [
        project.start("run", "--mode", "sync", "--position", position, "--max-steps", "5")
        for position in ("main", "supervisor")
    ]
    with running(*terminals):
        codes = [ended(terminal).code for terminal in terminals]
    assert codes == [0, 0]
    assert project.done() == ["supervisor", "main"] * 5


def test_more_processes_than_positions_share_the_steps(project: Project) -> None:
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


def test_the_second_of_two_simultaneous_ticks_changes_nothing(project: Project) -> None:
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


def test_waiting_for_a_turn_can_be_limited(project: Project) -> None:
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


def test_all_waiting_processes_end_when_the_run_is_stopped(project: Project) -> None:
    waiting = [project.start("run", "--mode", "sync", "--position", "main") for _ in range(2)]
    with running(*waiting):
        until(project.state.exists)
        project.sequencer("stop", "--reason", "enough")
        ends = [ended(process) for process in waiting]
    assert [end.code for end in ends] == [0, 0]
    assert all("enough" in end.out + end.err for end in ends)


def test_a_waiting_process_ends_when_a_step_fails_for_good(project: Project) -> None:
    waiting = project.start("run", "--mode", "sync", "--position", "main")
    with running(waiting):
        until(project.state.exists)
        project.agent("exit 3")
        project.sequencer("run", "--mode", "sync", "--position", "supervisor", code=1)
        assert ended(waiting).code == 1


def test_an_unknown_position_is_refused_with_a_suggestion(project: Project) -> None:
    ran = project.sequencer("run", "--mode", "sync", "--position", "mian", code=2)
    assert "did you mean 'main'" in ran.err


def test_a_tick_for_a_position_runs_only_its_step(project: Project) -> None:
    project.sequencer("tick", "--position", "main")
    assert project.done() == []
    project.sequencer("tick", "--position", "supervisor")
    project.sequencer("tick", "--position", "1")
    assert project.done() == ["supervisor", "main"]
