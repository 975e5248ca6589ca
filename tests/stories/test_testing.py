"""`sequencer.testing`, as the author of a package uses it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sequencer import InvocationLimits
from sequencer.testing import AGENT, CommandOutput, ScratchProject, scripted

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "extending.md"


@pytest.mark.slow
def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    block = re.search(r"```python\n(# test_release\.py.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "test_release.py").write_text(block[1])
    options = ("-p", "no:cacheprovider", "-q", "test_release.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.slow
def test_settings_in_the_callers_environment_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQUENCER_AGENT", "no-such-agent")
    project = ScratchProject(tmp_path)
    assert project.run_command("run", "--max-steps", "1").exit_code == 0
    assert project.open().settings.agent.default == AGENT
    assert project.run_command("run", variables={"SEQUENCER_AGENT": "no-such"}).exit_code == 2


def test_output_that_is_not_json_is_shown(tmp_path: Path) -> None:
    project = ScratchProject(tmp_path)
    assert project.run_command("status", "--json").json["run_id"] is None
    with pytest.raises(ValueError, match="on stderr: 'oh'"):
        _ = CommandOutput(1, "words", "oh").json


def test_an_agent_answers_in_order_for_each_step(tmp_path: Path) -> None:
    project = ScratchProject(tmp_path, outcomes=("first", "second"))
    project.run().work(limits=InvocationLimits(max_steps=4))
    facts = [fact for fact in project.run().history() if fact["event"] == "succeeded"]
    assert [(fact["step"], fact["outcome"]["output"]) for fact in facts] == [
        ("supervisor", "first"),
        ("main", "first"),
        ("supervisor", "second"),
        ("main", "second"),
    ]
    assert scripted() == {"kind": "scripted", "outcomes": [{"output": "done"}]}
    assert AGENT in project.open().settings.agents
