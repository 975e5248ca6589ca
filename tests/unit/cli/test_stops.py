from __future__ import annotations

from pathlib import Path

from tests.unit.cli.calling import call, state, worked


def test_stop_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, "stop", "--reason", "enough")
    assert called.code == 0
    done, following = called.out.splitlines()
    assert done == "the run is stopped"
    assert following.startswith(
        "next: step 'main' (main.md), step_index 1; but the run was stopped: enough"
    )
    assert (state(tmp_path)["exit"], state(tmp_path)["exit_reason"]) == (True, "enough")
    call(tmp_path, "run", "--quiet")
    assert state(tmp_path)["step_index"] == 1


def test_resume_of_a_run_that_goes_on_is_refused(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, "resume")
    assert called.code == 3
    assert "neither paused nor stopped" in called.err
