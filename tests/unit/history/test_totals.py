from __future__ import annotations

import pytest

from sequencer.history.story import build_story
from sequencer.history.totals import BY_HAND, Total, UsageKey
from tests.unit.history.journal_facts import Told

USAGE = {"input_tokens": 100, "output_tokens": 7, "cost_usd": 0.25}


def tallies(told: Told) -> dict[UsageKey, Total]:
    return build_story(told.facts).totals.by_maker


def only(told: Told) -> Total:
    (tally,) = tallies(told).values()
    return tally


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
def test_the_end_of_an_attempt_counts_once_and_its_cost_always(event: str, field: str) -> None:
    tally = only(Told().claim("a", 0).end("a", 0, 2, event, usage=USAGE))
    counts = {name: getattr(tally, name) for name in ("accepted", "failed", "released")}
    assert counts == {"accepted": 0, "failed": 0, "released": 0, field: 1}
    assert tally.usage.seconds == 2
    assert tally.usage.output_tokens == 7


def test_a_stamp_is_attributed_to_a_person() -> None:
    told = Told().tell("stamped", "a", 0, {"note": "ok: looks good"})
    told.tell("stamped", "b", 0, {"note": "fail"}).tell("stamped", "c", 0, {"note": "ok"})
    assert tallies(told) == {
        UsageKey("a", BY_HAND, ""): Total(accepted=1),
        UsageKey("b", BY_HAND, ""): Total(failed=1),
        UsageKey("c", BY_HAND, ""): Total(accepted=1),
    }


@pytest.mark.parametrize("event", ["initialised", "reset"])
def test_a_new_beginning_resets_the_totals(event: str) -> None:
    told = Told().claim("a", 0).end("a", 0, 1, model="opus").tell(event, "a", 2)
    assert tallies(told) == {}
    # Not even the name of who tried last is remembered.
    told.tell("taken-over", "a", 3)
    assert list(tallies(told)) == [UsageKey("a", "", "")]
