from __future__ import annotations

from pathlib import Path

from tests.unit.cli.calling import call


def test_a_run_that_never_started_has_no_page(tmp_path: Path) -> None:
    assert call(tmp_path, "init").code == 0
    called = call(tmp_path, "report", "--html", "page.html")
    assert called.code == 3
    assert "the run was never started" in called.err
    assert not (tmp_path / "page.html").exists()
