"""A hand lets a run go on for so long, and a run that is decided over so is the same run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sequencer.engine.by_hand import fresh_head
from sequencer.fleet.hands import LineHand, MemoStore, hand_of
from sequencer.fleet.wire import FACTS, AttemptReport, error_of, head_of, packed
from sequencer.model.step import Retry, Step
from sequencer.model.workflow import Workflow

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CYCLE = Workflow("w", (Step(name="a"), Step(name="b")))


class Lab:
    """A run whose attempts are made by the test."""

    def __init__(self, workflow: Workflow) -> None:
        """Begin it."""
        self.workflow, self.now = workflow, NOW
        self.written: list[dict[str, Any]] = []
        head = fresh_head(workflow).replace(revision=1)
        self.store = MemoStore({**packed(head), FACTS: []}, self.written.append)
        self.live: set[int] = set()

    def hand(self, mode: str = "combined", by: str = "1@here", **limits: Any) -> LineHand:
        """Lend a hand."""
        data = {
            "id": by,
            "by": by,
            "mode": mode,
            "ttl_s": 60.0,
            "places": 2,
            "workflow": self.workflow.model_dump(mode="json", exclude_defaults=True),
            "limits": {"max_steps": None, **limits},
        }
        hand = hand_of(json.loads(json.dumps(data)), self.store)
        assert isinstance(hand, LineHand)
        return hand

    def advance(self, hand: LineHand, *, may_claim: bool = True) -> list[int]:
        """Let it do what it can."""
        granted = hand.advance(tuple(self.live), self.now, may_claim=may_claim)
        self.live.update(granted)
        return granted

    def end(self, hand: LineHand, token: int, status: str = "ok", **more: Any) -> list[int]:
        """Let the attempt with *token* end."""
        self.live.discard(token)
        index = self.store.head.step_index
        kinds = {"ok": "accept", "failed": "fail", "interrupted": "back"}
        ending = {"kind": kinds[status]} | ({"to": index + 1} if status == "ok" else {})
        report = AttemptReport({"status": status, "agent": "x"}, ending=ending, **more)
        granted = hand.record(token, report, tuple(self.live), self.now, jitter=0.0, may_claim=True)
        self.live.update(granted)
        return granted

    @property
    def events(self) -> list[str]:
        """Return what has happened."""
        return [fact["event"] for one in self.written for fact in one[FACTS]]


def test_steps_follow_each_other_until_the_hand_is_used_up() -> None:
    lab = Lab(CYCLE)
    hand = lab.hand(max_steps=2)
    assert lab.advance(hand) == [1]
    assert lab.advance(hand) == []
    assert lab.end(hand, 1) == [2]
    assert lab.end(hand, 2) == []
    assert hand.end is None
    lab.advance(hand)
    assert hand.end is not None
    assert hand.end["reason"] == "2 steps are done (--max-steps)"
    assert lab.store.head.claims == ()
    # The end of a step and the claim of the next one are one record, as in files.
    assert [len(one[FACTS]) for one in lab.written] == [1, 2, 1]
    assert all(head_of({**packed(lab.store.head), **one}) for one in lab.written)


def test_an_attempt_that_vanished_is_taken_over_and_its_late_report_is_not_heard() -> None:
    lab = Lab(CYCLE)
    hand = lab.hand()
    lab.advance(hand)
    lab.live.clear()
    assert lab.advance(hand) == [2]
    assert lab.events == ["claimed", "taken-over", "claimed"]
    revision = lab.store.head.revision
    assert lab.end(hand, 1) == []
    assert lab.store.head.revision == revision
    assert lab.end(hand, 2) == [3]
    assert lab.store.head.step_index == 1


def test_nothing_is_claimed_where_the_history_is_to_end() -> None:
    lab = Lab(CYCLE)
    hand = lab.hand()
    assert lab.advance(hand, may_claim=False) == []
    assert (lab.store.head.claims, hand.end) == ((), None)


def test_a_failure_ends_the_hand_with_the_words_of_a_run_in_files() -> None:
    lab = Lab(CYCLE)
    hand = lab.hand()
    lab.advance(hand)
    assert lab.end(hand, 1, "failed") == []
    assert hand.end is not None
    error = error_of(hand.end["error"])
    assert str(error).startswith("None: step 'a' (iteration 1, attempt 1) failed: no reason given")
    assert hand.end["failures"] == 1


def test_a_retry_waits_for_its_time_and_holds_no_claim() -> None:
    retry = Retry(max_attempts=2, initial_delay_s=30)
    lab = Lab(Workflow("w", (Step(name="a", retry=retry), Step(name="b"))))
    hand = lab.hand()
    lab.advance(hand)
    assert lab.end(hand, 1, "failed", retry=retry.model_dump()) == []
    assert lab.advance(hand) == []
    assert hand.end is None
    assert hand.until == NOW + timedelta(seconds=30)
    lab.now += timedelta(seconds=31)
    assert lab.advance(hand) == [2]


def test_a_second_hand_ends_at_once_unless_it_may_wait() -> None:
    lab = Lab(CYCLE)
    first, second, third = lab.hand(), lab.hand(by="2@here"), lab.hand(by="3@here", max_wait_s=5.0)
    lab.advance(first)
    for hand in (second, third):
        assert lab.advance(hand) == []
    assert second.end is not None
    assert second.end["error"]["type"] == "ClaimHeld"
    assert (third.end, third.until) == (None, NOW + timedelta(seconds=5))
    lab.now += timedelta(seconds=6)
    lab.advance(third)
    assert third.end is not None


def test_an_interrupted_process_ends_its_hand_and_another_ones_goes_on() -> None:
    lab = Lab(CYCLE)
    hand = lab.hand()
    lab.advance(hand)
    lab.end(hand, 1, "interrupted", left="2@there")
    assert hand.end is None
    assert lab.advance(hand) == [2]
    assert lab.end(hand, 2, "interrupted", left="1@here") == []
    assert hand.end is not None
    assert hand.end["error"]["type"] == "Interrupted"


def test_a_hand_continues_elsewhere_with_what_it_has_counted() -> None:
    lab = Lab(CYCLE)
    hand = lab.hand(max_steps=2)
    lab.advance(hand)
    lab.end(hand, 1)
    lab.live.clear()
    again = hand_of(json.loads(json.dumps(hand.kept())), lab.store)
    assert isinstance(again, LineHand)
    token = lab.advance(again)[0]
    lab.end(again, token)
    lab.advance(again)
    assert again.end is not None
    assert again.end["reason"] == "2 steps are done (--max-steps)"


def test_what_one_machine_lacks_is_put_off_and_ends_no_hand() -> None:
    lab = Lab(CYCLE)
    hand = lab.hand()
    lab.advance(hand)
    lab.live.clear()
    hand.put_off(1, "9@there: no such prompt", (), lab.now)
    head = lab.store.head
    assert (hand.end, head.claims, head.failures_in_row) == (None, (), 0)
    assert head.not_before_reason == "9@there: no such prompt"
    assert lab.advance(hand) == []
    lab.now += timedelta(seconds=11)
    assert lab.advance(hand) == [2]
    assert lab.events == ["claimed", "released", "claimed"]
