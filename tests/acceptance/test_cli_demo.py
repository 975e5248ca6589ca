from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli


@pytest.mark.slow
def test_the_demo_shows_strict_order_in_less_than_15_seconds(tmp_path: Path) -> None:
    begun = time.monotonic()
    shown = cli(tmp_path, "demo", TMPDIR=str(tmp_path))
    took = time.monotonic() - begun
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert took < 15
    ran = re.findall(r"\[\d\] (.+?) … accepted, ", shown.stdout)
    assert ran == ["supervisor", "main", "reviewer", "reviewer", "taken over", "main"]
    assert "6 steps, each accepted once, in the workflow's order" in shown.stdout
    assert "no two steps overlapped" in shown.stdout
    assert "sequencer init" in shown.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_saved_demo_can_be_inspected(tmp_path: Path) -> None:
    shown = cli(tmp_path, "demo", "--keep", "--steps", "4", "--seconds", "0", TMPDIR=str(tmp_path))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    folder = next(tmp_path.iterdir())
    for arguments in (("status",), ("history",), ("check",), ("plan", "review_cadence")):
        looked = cli(folder, *arguments)
        assert looked.returncode == 0, looked.stderr
    # One attempt was killed.
    assert len(list((folder / "logs" / "local" / "steps").iterdir())) == 5


@pytest.mark.slow
def test_it_runs_without_anything_in_its_way(tmp_path: Path) -> None:
    # A module of the same name in the folder must not be taken for the program.
    (tmp_path / "sequencer.py").write_text("raise SystemExit('the wrong module')\n")
    (tmp_path / "home").mkdir()
    shown = cli(tmp_path / "home", "demo", "--steps", "2", "--seconds", "0", TMPDIR=str(tmp_path))
    assert shown.returncode == 0, shown.stdout + shown.stderr
