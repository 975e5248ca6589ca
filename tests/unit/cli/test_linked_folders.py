"""Commands that only look open nothing behind a link; tests/boundary watches all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.calling import call, project

FOLDERS = (
    "sync/beats",
    "sync/results",
    "sync/runs",
    "sync/activity",
    "sync/worktrees",
    "flows",
    "logs/local/steps",
)
STATE_DISPLAYS = (
    ("status",),
    ("status", "--json"),
    ("status", "--all"),
    ("inbox",),
    ("check",),
    ("plan",),
    ("plan", "--list"),
    ("plan", "no-such-flow"),
    ("history",),
    ("log",),
    ("report",),
    ("repair",),
    ("clean", "--dry-run"),
    ("run", "--dry-run"),
)
_watched: list[list[str]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and event in ("open", "os.listdir", "os.scandir"):
        _watched[-1].append(str(arguments[0]))


sys.addaudithook(_hook)


@contextmanager
def opened_paths() -> Iterator[list[str]]:
    """Yield the list of paths that this process opens by their names."""
    _watched.append([])
    try:
        yield _watched[-1]
    finally:
        _watched.pop()


@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_behind_a_link_is_opened(name: str, tmp_path: Path) -> None:
    folder, outside = project(tmp_path / "p"), tmp_path / "outside"
    assert call(folder, "run", "--max-steps", "2", "--quiet").code == 0
    path = folder / name
    if path.exists():
        path.rename(outside)
    else:
        outside.mkdir()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside)
    for arguments in STATE_DISPLAYS:
        with opened_paths() as opened:
            call(folder, *arguments)
        assert opened
        behind = [one for one in opened if os.path.realpath(one).startswith(str(outside))]
        assert behind == [], arguments
