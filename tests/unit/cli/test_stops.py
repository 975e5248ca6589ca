from __future__ import annotations

from pathlib import Path

from tests.unit.cli.calling import call, worked


def test_resume_of_a_run_that_goes_on_is_refused(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, "resume")
    assert called.code == 3
    assert "neither paused nor stopped" in called.err
