"""What a delivery's request costs to classify is counted in its run."""

from __future__ import annotations

from pathlib import Path

from sequencer import Status
from tests.acceptance.charging import Answers, calls_of, charged, charged_project, counted
from tests.web.deliveries import RUN, labeled, taking, until

HOOKS = {
    "workflows": {"mine": {"kind": "procedure", "steps": ["look"]}},
    "routing": {"procedures": {"code": "mine"}, "fallback": "mine"},
    "webhooks": {
        "github": {"people": ["ann"], "repositories": ["acme/app"], "labels": ["Sequencer"]}
    },
}
ASKED_TWICE: Answers = {
    "classifier": [{"says": "what?", "cost": 0.5}, {"says": "code", "cost": None}]
}


def test_a_run_started_by_a_tracker_counts_its_classification(tmp_path: Path) -> None:
    folder = charged_project(tmp_path / "p", ASKED_TWICE, **HOOKS)
    with taking(folder, tmp_path / "state") as taker:
        assert taker.send("github", labeled()) == (202, "taken")
        until(folder, Status.COMPLETE)
    assert [call["step"] for call in calls_of(folder)] == ["classifier"] * 2 + ["look"]
    assert {call["SEQUENCER_TOKEN"] for call in calls_of(folder)} == {"0", "1"}
    views = counted(folder, RUN)
    assert views == dict.fromkeys(views, charged(folder))
