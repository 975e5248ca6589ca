"""What a person sees of a graph run, node by node."""

from __future__ import annotations

from pathlib import Path

from sequencer.engine.view import FlowView, NodeView, view_of
from sequencer.model.step import Retry
from tests.unit.engine.flow.labs import Hold, Lab, failed, lab, let_go, until

LATER = Retry(max_attempts=2, initial_delay_s=3_600)


def seen(made: Lab) -> FlowView:
    flow = made.run().flow
    head, marking = flow.marking(made.head)
    questions = {one.node.id: one.text for one in flow.questions(head)}
    return view_of("t", marking.graph, head, marking, made.run().history(), questions=questions)


def nodes(made: Lab) -> dict[str, NodeView]:
    return {one.node.id: one for one in seen(made).nodes}


def states(made: Lab) -> dict[str, str]:
    return {name: str(one.state) for name, one in nodes(made).items()}


def test_every_state_at_once(tmp_path: Path) -> None:
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


def test_what_was_cancelled_and_what_failed(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "s --> a & b; h --> e", {"a": failed("pop"), "b": hold}, on_error="h")
    with let_go(hold):
        made.refused()
    assert states(made) == {"s": "done", "a": "failed", "b": "cancelled", "h": "done", "e": "done"}
    assert seen(made).status == "completed_after_error"


def test_it_waits_where_only_people_are_asked(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> h{{H}} --> b")
    made.refused()
    assert seen(made).status == "waiting"
    made.answer("h", "yes")
    assert seen(made).status == "running"
    made.work()
    assert seen(made).status == "completed"
    assert nodes(made)["h"].last_line == "yes"
