"""What an execution came to, from facts of a journal."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sequencer.history.story import build_story
from sequencer.model.outcome import Usage
from sequencer.plugins.metrics.facts import Metrics, compute_metrics
from sequencer.plugins.posting.protocol import ActivityType, Post
from sequencer.plugins.posting.text import sanitize_activity
from sequencer.plugins.posting.trackers import result_text
from sequencer.store.file import FileStore
from tests.unit.posting.posts import activity
from tests.unit.posting.runs import REDACTION, SECRET


def fact(revision: int, event: str, step: str = "", second: int = 0, **outcome: Any) -> Any:
    at = f"2027-01-31T08:00:{second:02}Z"
    return {
        "revision": revision,
        "at": at,
        "event": event,
        "step": step,
        "step_index": 0,
        "token": revision,
        "attempt": 1,
        "outcome": outcome or None,
    }


def ended(revision: int, step: str, second: int, seconds: float, **more: Any) -> Any:
    usage = {"seconds": seconds, "input_tokens": 10, "output_tokens": 5, **more.pop("usage", {})}
    began = f"2027-01-31T08:00:{second - seconds:06.3f}Z"
    told = {"usage": usage, "began_at": began, "agent": "claude", **more}
    return {**fact(revision, "succeeded", step, second, **told), "token": revision - 1}


RUN = [
    fact(1, "initialised"),
    fact(2, "claimed", "plan"),
    ended(3, "plan", 4, 4.0, usage={"cost_usd": 0.5}),
    fact(4, "claimed", "build", 4, **{"from": ["plan"]}),
    {**ended(5, "build", 10, 6.0, usage={"unpriced": 1}), "event": "failed"},
    fact(6, "claimed", "build", 10, retry=1),
    ended(7, "build", 12, 2.0, agent="codex", usage={"unpriced": 1}),
    fact(8, "completed", "", 12, status="completed"),
]


def test_the_head_counts_if_the_journal_dropped_the_beginning() -> None:
    told = compute_metrics(build_story(RUN[4:]), Usage(steps=9, seconds=99.0, unpriced=3)).to_data()
    assert (told["steps"], told["agent_seconds"], told["cost_usd"]) == (9, 99.0, None)
    # Nobody knows when it began.
    assert told["attempts"] is None
    assert not {"wall_s", "critical_path", "speed_up"} & told.keys()


def test_metrics_are_formatted_for_people_in_a_few_lines() -> None:
    text = compute_metrics(build_story(RUN)).format_text()
    assert text == (
        "took 12.0 s · 2 steps · 3 attempts, 1 failed · 12.0 s of agents · 30 + 15 tokens, "
        "0.5000 USD and 2 calls of unknown cost · claude, codex\n\n"
        "at most 1 at the same time · 1.00 times as fast as one worker · "
        "critical path 6.0 s: plan → build"
    )


def test_a_tracker_shows_names_as_they_are_and_no_secret(store: FileStore) -> None:
    metrics = replace(compute_metrics(build_story(RUN)), critical_path=("a_b", SECRET))
    end = activity(ActivityType.RESPONSE, event="completed", title="the end", metrics=metrics)
    clean = sanitize_activity(end, REDACTION, store.folder, 1000)
    assert "a\\_b → " in result_text(clean)
    document = Post(activity=clean, run_id="r", revision=8).document()
    assert SECRET not in result_text(clean) + str(document)
    assert document["metrics"]["critical_path"][0] == "a_b"


def test_a_post_without_metrics_has_no_empty_ones() -> None:
    told = Post(activity=activity(ActivityType.RESPONSE), run_id="r", revision=1).document()
    assert "metrics" not in told
    assert Metrics(usage=Usage()).format_text() == "0 steps · 0.0 s of agents"
