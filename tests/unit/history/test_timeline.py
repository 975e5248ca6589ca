from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.history.spans import Execution, SpanKind, build_timeline, compute_figures
from sequencer.history.story import build_story
from tests.unit.history.journal_facts import NOON_S, Told

LATER = NOON_S + 1000


def spans(told: Told, step: str, now: float = LATER) -> list[tuple[str, float, float]]:
    """Return kind, begin and end of each span of *step*, in seconds since noon."""
    return [
        (str(span.kind), round(span.begin - NOON_S, 3), round(span.end - NOON_S, 3))
        for one in executions(told, now)
        if one.step == step
        for span in one.spans
    ]


def executions(told: Told, now: float = LATER) -> tuple[Execution, ...]:
    return build_timeline(build_story(told.facts), now).executions


def sources(told: Told) -> list[tuple[str, list[str]]]:
    """Return the steps of all executions, each with the steps it came from."""
    found = executions(told)
    return [(one.step, [found[place].step for place in one.sources]) for one in found]


def test_tries_of_one_execution_share_a_row() -> None:
    told = Told().claim("a", 0).end("a", 0.1, 1, "failed", error="no")
    told.claim("a", 5, None, attempt=2).end("a", 5.2, 6.2, "failed", attempt=2)
    told.claim("a", 9, None, attempt=3).end("a", 9.5, 10, attempt=3)
    (one,) = executions(told)
    assert spans(told, "a") == [("failed", 0.1, 1), ("failed", 5.2, 6.2), ("done", 9.5, 10)]
    assert [span.attempt for span in one.spans] == [1, 2, 3]
    assert one.is_accepted
    assert one.seconds == pytest.approx(0.5)
    assert one.end == pytest.approx(NOON_S + 10)


def test_a_gate_after_a_step_is_a_wait_in_the_row_of_the_step() -> None:
    told = Told()
    told.tell("claimed", "plan", 0, token=1, attempt=1).tokens["plan"] = 1
    told.end("plan", 0, 2, gate=True).tell("approved", "plan", 12, {"note": "by me"}, step_index=0)
    told.tell("claimed", "build", 12, token=2, attempt=1).tokens["build"] = 2
    told.end("build", 12.5, 13)
    assert spans(told, "plan") == [("done", 0, 2), ("person", 2, 12)]
    plan, build = executions(told)
    assert build.sources == (0,)
    # What counts of the plan is its attempt and the time until the decision.
    assert plan.seconds == pytest.approx(12)


def test_the_cost_of_a_lost_attempt_is_not_a_second_end() -> None:
    told = Told().claim("a", 0)
    lost = told.tokens["a"]
    told.tell("taken-over", "a", 60, {"usage": {"seconds": 59.5}}, token=lost)
    told.tell("claimed", "a", 60, {"again": True}, token=5, attempt=2).tokens["a"] = 5
    # The old process comes back and is told that its claim is gone; its costs are counted.
    told.tell("released", "a", 65, {"usage": {"seconds": 64.0}}, token=lost)
    told.end("a", 60.5, 70, attempt=2)
    assert spans(told, "a") == [("cut", 0, 59.5), ("done", 60.5, 70)]


@pytest.mark.parametrize(("seen", "worked_s"), [({}, 0), ({"usage": {"seconds": 20.0}}, 20)])
def test_time_with_the_machine_off_is_not_work(seen: dict[str, object], worked_s: float) -> None:
    three_days = 3 * 86_400
    told = Told().claim("a", 0)
    lost = told.tokens["a"]
    # Older journals say nothing of what was seen.
    told.tell("taken-over", "a", three_days, seen, token=lost)
    told.tell("claimed", "a", three_days, {"again": True}, token=5, attempt=2).tokens["a"] = 5
    told.end("a", three_days, three_days + 10, attempt=2)
    timeline = build_timeline(build_story(told.facts), LATER)
    assert spans(told, "a")[0] == ("cut", 0, worked_s)
    assert compute_figures(timeline).work_s == pytest.approx(worked_s + 10)


def test_an_attempt_whose_process_is_dead_does_not_keep_running() -> None:
    told = Told().claim("a", 0)
    (execution,) = build_timeline(
        build_story(told.facts), LATER, {told.tokens["a"]: 12.0}
    ).executions
    (span,) = execution.spans
    assert (span.kind, span.seconds) == (SpanKind.CUT, 12.0)


@pytest.mark.parametrize("event", ["diverted", "exhausted", "timed-out", "cancelled"])
def test_a_cancelled_attempt_ends_at_its_cancellation(event: str) -> None:
    told = Told().claim("a", 0).claim("b", 0).end("b", 0, 3, "failed")
    told.tell(event, "b", 3, {"to": "mend", "cancelled": ["a"]})
    assert spans(told, "a") == [("cut", 0, 3)]


def test_the_source_of_the_error_node_is_the_failed_step() -> None:
    told = Told().run("a", 0, 1).claim("b", 1, ["a"]).end("b", 1, 2, "failed")
    told.tell("diverted", "b", 2, {"to": "mend", "cancelled": []}).run("mend", 2, 3)
    assert sources(told) == [("a", []), ("b", ["a"]), ("mend", ["b"])]


def test_the_end_of_the_run_ends_everything() -> None:
    told = Told().claim("a", 0).claim("b", 0).end("b", 0, 2, "failed")
    told.tell("completed", "", 2, {"status": "failed"})
    assert spans(told, "a") == [("cut", 0, 2)]
    assert build_timeline(build_story(told.facts), LATER).is_over
    told.tell("resumed", "", 9, {"note": "retry"})
    told.tell("claimed", "b", 9, {"again": True}, token=9, attempt=2)
    assert not build_timeline(build_story(told.facts), LATER).is_over
    assert spans(told, "b", NOON_S + 11)[-1] == ("running", 9, 11)


def test_an_answer_that_leads_nowhere_has_failed() -> None:
    told = Told().run("a", 0, 1).tell("failed", "a", 1, {"type": "NoMatchingBranch"}, token=1)
    assert spans(told, "a") == [("failed", 0, 1)]
    assert not executions(told)[0].is_accepted


def serial(told: Told, step: str, index: int, began: float, event: str = "succeeded") -> None:
    """Tell one attempt of a second at a step of a cycle."""
    told.tell("claimed", step, began, token=len(told.facts) + 1, attempt=1, step_index=index)
    told.tokens[step] = len(told.facts)
    told.end(step, began, began + 1, event)


def test_steps_of_a_cycle_come_one_after_the_other() -> None:
    told = Told()
    for index, step in enumerate(["plan", "build", "plan"]):
        serial(told, step, index, index)
    assert [one.sources for one in executions(told)] == [(), (0,), (1,)]
    serial(told, "build", 3, 3, "failed")
    serial(told, "build", 3, 5)
    assert len(executions(told)) == 4
    assert spans(told, "build") == [("done", 1, 2), ("failed", 3, 4), ("done", 5, 6)]


def test_a_step_that_a_person_stamped_was_accepted() -> None:
    told = Told()
    serial(told, "plan", 0, 0, "failed")
    told.tell("stamped", "plan", 5, {"note": "fail: again"})
    assert not executions(told)[0].is_accepted
    told.tell("stamped", "plan", 9, {"note": "ok: by hand"})
    assert executions(told)[0].is_accepted
    assert spans(told, "plan") == [("failed", 0, 1)]


def test_a_reset_starts_again() -> None:
    told = Told().run("a", 0, 1).tell("reset", "a", 2).run("b", 3, 4)
    assert sources(told) == [("b", [])]
    assert sources(Told().run("a", 0, 1).tell("initialised", "a", 2)) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from(
                [
                    "claimed",
                    "succeeded",
                    "failed",
                    "released",
                    "taken-over",
                    "asked",
                    "answered",
                    "started",
                    "passed",
                    "diverted",
                    "completed",
                    "cancelled",
                    "stamped",
                    "invalid",
                ]
            ),
            st.floats(0, 100),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_any_journal_can_be_read(moves: list[tuple[str, str, float, bool]]) -> None:
    told = Told()
    for step, event, took, has_record in moves:
        record = {"usage": {"seconds": took}} if has_record else {"cancelled": ["a"], "to": "b"}
        more = {"from": ["a", "c"]} if event in ("claimed", "asked", "started") else {}
        told.tell(event, step, len(told.facts), {"to": "b", **record, **more}, token=took > 50)
    timeline = build_timeline(build_story(told.facts), LATER)
    for number, one in enumerate(timeline.executions):
        # A source began before, so that no chain runs in a circle.
        assert all(place < number for place in one.sources)
        assert all(span.end >= span.begin for span in one.spans)
        assert one.seconds >= 0


def test_a_timeline_of_the_newest_executions_keeps_their_sources() -> None:
    told = Told()
    for number, name in enumerate("abcd"):
        told.claim(name, number, [*"abcd"[number - 1 : number]]).end(name, number, number + 1)
    story = build_story(told.facts)
    newest = build_timeline(story, LATER, max_executions=2).executions
    assert [(one.step, one.sources) for one in newest] == [("c", ()), ("d", (0,))]
    assert build_timeline(story, LATER, max_executions=4) == build_timeline(story, LATER)
