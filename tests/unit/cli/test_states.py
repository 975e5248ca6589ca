"""One table of states: what each is called and how it looks, on terminals and pages."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.cli.views.next_command import RunSituation, run_state
from sequencer.cli.views.states import INTEREST, STATE_DISPLAYS, get_state_display
from sequencer.history.story import STATES
from sequencer.history.view import NodeState
from sequencer.model.head import Gate, Status
from sequencer.model.kind import Readiness, ReadinessKind
from sequencer.model.transitions import RETRY, StepRef
from sequencer.store.protocol import Liveness
from tests.contract.store_cases import make_claim, new_head

HERE = StepRef(0, "main", "main.md")
GONE, ALIVE = Liveness.DEAD, Liveness.ALIVE
HELD = {"status": "running", "claims": (make_claim(),), "token": 1, "attempt": 1}
NO = Gate(step="main", step_index=0, token=1, opened_at="", decision="rejected")


def state(kind: ReadinessKind | None = None, *holders: Liveness, **head: Any) -> str:
    here = None if kind is None else Readiness(kind, "", HERE)
    return run_state(RunSituation(None, new_head(**head), here, holders))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (run_state(RunSituation(None, None)), "not started"),
        (state(ReadinessKind.READY, status="idle"), "not started"),
        (state(ReadinessKind.READY, status="waiting-next"), "ready"),
        (state(ReadinessKind.HELD, ALIVE, **HELD), "running"),
        (state(ReadinessKind.READY, GONE, **HELD), "interrupted"),
        (state(ReadinessKind.READY, GONE, ALIVE, **HELD), "running"),
        (state(ReadinessKind.STOPPED, GONE, exit=True, **HELD), "stopped"),
        (state(ReadinessKind.STOPPED, exit=True), "stopped"),
        (state(None, exit=True), "stopped"),
        (state(ReadinessKind.PAUSED, status="waiting-next", pause_requested=True), "paused"),
        (state(ReadinessKind.PERSON, status="paused", exit_reason="it repeats itself"), "paused"),
        (state(ReadinessKind.PERSON, status="waiting-approval"), "waiting for you"),
        (state(ReadinessKind.LIMIT, status="waiting-next"), "at its limit"),
        (state(ReadinessKind.REFUSED, status="waiting-next"), "failed"),
        (state(ReadinessKind.NOT_YET, status="failed", not_before_reason=RETRY), "retrying"),
        (state(ReadinessKind.NOT_YET, status="waiting-next"), "waiting"),
        (state(None, status="failed"), "failed"),
        (state(ReadinessKind.COMPLETE, status="complete"), "complete"),
        (state(ReadinessKind.COMPLETE, status="complete", exit=True, gate=NO), "rejected"),
    ],
)
def test_each_state_of_a_run_has_its_word(found: str, expected: str) -> None:
    assert get_state_display(found).word == expected


def test_every_state_has_a_look() -> None:
    known = STATE_DISPLAYS.keys()
    assert {*STATES.values(), *NodeState, "running"} <= known
    of_runs = set(Status) - {Status.IDLE, Status.WAITING_NEXT, Status.WAITING_APPROVAL}
    assert of_runs <= known
    assert sorted(INTEREST) == sorted(NodeState)


def test_a_state_of_a_later_version_has_its_name() -> None:
    assert get_state_display("out_of_paper").word == "out of paper"
    assert get_state_display("out_of_paper").css == "failed"


def test_words_and_marks_tell_states_apart() -> None:
    words = [look.word for look in STATE_DISPLAYS.values()]
    assert len(set(words)) == len(words)
    assert all(look.mark and look.ascii_mark.isascii() for look in STATE_DISPLAYS.values())
