"""A server whose data went back is told by what this user has seen of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fleet.fleet_projects import CYCLE, FleetProject

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]


def test_a_run_behind_its_last_known_state_is_refused(
    project: Callable[[str], FleetProject],
) -> None:
    fleet = project(CYCLE)
    assert fleet.cli("run", "--max-steps", "2").returncode == 0
    # See "How far runs have come" in docs/reference/files.md.
    folder = Path(os.environ["XDG_STATE_HOME"], "sequencer", "runs")
    records = {path: json.loads(path.read_text()) for path in folder.glob("*.json")}
    (path,) = [p for p, one in records.items() if str(fleet.folder) in one["state_file"]]
    assert records[path]["token"] == 2
    # What a server has that was restored from a backup: less than this user has seen.
    path.write_text(json.dumps({**records[path], "token": 7}))
    for command in (("run", "--max-steps", "1"), ("skip",)):
        refused = fleet.cli(*command)
        assert refused.returncode == 3, refused.stderr
        assert "token 7" in refused.stderr
        assert f"remove {path}" in refused.stderr
    assert fleet.cli("status").returncode == 0
    path.unlink()
    assert fleet.cli("run", "--max-steps", "1").returncode == 0
