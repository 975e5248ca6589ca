"""One process's part: what it may claim, what it records, and what it leaves alone."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.attempt import Attempt
from sequencer.engine.attempt_threads import AttemptThreads
from sequencer.engine.heartbeat import Heartbeat
from sequencer.errors import MachineBusy, StepFailed
from sequencer.executors.cancellation import StopReason
from sequencer.history.story import build_story
from sequencer.history.view import FlowView, NodeView, build_view
from sequencer.model.commands import Pause, RunCommand, Stop
from sequencer.model.limits import RunLimits
from sequencer.model.step import Output, Retry, Step
from sequencer.model.workflow import Workflow
from sequencer.store.watch import wait_readable
from tests.played import PlayedStore
from tests.unit.engine.flow.labs import Hold, Lab, failed, lab, let_go, said, slots_of, until
from tests.unit.saying import attempt

# --- take-over ---------------------------------------------------------------------------


# --- rooms -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "left", "limits", "slots"),
    [
        (8, None, {}, 8),
        (3, None, {}, 3),
        (8, 2, {}, 2),
        (8, None, {"steps": 5}, 5),
        (8, 2, {"steps": 1}, 1),
    ],
)
def test_places_and_limits_bound_the_claims_of_a_worker(
    tmp_path: Path, places: int, left: int | None, limits: dict[str, Any], slots: int
) -> None:
    made = lab(
        tmp_path, "a; b; c; d; e; f; g; h; i", entries="abcdefghi", limits=RunLimits(**limits)
    )
    made.begun()
    worker = made.worker(places=places)
    most = slots_of(worker, left)

    def claimed() -> int:
        return len(worker.changes.update(None, lambda now: worker.capacity(now, most))[1])

    worker.is_stopped = True
    assert claimed() == 0
    worker.is_stopped = False
    assert claimed() == slots
    worker.attempts.close()


@pytest.mark.parametrize("command", [Pause(), Stop()])
def test_a_worker_claims_nothing_in_a_run_on_hold(tmp_path: Path, command: RunCommand) -> None:
    made = lab(tmp_path, "a")
    made.begun()
    made.run().do(command)
    worker = made.worker()
    most = slots_of(worker)
    assert worker.changes.update(None, lambda now: worker.capacity(now, most))[1] == []
    # Entries whose tokens can't start yet are no transition.
    revision = made.head.revision
    assert made.work().usage.steps == 0
    assert made.head.revision == revision
    worker.attempts.close()


# --- preparing ---------------------------------------------------------------------------


# --- records -----------------------------------------------------------------------------


def test_json_output_of_a_node_is_parsed_into_the_state(tmp_path: Path) -> None:
    made = lab(
        tmp_path,
        "a --> b",
        {"a": '{"k": [1]}'},
        prompts={"b": "{{state.x.k.0}} {{state.x}}"},
        nodes={"a": {"output_key": "x"}},
    )
    steps = (Step(name="a", output=Output(format="json")), Step(name="b"))
    made = made.changed(Workflow("flow", steps, kind="graph", graph=made.workflow.graph))
    made.work()
    assert made.actor.prompts_of("b") == ['1 {"k":[1]}']


def test_an_output_that_is_not_json_fails_the_node_that_reads_it(tmp_path: Path) -> None:
    nodes = {"a": {"output_key": "x"}}
    made = lab(tmp_path, "a --> b", {"a": "no json"}, prompts={"b": "{{state.x}}"}, nodes=nodes)
    steps = (Step(name="a", output=Output(format="json")), Step(name="b"))
    made = made.changed(Workflow("flow", steps, kind="graph", graph=made.workflow.graph))
    with pytest.raises(StepFailed):
        made.work()
    assert made.actor.names == ["a"]
    assert "not JSON" in made.facts("failed")[0]["outcome"]["error"]


# --- an answer that has to decide --------------------------------------------------------

CHOICE = "a -->|yes| b; a -->|no| c"


def test_an_answer_that_picks_no_path_is_asked_for_again_with_the_labels(
    tmp_path: Path,
) -> None:
    made = lab(tmp_path, CHOICE, {"a": ["I think so", "yes"]})
    made.work()
    assert made.actor.names == ["a", "a", "b"]
    assert "`yes`, `no` and nothing else" in made.actor.prompts_of("a")[1]
    assert "nothing else" not in made.actor.prompts_of("a")[0]


def test_a_node_that_never_picks_a_path_fails_and_the_labels_are_named(tmp_path: Path) -> None:
    made = lab(tmp_path, CHOICE, {"a": f"I think so{' and so on' * 100}"})
    with pytest.raises(StepFailed, match=r"no matching branch for .I think so.*; .* `yes`, `no`"):
        made.work()
    assert made.actor.names == ["a", "a"]


@pytest.mark.parametrize(("first", "tries"), [("I think so", 2), ("no", 1)])
def test_a_node_that_feeds_a_decision_is_asked_again_too(
    tmp_path: Path, first: str, tries: int
) -> None:
    made = lab(tmp_path, "a --> m((M)) --> d{D}; d -->|yes| b; d -->|no| c", {"a": [first, "no"]})
    made.work()
    assert made.actor.names == [*["a"] * tries, "c"]


def test_a_node_is_not_asked_again_if_others_feed_the_decision_too(tmp_path: Path) -> None:
    chart = "s --> a; s --> b; a --> d{D}; b --> d; d -->|yes| c; d -->|no| e"
    made = lab(tmp_path, chart, {"a": "hm", "b": "yes"})
    with pytest.raises(StepFailed, match=r"no matching branch .* one of 'yes', 'no'") as ended:
        made.work()
    assert sorted(made.actor.names) == ["a", "b", "s"]
    # A retry would choose the same again.
    assert re.search(r"'sequencer rewind [ab]' goes back", str(ended.value.hint))
    assert "retry" not in str(ended.value.hint)


def test_any_answer_is_accepted_if_there_is_a_default_path(tmp_path: Path) -> None:
    made = lab(tmp_path, "a -->|yes| b; a -->|default| c", {"a": "I think so"})
    made.work()
    assert made.actor.names == ["a", "c"]


def test_a_structured_decision_beside_the_text_counts(tmp_path: Path) -> None:
    answer = said("I looked at it.", structured={"decision": "no", "why": "late"})
    made = lab(tmp_path, CHOICE, {"a": answer}, prompts={"c": "{{output.why}}"})
    made.work()
    assert made.actor.names == ["a", "c"]
    assert made.actor.prompts_of("c") == ["late"]


# --- what is heard -------------------------------------------------------------------------


# --- attempts at once: threads, their ends in order, and a descriptor that wakes --------------


@pytest.fixture
def attempts() -> Iterator[AttemptThreads]:
    store = PlayedStore(ttl_s=1.0)
    heartbeat = Heartbeat(store)
    made = AttemptThreads(heartbeat)
    yield made
    made.cancel(StopReason.INTERRUPTED)
    while made.running:
        if made.pop_ended() is None:
            made.wait()
    made.close()
    heartbeat.close()
    store.close()


def running(token: int) -> Attempt:
    return attempt(f"n{token}", token=token)


def test_a_wake_ends_a_wait(attempts: AttemptThreads) -> None:
    before = time.monotonic()
    threading.Timer(0.05, attempts.wake).start()
    attempts.wait()
    assert 0.02 < time.monotonic() - before < 0.9
    assert not wait_readable((attempts.fileno(),), 0)


def test_an_attempt_that_gets_no_thread_ends_and_the_next_one_runs(
    attempts: AttemptThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        attempts.start(running(1), wait_a_little)
    ended = attempts.pop_ended()
    assert ended is not None
    assert isinstance(ended.busy, MachineBusy)
    assert not ended.ends_the_work
    attempts.start(running(2), wait_a_little)
    until(lambda: wait_readable((attempts.fileno(),), 0))
    following = attempts.pop_ended()
    while following is None:
        attempts.wait()
        following = attempts.pop_ended()
    assert (following.claim.token, following.error) == (2, None)


def wait_a_little(one: Attempt) -> None:
    one.cancellation.wait(0.001)


# --- what a person sees of a graph run, node by node ------------------------------------------

LATER = Retry(max_attempts=2, initial_delay_s=3_600)


def seen(made: Lab) -> FlowView:
    flow = made.run().flow
    head, marking = flow.marking(made.head)
    questions = {one.node.id: one.text for one in flow.questions(head)}
    return build_view(
        "t", marking.graph, head, marking, build_story(made.run().history()), questions=questions
    )


def nodes(made: Lab) -> dict[str, NodeView]:
    return {one.node.id: one for one in seen(made).nodes}


def states(made: Lab) -> dict[str, str]:
    return {name: str(one.state) for name, one in nodes(made).items()}


def test_every_node_state_is_shown(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(
        tmp_path,
        "s --> run & rest & h{{Sure?}} & more & m((M)); run & rest & h & more & m --> j --> end",
        {"run": hold, "rest": failed("pop"), "s": "line one\n\nlast line\n"},
        retry={"rest": LATER},
        max_parallel=2,
    )
    with let_go(hold):
        working = made.works(limits={"max_steps": 3})
        until(lambda: made.facts("failed") and len(made.accepted()) == 2)
        found = nodes(made)
        assert {name: str(one.state) for name, one in found.items()} == {
            "s": "done",
            "run": "running",
            "rest": "retrying",
            "h": "asked",
            "more": "done",
            "m": "done",
            "j": "waiting",
            "end": "pending",
        }
        assert seen(made).status == "running"
    working.end()
    assert found["s"].last_line == "last line"
    assert found["h"].last_line == "Sure?"
    assert found["rest"].last_line == "pop"
    assert found["rest"].due is not None
    assert (found["run"].attempt, found["run"].since is not None) == (1, True)
    assert found["s"].since is None


def test_cancelled_and_failed_nodes_are_shown(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "s --> a & b; h --> e", {"a": failed("pop"), "b": hold}, on_error="h")
    with let_go(hold):
        made.refused()
    assert states(made) == {"s": "done", "a": "failed", "b": "cancelled", "h": "done", "e": "done"}
    assert seen(made).status == "completed_after_error"


def test_a_run_is_shown_as_waiting_if_only_people_are_asked(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> h{{H}} --> b")
    made.refused()
    assert seen(made).status == "waiting"
    made.answer("h", "yes")
    assert seen(made).status == "running"
    made.work()
    assert seen(made).status == "completed"
    assert nodes(made)["h"].last_line == "yes"
