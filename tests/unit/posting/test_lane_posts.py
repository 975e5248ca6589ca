from __future__ import annotations

from sequencer.posting.protocol import Activity, ActivityType
from sequencer.store.file import FileStore
from tests.unit.posting.runs import Box, lane_for, refused, unreachable


def thought(body: str = "hm") -> Activity:
    return Activity(type=ActivityType.THOUGHT, at="now", step="main", step_index=0, body=body)


# --- what is posted --------------------------------------------------------------------


# --- thoughts ----------------------------------------------------------------------------


def test_a_thought_that_can_not_be_posted_is_dropped_and_not_repeated(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[unreachable()]))
    told.deliver()
    told.lane.post_thought(thought("lost"), "run-1", None)
    assert not told.lane.takes_thoughts_now()
    told.clock.now += 10
    told.deliver()
    assert told.lane.takes_thoughts_now()
    told.lane.post_thought(thought("next"), "run-1", None)
    assert told.box.bodies == ["next"]
    assert len(told.notices) == 2


def test_a_refused_thought_costs_a_notice_and_no_more(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[refused()]))
    told.deliver()
    told.lane.post_thought(thought(), "run-1", None)
    assert told.notices == ["activity sink 'box': HTTP 422"]
    assert not (store.folder / "activity" / "refused.jsonl").exists()
