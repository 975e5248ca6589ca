"""A step that was killed as often as it may start: the commands that are advised work."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.acceptance.core_alone import ROOT, Here


@pytest.fixture
def killed(tmp_path: Path) -> Here:
    """Return a project whose only attempt was killed."""
    here = Here(tmp_path / "project", ROOT)
    here.configure("steps: [a, b]\nlimits: {attempts: 1, steps: 2}\n")
    here.prompts("b")
    (here.folder / "prompts/a.md").write_text("wait here")
    called = here.begin_and_wait("run")
    called.send_signal(signal.SIGKILL)
    called.communicate(timeout=30)
    (here.folder / "go").touch()
    said = here.call("run", code=3)
    assert "step 'a' was started once without an end (limits.attempts: 1)" in said
    assert "'sequencer retry'" in said
    return here


@pytest.mark.slow
def test_retry_allows_one_more_start(killed: Here) -> None:
    killed.call("retry")
    killed.call("run")
    assert killed.done == ["a", "a", "b"]
    assert "taken-over" in killed.call("history")


def test_skip_continues_after_it(killed: Here) -> None:
    killed.call("skip")
    killed.call("run", "--max-steps", "1")
    assert killed.done == ["a", "b"]


def test_a_run_starts_at_a_later_step_and_counts_the_killed_attempt(killed: Here) -> None:
    killed.call("run", "--start-at", "b", "--max-steps", "1")
    assert killed.done == ["a", "b"]
    facts = [json.loads(line) for line in killed.call("history", "--json").splitlines()]
    assert [fact["event"] for fact in facts if fact["step"] == "a"] == [
        "initialised",
        "claimed",
        "taken-over",
        "skipped",
    ]
    (lost,) = [fact for fact in facts if fact["event"] == "taken-over"]
    assert lost["outcome"]["usage"]["unpriced"] == 1
    # The agent of the second step says nothing about its cost, either.
    assert killed.state()["usage"]["unpriced"] == 2


def test_a_killed_step_can_be_marked_as_failed(killed: Here) -> None:
    killed.call("skip", "--as-failed")
    assert killed.state()["failures_in_row"] == 1
    assert not killed.state()["claims"]
