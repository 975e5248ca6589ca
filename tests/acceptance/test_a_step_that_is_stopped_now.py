"""`stop --now` ends the running step within seconds, and the process as a stop does."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.acceptance.core_alone import ROOT, Here


@pytest.fixture
def here(tmp_path: Path) -> Here:
    made = Here(tmp_path / "project", ROOT)
    made.configure("steps: [a]\nlimits: {steps: 3}\n")
    (made.folder / "prompts/a.md").write_text("wait here")
    return made


def test_stop_now_ends_the_step_and_the_process_reports_the_stop(here: Here) -> None:
    called = here.begin_and_wait("run")
    here.call("stop", "--now", "--reason", "enough")
    said = called.communicate(timeout=15)[0]
    assert called.returncode == 0, said
    assert "the run was stopped" in said
    assert "stale" not in said
    # What the agent had written by then is kept, and the step is not accepted.
    assert here.state()["step_index"] == 0
    assert not here.state()["claims"]


def test_a_paused_process_in_sync_mode_waits_for_resume(here: Here) -> None:
    called = here.begin_and_wait("run", "--mode", "sync", "--max-steps", "1")
    here.call("stop", "--pause", "--now")
    log = here.folder / "logs/local/steps/iter-00001_a.log"
    while "# ended" not in log.read_text():
        assert called.poll() is None, called.communicate()[0]
        time.sleep(0.01)
    (here.folder / "go").touch()
    here.call("resume")
    said = called.communicate(timeout=30)[0]
    assert called.returncode == 0, said
    assert "1 step is done (--max-steps)" in said
    assert here.done == ["a", "a"]


@pytest.mark.parametrize("how", ["stop", "stop --pause"])
def test_a_run_that_is_resumed_at_once_goes_on(here: Here, how: str) -> None:
    """Its process is suspended meanwhile, so it learns of the stop only when it is over."""
    called = here.begin_and_wait("run", "--mode", "sync", "--max-steps", "1")
    called.send_signal(signal.SIGSTOP)
    here.call(*how.split(), "--now")
    (here.folder / "go").touch()
    here.call("resume")
    called.send_signal(signal.SIGCONT)
    said = called.communicate(timeout=30)[0]
    assert called.returncode == 0, said
    assert "stale" not in said
    assert here.done == ["a", "a"]
    assert here.state()["step_index"] == 1


def test_a_forced_takeover_without_a_stop_ends_the_process(here: Here) -> None:
    called = here.begin_and_wait("run")
    here.call("takeover", "--force")
    said = called.communicate(timeout=15)[0]
    assert called.returncode == 3, said
    assert "stale" in said
