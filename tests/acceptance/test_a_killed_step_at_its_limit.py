"""A step that was killed as often as it may start: the commands that are advised work."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.acceptance.core_alone import ROOT, Here


@pytest.fixture
def killed(tmp_path: Path) -> Here:
    """Return a project whose only attempt was killed."""
    here = Here(tmp_path / "project", ROOT, frozenset())
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


def test_retry_allows_one_more_start(killed: Here) -> None:
    killed.call("retry")
    killed.call("run")
    assert killed.done == ["a", "a", "b"]
    assert "taken-over" in killed.call("history")


def test_skip_continues_after_it(killed: Here) -> None:
    killed.call("skip")
    killed.call("run", "--max-steps", "1")
    assert killed.done == ["a", "b"]
