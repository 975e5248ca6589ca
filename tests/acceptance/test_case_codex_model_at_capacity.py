"""A busy service is no failure: the step waits with growing pauses, or another agent works."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, head

CASE = Path(__file__).with_name("cases") / "codex-model-at-capacity"
AT_CAPACITY = "Selected model is at capacity. Please try a different model."


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASE, tmp_path / "project"))


def waits_s(project: Path) -> float:
    since = datetime.now(UTC)
    return (datetime.fromisoformat(head(project)["not_before"]) - since).total_seconds()


@pytest.mark.parametrize(
    "text",
    [AT_CAPACITY, "Reconnecting...", "We're currently experiencing high demand", "exit code 0"],
)
def test_a_busy_service_postpones_the_step(project: Path, text: str) -> None:
    events = json.loads((project / "events.json").read_text())
    if text == "exit code 0":
        events["rc"] = 0
    else:
        (project / "events.json").write_text(json.dumps(events).replace(AT_CAPACITY, text))
    ended = cli(project, "tick", PATH=f"{project}:/usr/local/bin:/usr/bin:/bin")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    state = head(project)
    assert (state["failures_in_row"], state["attempt"], state["step_index"]) == (0, 1, 0)
    assert state["not_before_reason"].startswith("the agent is unavailable (codex ended")
    assert 15 < waits_s(project) <= 38


def test_the_fallback_agent_works_meanwhile(project: Path) -> None:
    configuration = (project / "orchestration.yaml").read_text()
    configuration = configuration.replace(
        "agent: codex", "agent: {default: codex, fallback: [other]}"
    )
    other = "program: standin}, other: {kind: command, argv: [echo, done]}"
    (project / "orchestration.yaml").write_text(configuration.replace("program: standin}", other))
    ended = cli(project, "tick", PATH=f"{project}:/usr/local/bin:/usr/bin:/bin")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert head(project)["step_index"] == 1
