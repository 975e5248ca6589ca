"""Tasks that are added by an answer: who waits for them, and what a wrong answer is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sequencer.model.outcome import OutcomeStatus
from tests.unit.engine.flow.labs import Hold, failed, let_go, said, until
from tests.unit.engine.flow.team_labs import AT_ONCE, adds, task, team

LEAD = (task("lead", adds="tasks", **AT_ONCE), task("sum", "lead"))
MOST_HEAD_BYTES = 4096


def test_two_leads_that_want_the_same_id(tmp_path: Path) -> None:
    """Whoever ends second is refused, and hears why."""
    tasks = [task("x", adds="tasks", **AT_ONCE), task("y", adds="tasks", **AT_ONCE)]
    says = [adds(("more",)), adds(("other",))]
    made = team(tmp_path, tasks, {"x": [says[0]], "y": list(says)}, size=1)
    made.work()
    assert sorted(made.graph.order) == ["more", "other", "x", "y"]
    (refused,) = made.facts("failed")
    assert "the run has a task 'more' already" in refused["outcome"]["error"]
    assert "'more'" in made.actor.prompts_of("y")[1]


def test_one_process_grows_while_another_holds_a_claim(tmp_path: Path) -> None:
    hold = Hold("long")
    made = team(
        tmp_path,
        [task("lead", adds="tasks"), task("long"), task("sum", "lead", "long")],
        {"lead": adds(("a",), ("b", "a")), "long": hold},
    )
    with let_go(hold):
        first = made.works(places=1)
        second = made.works(places=1)
        hold.wait()
        until(lambda: "b" in made.accepted())
        assert "sum" not in made.actor.names
        hold.go.set()
        first.summary()
        second.summary()
    assert sorted(made.accepted()) == ["a", "b", "lead", "long", "sum"]
    assert made.accepted()[-1] == "sum"


def test_a_killed_process_leaves_the_growth_to_the_next(tmp_path: Path) -> None:
    made = team(tmp_path, LEAD, {"lead": adds(("a",), ("b",))})
    made.work(limits={"max_steps": 1})
    made.died()
    assert {claim.step for claim in made.head.claims} == {"a", "b"}
    assert made.work().usage.steps == 3
    assert {fact["step"] for fact in made.facts("taken-over")} == {"a", "b"}


# --- wrong answers -----------------------------------------------------------------------

WRONG = {
    "no-json": ("I would add two tasks", "schema: it is no JSON"),
    "empty": (json.dumps({"tasks": []}), "schema"),
    "unknown": (adds(("a", "nobody")), "there is no task 'nobody' to wait for"),
    "itself": (adds(("a", "a")), "waits for itself"),
    "cycle": (adds(("a", "b"), ("b", "a")), "in a circle: a -> b -> a"),
    "behind-a-follower": (adds(("a", "sum")), "in a circle"),
    "taken": (adds(("sum",)), "the run has a task 'sum' already"),
    "role": (adds(("a",), role="boss"), "there is no role 'boss'"),
    "more": (json.dumps({"tasks": [{"id": "a", "subject": "s", "model": "big"}]}), "schema"),
    "many": (adds(*((f"t{number}",) for number in range(40))), "at most 30 are allowed"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_fails_the_attempt_and_the_next_one_knows_why(
    tmp_path: Path, kind: str
) -> None:
    answer, reason = WRONG[kind]
    says = {"lead": [answer, adds(("good",))]}
    made = team(tmp_path, LEAD, says, rules={"max_tasks": 30})
    assert made.work().usage.steps == 3
    assert made.accepted() == ["lead", "good", "sum"]
    (refused,) = made.facts("failed")
    assert reason in refused["outcome"]["error"]
    assert refused["outcome"]["status"] == "failed"
    first, second = made.actor.prompts_of("lead")
    assert "last attempt" not in first
    assert reason in second.partition("# What your last attempt ended with")[2]
    assert len(made.marking.growths) == 1
    assert "lead" not in made.marking.team.notes


def test_every_problem_of_an_answer_is_told(tmp_path: Path) -> None:
    made = team(tmp_path, LEAD, {"lead": [adds(("a", "u1"), ("sum", "u2")), adds(("b",))]})
    made.work()
    (refused,) = made.facts("failed")
    for part in ("'u1'", "'u2'", "'sum' already"):
        assert part in refused["outcome"]["error"]


def test_a_structured_answer_counts_before_the_text(tmp_path: Path) -> None:
    answer = said("Done, see my JSON.", structured=json.loads(adds(("a",))))
    made = team(tmp_path, LEAD, {"lead": answer})
    made.work()
    assert made.accepted() == ["lead", "a", "sum"]
    # The list is for the program; whoever comes behind is told which parts there are.
    for name in ("a", "sum"):
        (prompt,) = made.actor.prompts_of(name)
        assert "# The parts into which the work was cut\n\n- a: Do a\n" in prompt
        assert "Done, see my JSON." not in prompt


def test_a_lead_that_failed_or_was_released_adds_nothing(tmp_path: Path) -> None:
    answer = adds(("a",))
    bad = failed("no", structured=json.loads(answer))
    stopped = said(answer).replace(status=OutcomeStatus.INTERRUPTED)
    made = team(tmp_path, LEAD, {"lead": [bad, stopped, adds(("b",))]})
    made.work()
    assert made.accepted() == ["lead", "b", "sum"]


# --- sub-issues --------------------------------------------------------------------------

PARTS = json.dumps(
    {
        "sub_issues": [
            {"id": "api", "title": "API", "description": "the server"},
            {"id": "ui", "title": "Page", "description": "the client", "depends_on": ["api"]},
        ]
    }
)


# --- what a process makes of a graph that others have added to --------------------------------
