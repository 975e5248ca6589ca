"""The run's files removed, or another run begun in their place, while a process knows the run."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from sequencer.engine.changes import follow_run, require_head, require_run
from sequencer.engine.inline import InlineLoop
from sequencer.engine.invocation_budget import Mode
from sequencer.engine.logs import StepLogs
from sequencer.engine.run import Run
from sequencer.engine.sequence_worker import SequenceWorker
from sequencer.errors import CorruptState, StaleClaim, StepFailed, WorkTreeRefused
from sequencer.model.commands import Reset
from sequencer.model.head import Work
from sequencer.model.limits import InvocationLimits
from sequencer.model.sequence.order import find_step_ref
from sequencer.model.transitions import claim
from sequencer.store.file import FileStore
from tests.contract import store_cases as cases
from tests.scratch_folders import remove_at_once
from tests.unit.engine.flow.carts import Cart
from tests.unit.engine.projects import Recorder, events, head_of, open_scripted, reopen

ONE = InvocationLimits(max_steps=1)


def notices(run: Run, mode: Mode = Mode.COMBINED) -> list[str]:
    recorder = Recorder()
    run.work(mode, ONE, on_event=recorder)
    return [text for text in recorder.notices if "new run starts at step_index" in text]


def test_the_log_of_a_concurrent_start_is_not_taken_for_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins the run and its step between the look at the state and at the logs."""
    run, other, real = open_scripted(tmp_path), reopen(tmp_path), StepLogs.find_last_log

    def late(logs: StepLogs) -> Path | None:
        monkeypatch.undo()
        other.work(Mode.COMBINED, ONE)
        return real(logs)

    monkeypatch.setattr(StepLogs, "find_last_log", late)
    assert notices(run) == []
    assert head_of(run).step_index == 2
    remove_at_once(tmp_path / "sync")
    assert len(notices(reopen(tmp_path))) == 1


@pytest.mark.parametrize("output", ["said", ""])
def test_a_run_that_lost_its_files_in_a_turn_does_not_restart(tmp_path: Path, output: str) -> None:
    run = open_scripted(tmp_path)

    def lose() -> None:
        with run.turn() as turn:
            turn.output = output
            remove_at_once(tmp_path / "sync")

    with pytest.raises(StaleClaim, match="files are gone") as caught:
        lose()
    assert caught.value.where == str(tmp_path / "sync/state.json")
    (kept,) = (tmp_path / "sync/results").glob("0-1-*/output.txt")
    assert kept.read_text() == output
    with pytest.raises(CorruptState, match="had started"):
        reopen(tmp_path).work(Mode.TICK)


def test_the_same_token_in_another_run_is_another_claim(tmp_path: Path) -> None:
    run, other = open_scripted(tmp_path), reopen(tmp_path)

    def end_in_the_middle_of(token: int) -> None:
        with run.turn() as turn:
            turn.output = "mine"
            remove_at_once(tmp_path / "sync")
            theirs = stack.enter_context(other.turn())
            assert theirs.token == turn.token == token
            theirs.output = "theirs"

    with ExitStack() as stack:
        with pytest.raises(StaleClaim, match="was started in its place"):
            end_in_the_middle_of(token=1)
        assert head_of(other).claims
    told = list(other.history())
    assert [fact["event"] for fact in told] == ["initialised", "claimed", "succeeded"]
    assert told[-1]["outcome"]["output"] == "theirs"
    assert not list((tmp_path / "sync").glob("results/0-1*"))


def test_the_heartbeat_notices_another_run(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, store={"ttl_s": 1})

    def work() -> bool:
        with run.turn() as turn:
            remove_at_once(tmp_path / "sync")
            store = FileStore(tmp_path / "sync/state.json")
            cases.begin(store)
            here = cases.place_at(0)
            store.update(
                cases.on_run(lambda head: claim(head, here, cases.STRANGER, at="", ttl_s=60))
            )
            assert head_of(run).claims[0].token == turn.token
            heard.append(turn.cancellation.wait(5.0))
        return True

    heard: list[bool] = []
    with pytest.raises(StaleClaim):
        work()
    assert heard == [True]


def test_files_deleted_between_the_check_and_the_lock_are_no_bug(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    run.commands.begin()
    head = head_of(run)
    worker = SequenceWorker(run.store, run._resolve_at(run.head).performer(Recorder()), run.limits)
    prepared = worker.performer.prepare(find_step_ref(run.workflow, 0))
    try:
        remove_at_once(tmp_path / "sync")
        with pytest.raises(StaleClaim, match="files are gone"):
            worker.claim(head, prepared)
        run.commands.begin()
        assert worker.claim(head, prepared) is None
    finally:
        worker.close()


def test_a_reset_is_followed_and_a_loss_is_not(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    first = run.commands.begin()
    second = run.do(Reset()).head
    assert follow_run(run.store, first, second) is second
    assert require_head(run.store, second) is second
    with pytest.raises(StaleClaim, match="another one was started in its place"):
        require_run(run.store, first.run_id, second)
    remove_at_once(tmp_path / "sync")
    third = reopen(tmp_path).commands.begin()
    preview = second.replace(revision=0)
    assert follow_run(run.store, preview, third) is third
    with pytest.raises(StaleClaim, match="was started in its place"):
        follow_run(run.store, second, third)


def test_logs_of_an_earlier_run_are_reported(tmp_path: Path) -> None:
    assert notices(open_scripted(tmp_path)) == []
    remove_at_once(tmp_path / "sync")
    told = notices(reopen(tmp_path))
    assert len(told) == 1
    assert str(tmp_path / "logs/local/steps/iter-00001_supervisor.log") in told[0]
    assert events(reopen(tmp_path)) == ["initialised", "claimed", "succeeded"]
    assert notices(reopen(tmp_path)) == []


def test_logs_of_async_mode_do_not_count_as_a_run(tmp_path: Path) -> None:
    assert notices(open_scripted(tmp_path), mode=Mode.ASYNC) == []
    assert (tmp_path / "logs/local/steps/iter-00001_supervisor.log").exists()
    assert notices(reopen(tmp_path)) == []


def test_a_step_whose_code_is_refused_fails_and_its_work_is_saved(tmp_path: Path) -> None:
    class Refusing(Cart):
        def collect(self, *_: object) -> Work | None:
            raise WorkTreeRefused("another branch is checked out")

    run = open_scripted(tmp_path)
    head, cart = run.commands.begin(), Refusing()
    performer = replace(run._resolve_at(head).performer(Recorder()), workspace=cart)
    worker = SequenceWorker(run.store, performer, run.limits)
    try:
        with pytest.raises(StepFailed, match="another branch is checked out"):
            InlineLoop(worker, Mode.COMBINED, ONE, head).work()
    finally:
        worker.close()
    assert (head_of(run).step_index, head_of(run).work, len(cart.kept)) == (0, None, 1)
    assert events(run)[-1] == "failed"
