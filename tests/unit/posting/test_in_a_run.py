"""Real steps by the engine: what it tells and what its journal holds reach a sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sequencer.engine.loop import Mode
from sequencer.engine.run import Run
from sequencer.model.limits import InvocationLimits
from sequencer.posting.poster import Poster
from sequencer.posting.sinks import JsonlSink
from sequencer.posting.web import WebhookSink
from tests.unit.engine.projects import open_scripted, reopen
from tests.unit.posting.desk import Desk, open_desk
from tests.unit.posting.runs import REDACTION, new_store

LARGE = "x" * 20_000


def worked(folder: Path, run: Run, desk: Desk, steps: int) -> list[str]:
    """Work *steps* steps of *run* with a webhook and a file."""
    notices = list[str]()
    hook = WebhookSink("hook", desk.url, {})
    file = JsonlSink("file", folder / "sync" / "activity.jsonl")
    with Poster(new_store(folder), [hook, file], REDACTION, notices.append) as activities:
        run.work(Mode.COMBINED, InvocationLimits(max_steps=steps), on_event=activities)
    return notices


def results(desk: Desk) -> list[Any]:
    return [seen.body for seen in desk.seen if "key" in seen.body]


def test_each_accepted_step_is_told_once(tmp_path: Path) -> None:
    outputs = [{"status": "ok", "output": text} for text in ("short", LARGE)]
    run = open_scripted(tmp_path, *outputs)
    with open_desk() as desk:
        notices = worked(tmp_path, run, desk, 3)
        assert [(told["step"], told.get("body")) for told in results(desk)] == [
            ("supervisor", "short"),
            ("main", "short"),
            ("supervisor", LARGE),
        ]
        large = results(desk)[2]
    assert (tmp_path / "sync" / large["output_file"]).read_text() == LARGE
    assert notices == []
    lines = (tmp_path / "sync" / "activity.jsonl").read_text().splitlines()
    assert len([line for line in lines if '"key"' in line]) == 3


def test_a_failure_and_the_success_after_it(tmp_path: Path) -> None:
    failed = {"status": "failed", "error": "it broke"}
    run = open_scripted(
        tmp_path,
        failed,
        {"status": "ok", "output": "mended"},
        step_defaults={"retry": {"max_attempts": 2}},
    )
    with open_desk() as desk:
        worked(tmp_path, run, desk, 1)
        told = [(one["type"], one["body"].split("\n")[0], one["attempt"]) for one in results(desk)]
    assert told == [("error", "it broke", 1), ("response", "mended", 2)]


def test_the_next_process_posts_what_the_last_one_could_not(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, {"status": "ok", "output": "done"})
    notices = list[str]()
    gone = WebhookSink("hook", "http://127.0.0.1:9/", {})
    with Poster(new_store(tmp_path), [gone], REDACTION, notices.append, drain_s=0) as activities:
        run.work(Mode.COMBINED, InvocationLimits(max_steps=2), on_event=activities)
    with open_desk() as desk:
        worked(tmp_path, reopen(tmp_path), desk, 1)
        assert [told["step_index"] for told in results(desk)] == [0, 1, 2]
