"""claude's exit code 0 and "success" behind half a turn: the step is not accepted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, head

CASE = Path(__file__).with_name("cases") / "claude-cut-off-in-a-tool-call"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASE, tmp_path / "project"))


def run(project: Path) -> tuple[int, str]:
    ended = cli(project, "run", "--max-steps", "1", PATH=f"{project}:/usr/local/bin:/usr/bin:/bin")
    return ended.returncode, ended.stdout + ended.stderr


def rewritten(project: Path, **result: Any) -> None:
    """Change the last event of the stand-in; None takes a key away."""
    path = project / "events-pause.json"
    said = json.loads(path.read_text())
    last = {**said["events"][-1], **result}
    said["events"][-1] = {key: value for key, value in last.items() if value is not None}
    said["events"][1]["message"].pop("stop_reason")
    (project / "events.json").write_text(json.dumps(said))


def test_a_tool_call_that_never_ran_is_no_end(project: Path) -> None:
    code, told = run(project)
    assert code == 1
    assert "cut off: its client says 'tool_use', and 1 tool call got no result" in told
    assert head(project)["step_index"] == 0
    shown = json.loads(cli(project, "history", "--json").stdout.splitlines()[-1])["outcome"]
    assert shown["evidence"]["turn_end"] == "cut-off"
    assert shown["evidence"]["open_calls"] == 1


def test_a_turn_that_the_service_has_paused_is_no_end(project: Path) -> None:
    (project / "events-pause.json").rename(project / "events.json")
    code, told = run(project)
    assert code == 1
    assert "its client says 'pause_turn'" in told
    assert head(project)["step_index"] == 0


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", None])
def test_a_turn_with_a_real_end_is_still_a_success(project: Path, reason: str | None) -> None:
    rewritten(project, stop_reason=reason)
    code, told = run(project)
    assert code == 0, told
    assert head(project)["step_index"] == 1
