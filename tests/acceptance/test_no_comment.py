"""A step that may not post comments, whichever kind of workflow has it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.cli_process import cli

CLIENT = """\
import json, sys
with open("argv", "a") as file:
    file.write(json.dumps(sys.argv) + "\\n")
sys.stdin.read()
said = {"subtype": "init", "session_id": "s", "model": "m", "tools": []}
print(json.dumps({"type": "system", **said}))
ended = {"subtype": "success", "is_error": False, "result": ANSWER, "session_id": "s"}
usage = {"usage": {"input_tokens": 1, "output_tokens": 1}, "total_cost_usd": 0, "num_turns": 1}
print(json.dumps({"type": "result", **ended, **usage, "structured_output": STRUCTURED}))
"""
TOOL = "mcp__x__comment"
FLOW = """\
```mermaid
flowchart TD
a --> b
```

### a

---
no_comment: true
---
Do a.

### b

Do b.
"""
KINDS: dict[str, dict[str, Any]] = {
    "cycle": {"steps": [{"name": "a", "text": "do a", "no_comment": True}]},
    "tasks": {"tasks": [{"id": "a", "subject": "A", "no_comment": True}]},
    "role": {"tasks": [{"id": "a", "subject": "A", "role": "quiet"}]},
}


def project(folder: Path, workflow: dict[str, Any], structured: Any = None) -> Path:
    program = folder / "claude"
    head = f"#!{sys.executable} -IS\nSTRUCTURED = {structured!r}\nANSWER = 'ok'\n"
    program.write_text(head + CLIENT)
    program.chmod(0o755)
    (folder / "flow.md").write_text(FLOW)
    settings = {
        "agent": {"default": "c"},
        "agents": {"c": {"kind": "claude", "program": str(program)}},
        "activity": {"comment_tools": [TOOL]},
        "teams": {"roles": {"quiet": {"no_comment": True}}},
        "workflow": {"name": "t"},
        "workflows": {"t": workflow},
    }
    (folder / "orchestration.yaml").write_text(yaml.safe_dump(settings))
    return folder


def taken(folder: Path) -> list[bool]:
    """Return for each agent, as they came, whether the tool was taken from it."""
    lines = (folder / "argv").read_text().splitlines()
    return [TOOL in " ".join(json.loads(line)) for line in lines]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("kind", list(KINDS))
def test_comment_tools_are_removed(tmp_path: Path, kind: str) -> None:
    done = cli(project(tmp_path, KINDS[kind]), "run", "--max-steps", "1", "--quiet")
    assert done.returncode == 0, done.stderr
    assert taken(tmp_path) == [True]


def test_in_a_flowchart_only_that_node_loses_the_comment_tools(tmp_path: Path) -> None:
    done = cli(project(tmp_path, KINDS["cycle"]), "run", "flow.md", "--quiet")
    assert done.returncode == 0, done.stderr
    assert taken(tmp_path) == [True, False]


def test_a_task_added_by_a_lead_loses_the_comment_tools(tmp_path: Path) -> None:
    added = {"id": "one", "subject": "One", "description": "d", "role": "quiet"}
    tasks = {"tasks": [{"id": "lead", "subject": "Lead", "adds": "tasks"}]}
    done = cli(project(tmp_path, tasks, {"tasks": [added]}), "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert taken(tmp_path) == [False, True]
