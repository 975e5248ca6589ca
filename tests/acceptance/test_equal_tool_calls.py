"""An agent that makes the same tool call over and over, and is ended where that is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli

CLIENT = """\
#!/usr/bin/env python3
import json, sys, time
sys.stdin.read()
def say(kind, **message):
    print(json.dumps({"type": kind, "session_id": "s1", "message": message}), flush=True)
for number in range(%(calls)d):
    call = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": "ls"}}
    say("assistant", id=f"m{number}", content=[call])
    say("user", content=[{"type": "tool_result", "tool_use_id": f"t{number}", "content": "a"}])
    time.sleep(0.05)
print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "done",
                  "stop_reason": "end_turn", "session_id": "s1", "total_cost_usd": 0.01}))
"""


def project(folder: Path, calls: int, stagnation: dict[str, int]) -> Path:
    program = folder / "client"
    program.write_text(CLIENT % {"calls": calls})
    program.chmod(0o755)
    settings: dict[str, Any] = {
        "agent": "claude",
        "agents": {"claude": {"program": str(program)}},
        "steps": [{"name": "look", "text": "Look.", "stagnation": stagnation}],
    }
    (folder / "orchestration.yaml").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(("most", "code"), [(5, 1), (0, 0)])
def test_repeated_equal_tool_calls_end_an_attempt_only_if_configured(
    tmp_path: Path, most: int, code: int
) -> None:
    folder = project(tmp_path, 600 if most else 8, {"tool_calls": most})
    done = cli(folder, "run", "--max-steps", "1")
    assert done.returncode == code, done.stderr
    last = json.loads(cli(folder, "history", "--json").stdout.splitlines()[-1])
    shown = last["outcome"]["evidence"]
    if most:
        assert "the same tool call had the same result 5 times in a row" in done.stderr
        assert shown["repeated_calls"] >= 5
        assert shown["tool_calls"] < 600
    else:
        assert shown["repeated_calls"] == 8
        assert "8 tool calls (8 equal in a row)" in cli(folder, "status").stdout
