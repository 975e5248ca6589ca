from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.model.transitions import Event
from sequencer.plugins.posting.cursor import CursorFile, Pace
from sequencer.plugins.posting.protocol import Activity, ActivityType, Unreachable
from sequencer.plugins.posting.sinks import JsonlSink
from sequencer.store.file import FileStore
from tests.unit.posting.posts import result
from tests.unit.posting.runs import (
    SECRET,
    Box,
    begin,
    lane_for,
    new_store,
    record,
    refused,
    succeed,
    unreachable,
)

# --- order, cursor, keys -----------------------------------------------------------


def test_the_lock_of_another_process_is_respected(store: FileStore) -> None:
    told = lane_for(store)
    succeed(store)
    with CursorFile(store.folder, "box").hold_lock():
        told.deliver()
        assert told.box.tries == 0
        assert told.notices == []
        assert told.queue.due_in_s is not None
        assert 0 < told.queue.due_in_s <= 1
    told.clock.now += 1
    told.queue.deliver(lambda: True)
    assert told.box.bodies == ["done"]


def test_nothing_is_lost_if_the_first_process_died_before_its_cursor(
    store: FileStore,
) -> None:
    succeed(store, "before both")
    with CursorFile(store.folder, "box").hold_lock():
        told = lane_for(store)
    succeed(store, "after it began")
    told.deliver()
    assert told.box.bodies == ["after it began"]
    assert told.notices == []


def test_a_reset_drops_nothing(store: FileStore) -> None:
    told = lane_for(store)
    succeed(store, "of the old run")
    record(store, (Event.RESET, {"note": "run run-1 ended"}), run_id="run-2")
    succeed(store, "of the new run")
    told.deliver()
    assert told.box.keys == ["run-1:2:0", "run-2:4:0"]


def test_another_run_in_the_folder_is_posted_from_its_beginning(tmp_path: Path) -> None:
    store = begin(new_store(tmp_path))
    for _ in range(5):
        succeed(store)
    lane_for(store).deliver()
    (store.folder / "state.json").unlink()
    (store.folder / "journal.jsonl").unlink()
    other = begin(new_store(tmp_path), "run-9")
    succeed(other, "fresh")
    told = lane_for(other)
    told.deliver()
    assert (told.box.keys, told.box.bodies) == (["run-9:2:0"], ["fresh"])


# --- trouble -------------------------------------------------------------------------


def test_an_outage_and_its_end_are_each_reported_once(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[unreachable() for _ in range(5)]))
    for number in range(3):
        succeed(store, str(number))
    for _ in range(10):
        told.deliver()
        told.clock.now += 400
    assert told.box.bodies == ["0", "1", "2"]
    assert told.notices == [
        "activity sink 'box': nobody is there; results are kept and posted later",
        "activity sink 'box' can be reached again",
    ]


@pytest.mark.parametrize(("asked_s", "pause_s"), [(0.0, 1.0), (1.5, 1.5), (30.0, 30.0)])
def test_a_pause_that_the_sink_asks_for_is_no_failed_try(
    store: FileStore, asked_s: float, pause_s: float
) -> None:
    told = lane_for(store, Box(trouble=[Unreachable("slow down", asked_s) for _ in range(6)]))
    succeed(store)
    for _ in range(6):
        told.deliver()
        assert told.queue.due_in_s == pytest.approx(pause_s)
        told.clock.now += pause_s + 0.001
    told.deliver()
    assert told.box.bodies == ["done"]
    assert len(told.notices) == 2


def test_the_pauses_grow_up_to_five_minutes(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[unreachable() for _ in range(14)]))
    succeed(store)
    pauses = []
    for _ in range(12):
        told.deliver()
        assert told.queue.due_in_s is not None
        pauses.append(told.queue.due_in_s)
        told.clock.now += told.queue.due_in_s
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == 300.0


@pytest.mark.parametrize(("asked", "waited"), [(42.0, 42.0), (0.0, 1.0), (9e9, 300.0)])
def test_a_sink_may_ask_how_long_to_wait(store: FileStore, asked: float, waited: float) -> None:
    told = lane_for(store, Box(trouble=[unreachable(asked)]))
    succeed(store)
    told.deliver()
    assert told.queue.due_in_s == waited


def test_the_next_process_respects_the_pause_a_sink_asked_for(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[unreachable(42.0)]))
    succeed(store)
    told.deliver()
    later = lane_for(store, clock=told.clock)
    later.deliver()
    assert later.box.tries == 0
    assert later.queue.due_in_s == 42.0
    told.clock.now += 42
    later.deliver()
    assert later.box.bodies == ["done"]
    assert later.notices == ["activity sink 'box' can be reached again"]


def test_a_refused_result_is_recorded_and_the_next_one_comes(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[refused()]))
    succeed(store, "one")
    succeed(store, "two")
    told.deliver()
    assert told.box.bodies == ["two"]
    (line,) = (store.folder / "activity" / "refused.jsonl").read_text().splitlines()
    kept = json.loads(line)
    assert (kept["key"], kept["status"], kept["sink"]) == ("run-1:2:0", 422, "box")
    assert len(kept["answer"]) == 500
    assert SECRET not in line
    (notice,) = told.notices
    assert "HTTP 422 for the response of step 'main'" in notice
    assert lane_for(store).box.posts == []


def test_a_bug_of_a_sink_turns_it_off_and_loses_nothing(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[ZeroDivisionError("oops")]))
    succeed(store)
    told.deliver()
    told.deliver()
    assert told.box.tries == 1
    (notice,) = told.notices
    bug = "activity sink 'box' is not used: it has a bug: ZeroDivisionError: oops"
    assert re.fullmatch(bug + r" \(\w+\.py, line \d+\)", notice)
    assert told.queue.due_in_s is None
    later = lane_for(store)
    later.deliver()
    assert later.box.bodies == ["done"]


def test_a_cursor_that_can_not_be_read_turns_the_sink_off(store: FileStore) -> None:
    lane_for(store)
    CursorFile(store.folder, "box").path.write_text("half a fi")
    succeed(store)
    told = lane_for(store)
    told.deliver()
    assert told.box.tries == 0
    assert "can't be read" in told.notices[0]
    assert "remove it to start" in told.notices[0]


def hide_journal(store: FileStore) -> Path:
    """Put a folder in the journal's place, and return where it is."""
    path = store.folder / "journal.jsonl"
    aside = path.rename(path.with_name("aside"))
    path.mkdir()
    return aside


def bring_back(store: FileStore, aside: Path) -> None:
    path = store.folder / "journal.jsonl"
    path.rmdir()
    aside.rename(path)


def test_a_journal_that_can_not_be_read_is_an_outage(store: FileStore) -> None:
    told = lane_for(new_store(store.folder.parent))
    succeed(store)
    aside = hide_journal(store)
    told.deliver()
    (notice,) = told.notices
    assert "the run's files: " in notice
    bring_back(store, aside)
    told.clock.now += 100
    told.deliver()
    assert told.box.bodies == ["done"]


def test_a_run_unreadable_at_first_is_not_posted_from_its_beginning(
    store: FileStore,
) -> None:
    succeed(store, "long ago")
    aside = hide_journal(store)
    told = lane_for(new_store(store.folder.parent))
    assert "its cursor can't be created" in told.notices[0]
    bring_back(store, aside)
    told.clock.now += 100
    told.deliver()
    succeed(store, "new")
    told.deliver()
    assert told.box.bodies == ["new"]


def test_delivery_stops_when_the_time_is_over(store: FileStore) -> None:
    told = lane_for(store)
    for number in range(5):
        succeed(store, str(number))
    allowed = iter([True, True, False])
    told.queue.note_news()
    told.queue.deliver(lambda: next(allowed))
    assert told.box.bodies == ["0", "1"]
    told.deliver()
    assert told.box.bodies == ["0", "1", "2", "3", "4"]


def thought(body: str = "hm") -> Activity:
    return Activity(type=ActivityType.THOUGHT, at="now", step="main", step_index=0, body=body)


# --- what is posted --------------------------------------------------------------------


# --- thoughts ----------------------------------------------------------------------------


def test_a_thought_that_can_not_be_posted_is_dropped_and_not_repeated(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[unreachable()]))
    told.deliver()
    told.queue.post_thought(thought("lost"), "run-1", None)
    assert not told.queue.can_post_thought()
    told.clock.now += 10
    told.deliver()
    assert told.queue.can_post_thought()
    told.queue.post_thought(thought("next"), "run-1", None)
    assert told.box.bodies == ["next"]
    assert len(told.notices) == 2


def test_a_refused_thought_costs_a_notice_and_no_more(store: FileStore) -> None:
    told = lane_for(store, Box(trouble=[refused()]))
    told.deliver()
    told.queue.post_thought(thought(), "run-1", None)
    assert told.notices == ["activity sink 'box': HTTP 422"]
    assert not (store.folder / "activity" / "refused.jsonl").exists()


def test_a_line_that_was_torn_does_not_tear_the_next(tmp_path: Path) -> None:
    sink = JsonlSink("file", tmp_path / "a.jsonl")
    sink.post(result(1))
    with sink.path.open("ab") as file:
        file.write(b'{"half": ')
    sink.post(result(2))
    texts = sink.path.read_text().splitlines()
    assert [json.loads(texts[place])["revision"] for place in (0, 2)] == [1, 2]
    assert texts[1] == '{"half": '


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "no-folder", "linked-folder"])
def test_a_path_that_is_not_a_regular_file_is_an_outage(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jsonl"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "linked-folder":
        (tmp_path / "outside").mkdir()
        (tmp_path / "run").symlink_to(tmp_path / "outside")
        path = tmp_path / "run" / "a.jsonl"
    else:
        (tmp_path / "x").write_text("")
        path = tmp_path / "x" / "a.jsonl"
    with pytest.raises(Unreachable, match=r"a\.jsonl"):
        JsonlSink("file", path).post(result(1))
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "outside" / "a.jsonl").exists()


# --- one thought in so many seconds, over all processes that work on a run --------------------


def test_one_passes_and_the_next_waits(tmp_path: Path) -> None:
    pace = Pace(tmp_path / "activity" / "box.pace", 2.0)
    assert pace.remaining_s(100.0) == 0.0
    assert pace.record_post(100.0)
    assert not pace.record_post(100.0)
    assert not pace.record_post(101.9)
    assert pace.remaining_s(101.5) == pytest.approx(0.5)
    assert pace.remaining_s(102.0) == 0.0
    assert pace.record_post(102.0)
    assert not pace.record_post(103.0)


def test_of_many_posts_at_the_same_moment_one_passes(tmp_path: Path) -> None:
    path = tmp_path / "box.pace"
    code = (
        "import sys; from pathlib import Path; from sequencer.plugins.posting.cursor import Pace\n"
        f"sys.stdin.readline(); sys.exit(Pace(Path({str(path)!r}), 2.0).record_post(100.0))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in "1234"
    ]
    for one in started:
        one.communicate(b"\n", timeout=60)
    assert sum(one.returncode for one in started) == 1


@pytest.mark.parametrize(
    "held", [b"", b"x", b"\xff\xfe", b"nan\n", b"inf\n", b"999999999\n", b"-5\n"]
)
def test_a_meaningless_pace_file_delays_no_post(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "box.pace"
    path.write_bytes(held)
    pace = Pace(path, 2.0)
    assert pace.remaining_s(100.0) == 0.0
    assert pace.record_post(100.0)
    assert path.read_bytes() == b"100.000\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.write_text("mine")
    (tmp_path / "box.pace").symlink_to(other)
    assert Pace(tmp_path / "box.pace", 2.0).record_post(100.0)
    assert other.read_text() == "mine"


# --- a cursor that somebody else has moved --------------------------------------------------


def moved_on(store: FileStore) -> None:
    path = CursorFile(store.folder, "box").path
    path.write_text(json.dumps({**json.loads(path.read_text()), "revision": 900}))


def removed(store: FileStore) -> None:
    CursorFile(store.folder, "box").path.unlink()


@pytest.mark.parametrize("change", [moved_on, removed])
def test_results_marked_as_posted_by_another_are_reported_once(
    store: FileStore, change: Callable[[FileStore], None]
) -> None:
    told = lane_for(store)
    succeed(store, "one")
    told.deliver()
    assert (told.box.bodies, told.notices) == (["one"], [])
    for word in ("two", "three"):
        succeed(store, word)
    change(store)
    later = lane_for(store)
    later.deliver()
    (notice,) = later.notices
    assert notice.startswith(
        "activity sink 'box': results that you did not post count as posted: 2 "
    )
    succeed(store, "four")
    later.deliver()
    assert (later.box.bodies, len(later.notices)) == (["four"], 1)


def test_a_process_killed_between_post_and_cursor_has_skipped_nothing(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = lane_for(store)
    succeed(store, "one")
    with monkeypatch.context() as patched:
        patched.setattr(CursorFile, "write", lambda *_: None)
        told.deliver()
    later = lane_for(store)
    later.deliver()
    assert (later.box.bodies, later.notices) == (["one"], [])


def test_a_run_that_was_reset_skips_nothing(store: FileStore) -> None:
    told = lane_for(store)
    succeed(store, "one")
    told.deliver()
    record(store, (Event.RESET, None), run_id="run-2")
    succeed(store, "two")
    for lane in (told, lane_for(store)):
        lane.deliver()
        assert lane.notices == []
    assert told.box.bodies == ["one", "two"]
