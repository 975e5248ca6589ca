"""What each event means for the story of a run, where views used to disagree."""

from __future__ import annotations

import pytest

from sequencer.history.facts import MEANINGS, EndState, find_meaning, list_facts, read_facts
from sequencer.history.spans import SpanKind, build_timeline
from sequencer.history.story import KEPT_CHARS, STATES, Story, build_story
from sequencer.history.view import NodeState, build_view
from sequencer.model.graph.graph import Graph, Node, NodeKind
from sequencer.model.graph.marking import Marking
from sequencer.model.head import Head
from sequencer.model.transitions import Event
from tests.unit.history.journal_facts import NOON_S, Told

ENDS = {event: meaning.ends for event, meaning in MEANINGS.items() if meaning.ends is not None}


def states(told: Told, step: str) -> list[str]:
    """Return the states of the attempts at *step*, oldest first."""
    steps = build_story(told.facts).group_steps(by_name=True)
    return [attempt.state for attempt in steps[step].tries]


def kinds(told: Told) -> list[SpanKind]:
    """Return the kinds of all spans."""
    return [span.kind for span in build_timeline(build_story(told.facts), NOON_S + 1000).spans]


HEAD = Head(
    run_id="r",
    workflow_name="team",
    workflow_digest="sha256:0",
    expected_step="a",
    last_update="2026-11-22T12:00:00Z",
)
WORK = "succeeded fixed invalid failed released taken-over"


def test_every_event_has_a_meaning_and_every_end_a_state() -> None:
    assert MEANINGS.keys() == set(Event)
    assert STATES.keys() == set(EndState)
    assert find_meaning("an event of a later version") == find_meaning("looped")


@pytest.mark.parametrize(
    ("flag", "events"),
    [
        ("starts_over", "initialised reset"),
        ("resets", "reset"),
        ("accepts", "succeeded fixed passed answered expired stamped"),
        ("is_output", "succeeded fixed invalid"),
        ("leaves_step", "initialised reset succeeded stamped skipped rewound"),
        ("decides_gate", "approved rejected feedback"),
        ("ends_run", "completed"),
        ("cancels", "diverted exhausted timed-out cancelled"),
        ("changes_course", "answered feedback rewound resumed adopted told"),
        ("moves_nothing", "told"),
        ("sets_fields", "initialised reset adopted edited"),
        ("is_edit", "edited"),
        ("by_hand", "stamped skipped"),
        ("by_holder", WORK),
        ("starts", "claimed asked started"),
        ("ends", f"{WORK} passed answered expired stamped skipped"),
    ],
)
def test_each_meaning_applies_to_its_events(flag: str, events: str) -> None:
    assert {str(one) for one, means in MEANINGS.items() if getattr(means, flag)} == {
        *events.split()
    }


@pytest.mark.parametrize(
    ("event", "state", "kind", "counted"),
    [
        ("succeeded", "done", "done", "accepted"),
        ("fixed", "done", "done", "accepted"),
        ("invalid", "failed", "failed", "failed"),
        ("failed", "failed", "failed", "failed"),
        ("released", "released", "released", "released"),
        ("taken-over", "lost", "cut", "taken_over"),
        ("stamped", "done", "done", "accepted"),
        ("skipped", "skipped", "cut", None),
        ("passed", "done", "cut", None),
    ],
)
def test_an_attempt_ends_the_same_in_every_view(
    event: str, state: str, kind: str, counted: str | None
) -> None:
    told = Told().claim("a", 0).end("a", 0.1, 1, event, agent="claude")
    assert states(told, "a") == [state]
    assert [str(one) for one in kinds(told)] == [kind]
    sums = [
        name
        for total in build_story(told.facts).totals.by_maker.values()
        for name in ("accepted", "failed", "released", "taken_over")
        if getattr(total, name)
    ]
    assert sums == ([] if counted is None else [counted])


def test_a_step_that_is_stamped_as_failed_has_failed_even_while_it_runs() -> None:
    told = Told().claim("a", 0).tell("stamped", "a", 5, {"note": "fail: wrong branch"})
    assert states(told, "a") == ["failed"]
    assert kinds(told) == [SpanKind.FAILED]
    assert not build_story(told.facts).turns[0].is_accepted
    ok = Told().claim("a", 0).tell("stamped", "a", 5, {"note": "failed before, fine now"})
    assert states(ok, "a") == ["done"]


@pytest.mark.parametrize("event", ["answered", "expired", "skipped", "stamped"])
def test_a_question_ends_with_the_event_that_settled_it(event: str) -> None:
    told = Told().tell("asked", "q", 0, {"from": []}, token=1).tell(event, "q", 5)
    expected = {"answered": "done", "stamped": "done"}.get(event, event)
    assert states(told, "q") == [expected]
    assert kinds(told) == [SpanKind.PERSON]


def test_a_gate_that_a_person_skips_is_a_wait_and_a_report() -> None:
    told = Told().claim("a", 0).end("a", 0.1, 1, gate=True).tell("skipped", "a", 5)
    assert states(told, "a") == ["done", "skipped"]
    assert kinds(told) == [SpanKind.DONE, SpanKind.PERSON]
    numbers = [one.number for one in build_story(told.facts).group_steps(by_name=True)["a"].tries]
    assert numbers == [1, 2]


def test_a_long_output_is_cut_to_its_end_for_lists_and_whole_for_prompts() -> None:
    told = Told().claim("a", 0).end("a", 0.1, 1, output="x" * 9_999 + "end")
    story = build_story(told.facts)
    assert story.tries[0].answer_text == "…" + "x" * (KEPT_CHARS - 3) + "end"
    assert len(story.outputs.records["a"]["output"]) == 10_002


def test_a_lost_attempt_ends_with_its_start_if_nothing_is_known_of_it() -> None:
    told = Told().claim("a", 0)
    told.tell("taken-over", "a", 900, token=told.tokens["a"])
    (span,) = build_timeline(build_story(told.facts), NOON_S + 1000).spans
    assert span.seconds == 0


def test_a_run_that_starts_again_after_its_end_is_not_over() -> None:
    told = Told().run("a", 0, 1).tell("completed", "a", 1).tell("rewound", "a", 2)
    assert build_story(told.facts).is_over
    assert not build_story(told.claim("a", 3).facts).is_over


def test_nodes_that_a_rewind_names_have_not_ended() -> None:
    told = Told().run("a", 0, 1).run("b", 1, 2, ["a"])
    told.tell("rewound", "a", 5, {"again": ["a", "b"]})
    story = build_story(told.facts)
    assert [story.nodes[name].ending for name in "ab"] == [None, None]
    assert story.began == told.facts[0]["at"]


def test_a_cancelled_attempt_is_not_running_and_keeps_its_usage() -> None:
    told = Told().claim("a", 0).claim("b", 0)
    told.end("b", 0.1, 1, "failed", error="boom", cancelled=["a"])
    assert states(told, "a") == ["cancelled"]
    told.end("a", 0.1, 2, "released", agent="codex", note="interrupted")
    (attempt,) = build_story(told.facts).group_steps(by_name=True)["a"].tries
    assert (attempt.state, attempt.agent, attempt.usage.seconds) == ("cancelled", "codex", 1.9)


def test_an_attempt_that_a_later_start_replaces_is_cancelled() -> None:
    told = Told().claim("a", 0).tell("rewound", "a", 5, {"note": "to a"})
    told.tell("claimed", "a", 6, token=7, attempt=1)
    assert states(told, "a") == ["cancelled", "running"]


def test_a_stamped_step_that_never_ran_has_the_report_of_a_person() -> None:
    told = Told().tell("stamped", "a", 5, {"note": "by hand"})
    (attempt,) = build_story(told.facts).group_steps(by_name=True)["a"].tries
    assert (attempt.state, attempt.number, attempt.answer_text) == ("done", 1, "by hand")
    assert kinds(told) == []


def test_a_reset_forgets_everything_but_the_newest_time() -> None:
    told = Told().claim("a", 0).end("a", 0.1, 1).tell("reset", "a", 9)
    story = build_story(told.facts)
    assert (story.tries, story.turns, story.nodes, story.began) == ([], [], {}, None)
    assert (story.latest, story.has_beginning) == (told.facts[-1]["at"], True)


def test_a_fact_of_a_newer_version_is_read_unchanged() -> None:
    (fact,) = read_facts([{"event": "praised", "step": "a", "revision": 3, "at": "x"}])
    assert (fact.event, fact.details, fact.token) == ("praised", {}, 0)


def test_a_view_without_a_run_needs_no_story() -> None:
    graph = Graph(nodes=(Node(id="a", kind=NodeKind.AGENT),), edges=(), entries=("a",))
    view = build_view("t", graph, None, None, Story())
    assert [node.state for node in view.nodes] == [NodeState.PENDING]


def test_an_answer_that_leads_nowhere_still_counts_as_waiting_for_a_person() -> None:
    told = Told().tell("asked", "q", 0, {"from": []}, token=1).tell("answered", "q", 5, token=1)
    told.tell("failed", "q", 5, {"error": "no way"}, token=1)
    story = build_story(told.facts)
    assert (kinds(told), story.turns[0].is_accepted) == ([SpanKind.PERSON], False)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        ("succeeded", NodeState.DONE),
        ("skipped", NodeState.DONE),
        ("expired", NodeState.DONE),
        ("failed", NodeState.FAILED),
        ("released", NodeState.PENDING),
    ],
)
def test_the_state_of_a_node_is_that_of_its_newest_attempt(event: str, state: NodeState) -> None:
    graph = Graph(nodes=(Node(id="a", kind=NodeKind.AGENT),), edges=(), entries=("a",))
    told = Told().claim("a", 0).end("a", 0.1, 1, event)
    view = build_view("t", graph, HEAD, Marking(graph), build_story(told.facts))
    assert [node.state for node in view.nodes] == [state]


def test_a_fact_without_an_agent_belongs_to_the_previous_agent() -> None:
    told = Told().claim("a", 0).end("a", 0.1, 1, "failed", agent="codex")
    told.claim("a", 2).tell("taken-over", "a", 5, token=told.tokens["a"])
    (maker,) = build_story(told.facts).totals.by_maker
    assert maker.agent == "codex"


def test_outputs_and_feedback_are_collected_for_later_prompts() -> None:
    told = Told().claim("a", 0).end("a", 0.1, 1, output="plan")
    told.claim("judge", 2).end("judge", 2.1, 3, "invalid", output="no")
    told.tell("feedback", "a", 4, {"note": "shorter"}).tell("feedback", "b", 4, {"note": "x"})
    outputs = build_story(told.facts).outputs
    assert (outputs.newest, sorted(outputs.records)) == ("a", ["a", "judge"])
    assert [said.text for said in outputs.feedback] == ["shorter", "x"]
    approved = build_story(told.tell("approved", "a", 5).facts).outputs
    assert [said.text for said in approved.feedback] == ["x"]
    assert build_story(told.tell("rewound", "a", 6).facts).outputs.feedback == []


@pytest.mark.parametrize(
    "claims",
    [
        None, 3, "x", {"token": 1}, [], [None, [1]], [{}], [{"token": 1}],
        [{"token": 1, "owner": None}], [{"token": 1, "owner": {}}],
        [{"token": 1, "owner": {"host": ["x"]}}], [{"token": 2, "owner": {"host": "x"}}],
    ],
)  # fmt: skip
def test_a_claim_without_a_readable_owner_names_no_host(claims: object) -> None:
    """A line of a journal has the checksum of whoever wrote it, which may be a stranger."""
    fact = {"event": "claimed", "step": "a", "step_index": 0, "token": 1, "attempt": 1}
    record = {"revision": 1, "at": "", **fact, "outcome": None, "head": {"claims": claims}}
    assert [one["host"] for one in list_facts(record)] == [None]
