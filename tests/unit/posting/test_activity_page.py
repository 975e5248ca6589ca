"""docs/how-to/post-activity.md and the table of sinks say what the options say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sequencer import Usage
from sequencer.cli.views.readiness import LABEL_WIDTH
from sequencer.history.spans import Figures
from sequencer.plugins.metrics.facts import Metrics
from sequencer.plugins.posting.options import KINDS, ActivityOptions, SinkOptions, SinkPlace
from sequencer.plugins.posting.poster import DRAIN_S
from sequencer.plugins.posting.protocol import LONGEST_PAUSE_S, Activity, ActivityType, Post
from sequencer.plugins.posting.section import get_activity_options
from sequencer.plugins.posting.sink_queue import THOUGHT_EVERY_S
from sequencer.plugins.posting.sinks import make_sinks
from sequencer.plugins.posting.web import signature
from sequencer.project.posting import Pending
from sequencer.project.settings import load
from tests.project.documents import ROOT, Fence, fences

PAGE = ROOT / "docs" / "how-to" / "post-activity.md"
REFERENCE = (ROOT / "docs" / "reference" / "configuration.md").read_text()
ROW = re.compile(
    r"^\| `activity\.sinks\.NAME\.([a-z_]+)` \| [^|]+ \| ([^|]+) \| (.+) \|$", re.MULTILINE
)
VARIABLES = {
    "LINEAR_TOKEN": "t",
    "LINEAR_SESSION": "s",
    "GITHUB_TOKEN": "t",
    "TEAM_HOOK_TOKEN": "t",
    "TEAM_HOOK_SECRET": "t",
}


def blocks(language: str) -> list[Fence]:
    return [fence for fence in fences(PAGE) if fence.language == language]


def test_the_table_has_each_key_and_its_default() -> None:
    written = {name: default.strip().strip("`") for name, default, _ in ROW.findall(REFERENCE)}
    expected = {
        name: "none" if field.default is None else "empty"
        for name, field in SinkOptions.model_fields.items()
        if name != "kind"
    }
    assert written == {"kind": "required", **expected}


def test_the_table_names_the_kinds_that_have_a_key() -> None:
    for name, _, meaning in ROW.findall(REFERENCE):
        owners = {kind for kind, has in KINDS.items() if name in {*has.may, *sum(has.needs, ())}}
        named = {kind for kind in KINDS if re.search(rf"\b{kind}\b[:,]", meaning)}
        assert named == (owners if name != "kind" else set()), name


@pytest.mark.parametrize("fence", blocks("yaml"), ids=lambda fence: fence.where)
def test_each_example_creates_its_sink(tmp_path: Path, fence: Fence) -> None:
    (tmp_path / "orchestration.yaml").write_text(fence.text)
    settings = load(tmp_path, env={})
    place = SinkPlace(settings.state_file.parent, settings.project_dir, VARIABLES)
    (sink,) = make_sinks(get_activity_options(settings), place)
    assert sink.kind in fence.text


def test_there_is_an_example_of_each_kind() -> None:
    texts = [fence.text.partition("sinks:")[2] for fence in blocks("yaml")]
    assert set(re.findall(r"kind: (\w+)", "".join(texts))) == set(KINDS)


def test_the_document_is_as_shown() -> None:
    shown: dict[str, Any] = json.loads(blocks("json")[0].text)
    told = Activity(
        type=ActivityType.RESPONSE,
        at=shown["at"],
        step=shown["step"],
        step_index=shown["step_index"],
        attempt=shown["attempt"],
        event=shown["event"],
        title=shown["title"],
        body=shown["body"],
    )
    post = Post(activity=told, run_id=shown["run_id"], revision=9)
    assert list(post.document().items()) == list(shown.items())


def test_the_metrics_are_as_shown() -> None:
    shown: dict[str, Any] = json.loads(blocks("json")[1].text)
    agent_seconds = shown["agent_seconds"]
    metrics = Metrics(
        usage=Usage.model_validate({**shown, "seconds": agent_seconds}),
        agents=tuple(shown["agents"]),
        attempts=shown["attempts"],
        failed=shown["failed"],
        figures=Figures(
            wall_s=shown["wall_s"],
            work_s=agent_seconds,
            people_s=shown["people_s"],
            critical_s=shown["critical_s"],
            critical=(),
            peak=shown["peak"],
            places=2,
        ),
        critical_path=tuple(shown["critical_path"]),
    )
    assert list(metrics.to_data().items()) == list(shown.items())


def test_pending_posts_are_shown_as_on_the_page() -> None:
    (shown,) = blocks("text")
    waits = Pending(sink="team", pending=3, since="then", tries=9, error="HTTP 500")
    assert (
        shown.text.strip()
        == f"{'posts':<{LABEL_WIDTH}}  {waits.format_text(lambda _: '12 min 4 s')}"
    )


def test_the_signature_is_checked_as_shown() -> None:
    (fence,) = blocks("python")
    names: dict[str, Any] = {}
    exec(fence.text, names)  # noqa: S102 - the page's own example
    body = b'{"type": "response"}'
    assert names["is_genuine"](body, signature("k", body), b"k")
    assert not names["is_genuine"](body + b" ", signature("k", body), b"k")


def test_the_types_and_figures_match_the_page() -> None:
    text = PAGE.read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [
        "response",
        "error",
        "elicitation",
        "thought",
        "action",
    ]
    assert set(ActivityType) == set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert "at most one every two seconds" in text
    assert THOUGHT_EVERY_S == ActivityOptions().min_interval_s == 2.0
    assert "up to five minutes" in text
    assert LONGEST_PAUSE_S == 300.0
    assert ActivityOptions().drain_s == DRAIN_S
