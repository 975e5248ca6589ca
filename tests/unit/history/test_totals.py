from __future__ import annotations

import pytest

from sequencer.history.totals import BY_HAND, Maker, Total, totals_of
from sequencer.model.outcome import Usage
from tests.unit.history.journal_facts import Told

USAGE = {"input_tokens": 100, "output_tokens": 7, "cost_usd": 0.25}


def tallies(told: Told) -> dict[Maker, Total]:
    return totals_of(told.facts).by_maker


def only(told: Told) -> Total:
    (tally,) = tallies(told).values()
    return tally


def test_attempts_are_summed_by_step_agent_and_model() -> None:
    told = Told()
    for number in range(3):
        told.claim("a", number).end("a", number, number + 1, usage=USAGE, model="opus")
    told.claim("a", 4).end("a", 4, 5, usage=USAGE, model="haiku")
    told.claim("a", 5).end("a", 5, 6, agent="codex")
    told.claim("b", 6).end("b", 6, 7)
    found = tallies(told)
    assert {maker: tally.accepted for maker, tally in found.items()} == {
        Maker("a", "claude", "opus"): 3,
        Maker("a", "claude", "haiku"): 1,
        Maker("a", "codex", ""): 1,
        Maker("b", "claude", ""): 1,
    }
    assert found[Maker("a", "claude", "opus")].usage.cost_usd == pytest.approx(0.75)
    assert found[Maker("a", "claude", "opus")].usage.input_tokens == 300


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ("succeeded", "accepted"),
        ("fixed", "accepted"),
        ("failed", "failed"),
        ("invalid", "failed"),
        ("released", "released"),
    ],
)
def test_how_an_attempt_ends_counts_once_and_its_cost_always(event: str, field: str) -> None:
    tally = only(Told().claim("a", 0).end("a", 0, 2, event, usage=USAGE))
    counts = {name: getattr(tally, name) for name in ("accepted", "failed", "released")}
    assert counts == {"accepted": 0, "failed": 0, "released": 0, field: 1}
    assert tally.usage.seconds == 2
    assert tally.usage.output_tokens == 7


def test_a_claim_that_was_taken_over_is_of_who_tried_last() -> None:
    told = Told().claim("a", 0).end("a", 0, 1, "failed", model="opus")
    told.claim("a", 2, None, attempt=2).tell("taken-over", "a", 60, {"note": "token 2"})
    assert tallies(told) == {
        Maker("a", "claude", "opus"): Total(failed=1, taken_over=1, usage=Usage(seconds=1))
    }


def test_a_stamp_is_of_a_person() -> None:
    told = Told().tell("stamped", "a", 0, {"note": "ok: looks good"})
    told.tell("stamped", "b", 0, {"note": "fail"}).tell("stamped", "c", 0, {"note": "ok"})
    assert tallies(told) == {
        Maker("a", BY_HAND, ""): Total(accepted=1),
        Maker("b", BY_HAND, ""): Total(failed=1),
        Maker("c", BY_HAND, ""): Total(accepted=1),
    }


@pytest.mark.parametrize("event", ["initialised", "reset"])
def test_a_beginning_counts_from_nothing(event: str) -> None:
    told = Told().claim("a", 0).end("a", 0, 1, model="opus").tell(event, "a", 2)
    assert tallies(told) == {}
    # Not even the name of who tried last is remembered.
    told.tell("taken-over", "a", 3)
    assert list(tallies(told)) == [Maker("a", "", "")]


def test_the_oldest_revision_that_is_left() -> None:
    told = Told().claim("a", 0).end("a", 0, 1).claim("b", 1).end("b", 1, 2)
    assert totals_of(told.facts).first_revision == 1
    assert totals_of(told.facts[2:]).first_revision == 3
    assert totals_of([]).first_revision is None
