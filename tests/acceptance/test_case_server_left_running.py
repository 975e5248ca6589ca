"""A server that the agent left in the background is ended, and people are told."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tests.acceptance.cli_process import cli

CASE = Path(__file__).with_name("cases") / "server-left-running"


def test_log_and_history_report_the_ended_process(tmp_path: Path) -> None:
    project = Path(shutil.copytree(CASE, tmp_path / "project"))
    ended = cli(project, "run", "--max-steps", "1")
    assert ended.returncode == 0, ended.stderr
    told = re.escape("[sequencer] 1 process that the agent had left running was ended: ")
    assert re.search(rf"^{told}.*sleep 4711", ended.stdout + ended.stderr, re.MULTILINE)
    assert re.search(rf"^{told}.*sleep 4711", cli(project, "log").stdout, re.MULTILINE)
    lines = cli(project, "history", "--json").stdout.splitlines()
    done = next(fact for fact in map(json.loads, lines) if fact["event"] == "succeeded")
    assert done["outcome"]["evidence"]["ended_processes"] == 1
