"""The plots of a run as a picture: what was used over time, and what reviews found."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from sequencer import Usage, open_project
from sequencer.errors import TransitionRefused
from sequencer.plugins.drawing.pictures import render_png
from sequencer.plugins.web import report
from sequencer.plugins.web.costs import JudgeVerdicts
from sequencer.plugins.web.records import AttemptUsage, RunStory
from sequencer.plugins.web.site import RunRow, ShownProject

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</text><script>alert(1)</script> & "x"'


def usages() -> list[AttemptUsage]:
    names = ("build", HOSTILE)
    return [
        AttemptUsage(1e9 + 60 * n, Usage(cost_usd=0.5, input_tokens=100, seconds=9), "hand", name)
        for n, name in enumerate(names * 3)
    ]


def story_of(monkeypatch: pytest.MonkeyPatch, spent: list[AttemptUsage]) -> None:
    """Let every run have used what was *spent*."""

    def story(_self: ShownProject, _row: RunRow) -> RunStory:
        return RunStory(spent=spent)

    monkeypatch.setattr(ShownProject, "story", story)


def reviews(row: RunRow, _facts: object) -> list[JudgeVerdicts]:
    return [JudgeVerdicts(row, "check", [False, True, True], f"It fails. {HOSTILE}\x1b[2J")]


def test_the_picture_has_plots_and_findings(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story_of(monkeypatch, usages())
    monkeypatch.setattr(report, "list_reviews", reviews)
    text = report.plots_svg(open_project(made / "shop").settings, "release-1.3")
    root = ET.fromstring(text)  # noqa: S314 - our own
    said = [one.text or "" for one in root.iter(f"{SVG}text")]
    assert {"Cost by agent", "Tokens by step", "Agent time by agent"} <= set(said)
    assert "hand $3.00" in said
    assert any(one.startswith("check: 2 of 3 passed; It fails.") for one in said)
    assert not list(root.iter(f"{SVG}script"))
    assert "\x1b" not in text
    assert [one.get("class") for one in root.findall(f"{SVG}rect")][1:] == ["no", "yes", "yes"]
    assert render_png(text).startswith(b"\x89PNG\r\n")


def test_a_run_without_usage_is_not_drawn(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story_of(monkeypatch, [])
    with pytest.raises(TransitionRefused, match="nothing to draw"):
        report.plots_svg(open_project(made / "shop").settings, None)
