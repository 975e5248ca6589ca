"""Requests whose titles are not in Latin letters, and the names of their runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.acceptance.cli_process import CASES, cli

CASE = CASES / "titles-in-other-scripts"


def started(folder: Path, title: str) -> str:
    """Return the name of a run that is started with *title*."""
    done = cli(folder, "start", title, "--no-run")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0].split()[1]


@pytest.mark.slow
def test_letters_of_every_script_stay_in_the_name(tmp_path: Path) -> None:
    shutil.copytree(CASE, tmp_path, dirs_exist_ok=True)
    titles = json.loads((CASE / "titles.json").read_text(encoding="utf-8"))
    assert len(titles) == 6
    assert {title: started(tmp_path, title) for title, _ in titles} == dict(titles)
    # The same title is another run, and each can be asked for by the name that was shown.
    for title, name in titles:
        assert started(tmp_path, title) == f"{name}-2"
        shown = json.loads(cli(tmp_path, "--run", name, "status", "--json").stdout)
        assert shown["run_name"] == name
    folders = sorted(path.name for path in (tmp_path / "sync" / "runs").iterdir())
    assert len(folders) == 12
    assert all(name.isascii() for name in folders)
