"""A client that fails before it has done anything, for a reason that nobody knows."""

from __future__ import annotations

import stat
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, head

CONFIGURATION = """\
agent: claude
agents: {claude: {permission_mode: acceptEdits, program: ./standin}}
steps: [{name: one, text: hello}]
"""
PAST = "not_before=2020-01-01T00:00:00Z"


def project_with(folder: Path, ends: str) -> Path:
    """Return a project whose client reads its prompt, does *ends*, and counts its starts."""
    (folder / "orchestration.yaml").write_text(CONFIGURATION)
    program = folder / "standin"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nsys.stdin.read()\nopen('calls', 'a').write('x')\n"
        f"{ends}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def tick(project: Path) -> tuple[int, float | None]:
    """Return the exit code, and how long the run then waits."""
    since = datetime.now(UTC)
    code = cli(project, "tick").returncode
    due = head(project)["not_before"]
    return code, None if due is None else (datetime.fromisoformat(due) - since).total_seconds()


@pytest.mark.slow
def test_an_unexplained_failure_is_retried_twice_before_it_counts(tmp_path: Path) -> None:
    project = project_with(tmp_path, "sys.exit(1)")
    for least_s, most_s in ((60, 90), (300, 390)):
        code, waits_s = tick(project)
        assert code == 0
        assert least_s <= (waits_s or 0) <= most_s
        assert head(project)["failures_in_row"] == 0
        assert "failed before it did any work" in head(project)["not_before_reason"]
        assert cli(project, "tick").returncode == 0, "nothing is due"
        assert cli(project, "set", PAST).returncode == 0
    code, waits_s = tick(project)
    assert (code != 0, waits_s) == (True, None)
    assert (head(project)["failures_in_row"], head(project)["attempt"]) == (1, 3)
    assert (project / "calls").read_text() == "xxx"


@pytest.mark.slow
def test_a_client_that_recovers_has_not_failed(tmp_path: Path) -> None:
    done = {"type": "result", "subtype": "success", "is_error": False, "result": "ok"}
    ends = f"if len(open('calls').read()) < 3: sys.exit(1)\nprint(json.dumps({done!r}))"
    project = project_with(tmp_path, ends)
    for _ in range(2):
        assert tick(project)[0] == 0
        assert cli(project, "set", PAST).returncode == 0
    assert tick(project)[0] == 0
    assert (head(project)["step_index"], head(project)["failures_in_row"]) == (1, 0)


SAYS = 'print(json.dumps({"type": "assistant", "message": {"content": [%s]}}))\n'
TEXT = '{"type": "text", "text": "I begin"}'
CALL = '{"type": "tool_use", "name": "Read", "input": {}}'


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "ends",
    [
        "sys.exit(2)",
        "sys.exit(127)",
        "sys.exit('error: unknown option --frobnicate')",
        "sys.exit('Invalid API key · Please run /login')",
        "sys.exit('API Error: 400 bad')",
        "sys.exit('API Error: 404 no such model')",
        f"{SAYS % TEXT}sys.exit(1)",
        f"{SAYS % CALL}sys.exit(1)",
    ],
)
def test_a_failure_a_retry_would_not_fix_counts_at_once(tmp_path: Path, ends: str) -> None:
    project = project_with(tmp_path, ends)
    code, waits_s = tick(project)
    assert (code != 0, waits_s) == (True, None)
    assert head(project)["failures_in_row"] == 1
