"""A turn: claim a step, perform it, have it accepted; in a program of your own."""

from __future__ import annotations

import pytest

import sequencer
from sequencer import commands
from sequencer.errors import ClaimHeld, StaleClaim, TransitionRefused
from tests.fundamentals.scratch import Project


def test_leaving_the_block_accepts_the_step(project: Project) -> None:
    run = sequencer.open_run(project.folder)
    with run.turn() as turn:
        assert (turn.step, turn.step_index, turn.token, turn.attempt) == ("supervisor", 0, 1, 1)
        turn.output = "a plan"
    assert run.head is not None
    assert (run.head.step_index, run.head.expected_step) == (1, "main")
    *_, last = run.history()
    assert (last["event"], last["outcome"]["output"]) == ("succeeded", "a plan")


def test_an_exception_is_recorded_as_a_failure_and_propagates(project: Project) -> None:
    run = sequencer.open_run(project.folder)
    with pytest.raises(ValueError, match="no idea"), run.turn():
        raise ValueError("no idea")
    assert run.head is not None
    assert (run.head.step_index, run.head.status, run.head.failures_in_row) == (0, "failed", 1)


def test_a_running_step_is_not_granted_twice(project: Project) -> None:
    first, second = sequencer.open_run(project.folder), sequencer.open_run(project.folder)
    with first.turn(), pytest.raises(ClaimHeld) as refused, second.turn():
        pytest.fail("both have it")
    assert refused.value.exit_code == 75


def test_a_token_is_never_granted_again(project: Project) -> None:
    run = sequencer.open_run(project.folder)
    tokens = []
    for _ in range(2):
        with run.turn() as turn:
            tokens.append(turn.token)
    run.do(commands.Rewind("0"))
    with run.turn() as turn:
        tokens.append(turn.token)
    run.do(commands.Reset())
    with run.turn() as turn:
        tokens.append(turn.token)
    assert tokens == [1, 2, 3, 4]


def test_a_process_that_lost_its_claim_cannot_have_the_step_accepted(project: Project) -> None:
    run, other = sequencer.open_run(project.folder), sequencer.open_run(project.folder)
    turn = run.turn()
    opened = turn.__enter__()
    other.do(commands.TakeOver())
    with other.turn() as theirs:
        theirs.output = "from the one who went on"
    opened.output = "too late"
    with pytest.raises(StaleClaim):
        turn.__exit__(None, None, None)
    answers = [fact["outcome"]["output"] for fact in run.history() if fact["event"] == "succeeded"]
    assert answers == ["from the one who went on"]
    (kept,) = (project.folder / "sync" / "results").glob("0-1-*/output.txt")
    assert kept.read_text() == "too late", "the work itself is not thrown away"


def test_a_position_that_is_not_due_is_refused(project: Project) -> None:
    run = sequencer.open_run(project.folder)
    with pytest.raises(ClaimHeld, match="another position"), run.turn("main"):
        pytest.fail("it is the supervisor's turn")
    assert run.head is not None
    assert run.head.step_index == 0


def test_no_turn_follows_completion(project: Project) -> None:
    run = sequencer.open_run(project.folder)
    with run.turn() as turn:
        turn.is_complete = True
    with pytest.raises(TransitionRefused, match="complete"), run.turn():
        pytest.fail("nothing is left")


def test_a_program_and_agents_share_one_run(project: Project) -> None:
    with sequencer.open_run(project.folder).turn() as turn:
        turn.output = "by the program"
    project.sequencer("run", "--max-steps", "1")
    assert project.done() == ["main"]
    assert project.head()["step_index"] == 2
