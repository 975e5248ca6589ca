"""What a team's run counts and keeps, and how it is written down."""

from __future__ import annotations

import json

import pytest

from sequencer.model.net.tally import TeamState


def team(*operations: tuple[object, ...]) -> TeamState:
    state = TeamState()
    for word, *arguments in operations:
        state.apply(str(word), *arguments)
    return state


def test_sums_of_many_parts_stay_short() -> None:
    state = team(*[("spend", "a", 0.1, 1, 0.001)] * 1000)
    assert state.spent["a"] == [100.0, 1000, 1.0]
    assert json.dumps(state.as_json()) == '{"spent": {"a": [100.0, 1000, 1.0]}}'


def test_failures_in_a_row_over_all_tasks() -> None:
    state = team(("failed", "a", "x"), ("failed", "b", "y"))
    assert (state.streak, state.notes) == (2, {"a": "x", "b": "y"})
    state.apply("accepted", "a")
    # What b failed with is still what its next attempt is told.
    assert (state.streak, state.notes) == (0, {"b": "y"})


def test_a_person_lets_it_go_on() -> None:
    state = team(
        ("failed", "a", "x"), ("refused", "j", "no"), ("warn", "soft"), ("spend", "a", 1, 1, 1)
    )
    state.apply("again")
    assert (state.streak, state.refusals, state.warned) == (0, {}, [])
    # What was used was used, and the next attempt knows what the last one failed with.
    assert state.spent == {"a": [1, 1, 1]}
    assert state.notes == {"a": "x", "j": "no"}


@pytest.mark.parametrize("word", ["", "_do_warn", "as_json", "apply", "nothing"])
def test_other_words_mean_nothing(word: str) -> None:
    with pytest.raises(KeyError):
        TeamState().apply(word)
