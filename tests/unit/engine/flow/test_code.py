"""Graph runs whose code moves with the state: one work tree at a time, and nothing is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from sequencer.engine.changes import RetryPolicy
from sequencer.engine.code_sync import TURN_S, CodeSync
from sequencer.engine.invocation_budget import Mode
from sequencer.errors import (
    ClaimHeld,
    ConfigurationError,
    DefinitionChanged,
    RemoteRefused,
    RemoteUnreachable,
    SequencerError,
    StaleClaim,
    StepFailed,
    WorkTreeBusy,
    WorkTreeRefused,
)
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.protocol import StepRequest
from sequencer.model.commands import TakeOver
from sequencer.model.head import Claim, Head
from sequencer.model.outcome import Outcome
from tests.contract.store_cases import new_head
from tests.played import PlayedRun, PlayedStore
from tests.scratch_folders import remove_at_once
from tests.unit.engine.flow.carts import Cart, carried, work
from tests.unit.engine.flow.labs import Hold, failed, lab, let_go, said, slots_of
from tests.unit.engine.flow.test_batches import at_work, taken

# --- one work tree at a time ---------------------------------------------------------------


def test_another_process_waits_until_no_one_else_works(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "a & b & c --> j", {"a": hold}, entries="abc")
    carried(made, has_work=True)
    with let_go(hold):
        first = made.works(places=1, limits={"max_steps": 1})
        hold.wait()
        second = made.works()
        second.ready()
        with pytest.raises(ClaimHeld, match="'a' runs in another process"):
            made.work(Mode.TICK)
        with pytest.raises(ClaimHeld):
            made.work(limits={"max_wait_s": 0.2})
        assert made.actor.names == ["a"], "b and c may not begin in another work tree"
    assert first.summary().usage.steps == 1
    assert second.summary().usage.steps == 3
    assert sorted(made.accepted()) == ["a", "b", "c", "j"]


def test_a_process_that_must_wait_does_not_check_its_work_tree(tmp_path: Path) -> None:
    """Two processes of one clone have the same one, and the other's node changes it."""
    hold = Hold()
    made = lab(tmp_path, "a & b --> j", {"a": hold}, entries="ab")
    cart = carried(made)
    with let_go(hold):
        first = made.works(places=1, limits={"max_steps": 1})
        hold.wait()
        cart.says["ready"] = WorkTreeRefused("1 changed path")
        with pytest.raises(ClaimHeld):
            made.work(Mode.TICK)
        del cart.says["ready"]
    assert first.summary().usage.steps == 1


@pytest.mark.parametrize(("moves", "slots"), [(True, 0), (False, 8)])
def test_a_live_claim_leaves_no_room_if_the_workspace_moves_code(
    tmp_path: Path, moves: bool, slots: int
) -> None:
    made = lab(tmp_path, "a & b & c --> j", entries="abc")
    if moves:
        carried(made)
    other = made.claimed(7)
    worker = made.worker()
    found = worker.capacity(made.head, slots_of(worker))
    assert found.slots == slots
    assert worker.is_code_busy(made.head) is moves
    # Those that it was granted a moment ago are its own.
    held = [claim.token for claim in made.head.claims]
    own = worker.capacity(made.head, slots_of(worker), held)
    assert own.slots == 8 - len(held)
    other.leave()
    assert worker.is_code_busy(made.head) is False
    free = worker.capacity(made.head, slots_of(worker))
    assert free.slots == 8
    worker.close()


def test_a_node_may_start_only_beside_attempts_on_the_same_code() -> None:
    store = PlayedStore(PlayedRun())
    code = CodeSync(Cart(), RetryPolicy(store, Cancellation(), lambda *_: None))
    owned: dict[str, Any] = {
        "owner": store.owner(),
        "claimed_at": "2026-01-01T00:00:00Z",
        "ttl_s": 60,
    }
    claim = Claim(token=1, step="a", step_index=0, attempt=1, **owned)
    head = new_head(claims=(claim,), work=work(1))
    assert code.may_begin(head, (), ()), "before it begins, the code is brought"
    assert not code.may_begin(head, (1,), ()), "the state's code is not here, and can't be brought"
    code.enter(head)
    assert code.may_begin(head, (1,), ())
    assert not code.may_begin(head, (1, 2), ()), "2 has lost its claim, and still works"
    assert not code.may_begin(head, (), (3,)), "3 works somewhere else"
    moved = head.replace(work=work(2))
    assert not code.may_begin(moved, (1,), ()), "somebody else has moved it"
    code.is_ready = False
    assert not code.may_begin(head, (1,), ())
    store.close()


class SlowToPublish(Cart):
    """A workspace whose first publication takes until a test lets it end."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.published: list[int] = []

    def publish(self, head: Head) -> None:
        self.has_begun.set()
        assert self.may_end.wait(20)
        self.published.append(head.revision)


def test_the_last_publication_waits_for_one_in_another_thread() -> None:
    """Else the process ends in the middle of it, and people don't see the last step's code."""
    store, cart = PlayedStore(PlayedRun()), SlowToPublish()
    code = CodeSync(cart, RetryPolicy(store, Cancellation(), lambda *_: None))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(code.publish, new_head(revision=1))
        assert cart.has_begun.wait(20)
        code.publish(new_head(revision=2))
        last = threads.submit(code.publish, new_head(revision=3), wait=True)
        assert not wait([last], timeout=0.05).done
        cart.may_end.set()
        first.result(20)
        last.result(20)
    assert cart.published == [1, 3]
    store.close()


# --- prompts -------------------------------------------------------------------------------


def test_a_node_gets_its_prompt_from_the_code_it_starts_on(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", prompts={"a": "old", "b": "old"})
    carried(made, brings={"a": "new of a", "b": "new of {{nodes.a.output}}"})
    made.actor.says["a"] = [said("a")]
    made.work()
    assert made.actor.prompts_of("a") == ["new of a"]
    assert made.actor.prompts_of("b") == ["new of a"]


class Missing(dict[str, str]):
    """Prompts of which one may be gone."""

    gone = ""

    def get(self, name: str, default: Any = None) -> Any:
        if name == self.gone:
            raise ConfigurationError(f"prompt {name!r} is gone, with s3cret in it")
        return super().get(name, default)


def test_a_missing_prompt_fails_its_node(tmp_path: Path) -> None:
    def remove(request: StepRequest, cancellation: Cancellation) -> Outcome:
        del request, cancellation
        prompts.gone = "b"
        return said()

    made = lab(tmp_path, "a --> b & c; h", {"a": remove}, on_error="h")
    made.prompts = prompts = Missing()
    carried(made)
    with pytest.raises(StepFailed, match="node 'b' failed"):
        made.work()
    (fact,) = made.facts("failed")
    assert fact["step"] == "b"
    assert "prompt 'b' is gone, with *** in it" in fact["outcome"]["error"]
    assert made.status == "completed_after_error"
    assert made.actor.names[-1] == "h"
    assert "b" not in made.actor.names
    assert made.head.claims == ()


# --- what does not count is kept -----------------------------------------------------------


def test_work_that_comes_too_late_is_saved(tmp_path: Path) -> None:
    made = lab(tmp_path, "a & b --> j", entries="ab")
    cart = carried(made, has_work=True)
    with at_work(made, 2) as worker:
        ended = taken(worker, 2)
        made.run().do(TakeOver())
        assert worker.record(ended, slots_of(worker)) is None
        assert cart.kept == [1, 2]
        assert made.head.work is None
    assert made.accepted() == []


def test_the_time_of_work_that_comes_too_late_counts(tmp_path: Path) -> None:
    made = lab(tmp_path, "a & b --> j", entries="ab")
    with at_work(made, 2) as worker:
        ended = taken(worker, 2)
        for attempt in ended:
            assert attempt.ended is not None
            usage = attempt.ended.outcome.usage.replace(seconds=5.0)
            outcome = attempt.ended.outcome.replace(usage=usage)
            attempt.ended = replace(attempt.ended, outcome=outcome)
        made.run().do(TakeOver())
        worker.record(ended, slots_of(worker))
        assert made.head.usage.seconds == pytest.approx(10.0, abs=1.0)


@pytest.mark.parametrize(
    "error",
    [
        RemoteRefused("a hook says no"),
        RemoteUnreachable("no answer"),
        DefinitionChanged("adopted meanwhile"),
    ],
    ids=["refused", "unreachable", "adopted"],
)
@pytest.mark.parametrize("cannot", [False, True], ids=["", "git fails as well"])
def test_work_that_cannot_be_recorded_is_saved(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: SequencerError,
    cannot: bool,
) -> None:
    made = lab(tmp_path, "a & b --> j", {"b": failed("x")}, entries="ab")
    cart = carried(made, says={"keep": WorkTreeRefused("no")} if cannot else {}, has_work=True)

    def refuse(_: object) -> NoReturn:
        raise error

    store = made.store()
    with at_work(made, 2, store) as worker:
        ended = taken(worker, 2)
        worker.stop.set(StopReason.INTERRUPTED)
        monkeypatch.setattr(store, "update", refuse)
        with pytest.raises(type(error), match=error.message):
            worker.record(ended, slots_of(worker))
    # A failure has said by itself that there is nothing to keep.
    assert cart.kept == [1]


def test_nothing_is_saved_for_a_step_of_a_deleted_run(tmp_path: Path) -> None:
    made = lab(tmp_path, "a")
    cart = carried(made)
    store = made.store()
    with at_work(made, 1, store) as worker:
        ended = taken(worker, 1)
        slots = slots_of(worker)
        remove_at_once(tmp_path / "sync")
        with pytest.raises(StaleClaim):
            worker.record(ended, slots)
    assert cart.kept == []


def test_an_accepted_node_stays_accepted_if_the_next_cannot_start(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b")
    cart = carried(made, has_work=True)
    with at_work(made, 1) as worker:
        ended = taken(worker, 1)
        cart.says["enter"] = WorkTreeRefused("somebody's file is in the way")
        with pytest.raises(WorkTreeRefused, match="in the way"):
            worker.record(ended, slots_of(worker))
    assert made.accepted() == ["a"]
    assert made.head.work == work(1)
    assert made.head.claims == ()
    assert cart.kept == []
    del cart.says["enter"]
    assert made.work().usage.steps == 1


def test_attempts_of_all_runs_in_one_folder_take_turns(tmp_path: Path) -> None:
    store, stop, going = PlayedStore(PlayedRun()), Cancellation(), Cancellation()
    retry_policy = RetryPolicy(store, stop, lambda *_: None)
    one, other = (CodeSync(Cart(folder=tmp_path), retry_policy) for _ in range(2))
    entered = threading.Event()

    def enter() -> None:
        with other.reserve(new_head(), going):
            entered.set()

    waiting = threading.Thread(target=enter)
    with one.reserve(new_head(), going):
        waiting.start()
        assert not entered.wait(TURN_S * 2)
        stop.set(StopReason.CLAIM_LOST)
        with pytest.raises(WorkTreeBusy), other.reserve(new_head(), stop):
            pass
    assert entered.wait(10)
    waiting.join()
    elsewhere = CodeSync(Cart({"ready": RemoteUnreachable("away")}, folder=tmp_path), retry_policy)
    with pytest.raises(WorkTreeRefused, match="away"), elsewhere.reserve(new_head(), going):
        pass
    with one.reserve(new_head(), going):
        pass
    for cancellation in (stop, going):
        cancellation.close()
