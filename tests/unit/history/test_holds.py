"""Whether a person took a claim away while the run was stopped or paused."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.history.facts import read_facts, was_lost_on_hold

STOP = {"event": "edited", "outcome": {"note": "stop: enough"}}
RESTART = {"event": "edited", "outcome": {"note": "set exit=false"}}
PAUSE, RESUME = {"event": "paused"}, {"event": "resumed"}


def lost(token: int) -> dict[str, Any]:
    return {"event": "taken-over", "token": token}


@pytest.mark.parametrize(
    ("facts", "is_on_hold"),
    [
        ([STOP, lost(1), RESUME], True),
        ([PAUSE, lost(1), RESUME], True),
        ([STOP, lost(2), lost(1), RESUME], True),
        ([STOP, RESUME, lost(1)], False),
        ([STOP, RESTART, lost(1)], False),
        ([PAUSE, lost(2)], False),
        ([lost(1), PAUSE], False),
    ],
)
def test_a_claim_is_lost_on_hold(facts: list[dict[str, Any]], *, is_on_hold: bool) -> None:
    assert was_lost_on_hold(read_facts(facts), 1) is is_on_hold
