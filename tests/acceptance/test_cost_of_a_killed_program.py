"""An attempt that dies with the program costs what was seen of it, under every cap."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.charging import counted
from tests.acceptance.cli_process import cli, launched, until

CLIENT = f"""\
#!{sys.executable} -IS
import json, os, sys, time
sys.stdin.read()
with open("calls", "a") as file:
    file.write("x")
usage = {{"input_tokens": 400000, "output_tokens": 30000}}
message = {{"id": "m1", "model": "claude-sonnet-5", "usage": usage, "content": []}}
if not os.path.exists("mute"):
    print(json.dumps({{"type": "assistant", "message": message}}), flush=True)
open("asked", "w").close()
while os.path.exists("hold"):
    time.sleep(0.02)
event = {{"type": "result", "is_error": False, "result": "done", "total_cost_usd": 0.125}}
print(json.dumps(event), flush=True)
"""
SEEN_USD = 1.1
"""400,000 tokens in and 30,000 out, at 2 and 10 USD a million."""
FLOW = """---
id: one
---

```mermaid
flowchart TD
a
```

### a
x
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a project whose agent is asked something, and says no more while `hold` is there."""
    made = tmp_path / "p"
    (made / "flows").mkdir(parents=True)
    (made / "flows" / "one.md").write_text(FLOW)
    client = tmp_path / "client"
    client.write_text(CLIENT)
    client.chmod(0o755)
    configure(made)
    return made


def configure(folder: Path, **more: Any) -> None:
    entry = {"kind": "claude", "program": str(folder.parent / "client")}
    settings = {"agent": {"default": "model"}, "agents": {"model": entry}, **more}
    settings |= {"steps": [{"name": "main", "text": "Go on."}]}
    (folder / "orchestration.yaml").write_text(json.dumps(settings))


def killed(folder: Path, *words: str, sees_usage: bool = True) -> None:
    """Kill `sequencer WORDS` while its agent is at work."""
    (folder / "hold").touch()
    with contextlib.suppress(FileNotFoundError):
        (folder / "asked").unlink()
    process = launched(folder, *words)
    seen = "sync/**/beats/*.used" if sees_usage else "asked"
    until(lambda: (folder / "asked").exists() and any(folder.glob(seen)))
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (folder / "hold").unlink()


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text())


def facts(folder: Path, event: str, *run: str) -> list[dict[str, Any]]:
    lines = cli(folder, *run, "history", "--json").stdout.splitlines()
    return [fact for fact in map(json.loads, lines) if fact["event"] == event]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("flow", [False, True], ids=["line", "graph"])
def test_usage_seen_before_a_kill_is_counted_in_every_view(folder: Path, flow: bool) -> None:
    words = ("run", "one", "--quiet") if flow else ("tick",)
    killed(folder, *words)
    again = cli(folder, *words)
    assert again.returncode == 0, again.stderr
    name = "one" if flow else None
    found = counted(folder, name)
    assert found == dict.fromkeys(found, (SEEN_USD + 0.125, 1))
    (lost,) = facts(folder, "taken-over", *(("--run", "one") if flow else ()))
    assert lost["outcome"]["incomplete"] is True
    assert lost["outcome"]["usage"]["input_tokens"] == 400_000
    assert not list(folder.glob("sync/**/beats/*.used"))


def test_a_killed_program_without_usage_leaves_a_call_of_unknown_cost(folder: Path) -> None:
    (folder / "mute").touch()
    killed(folder, "tick", sees_usage=False)
    assert cli(folder, "tick").returncode == 0
    found = counted(folder, None)
    assert found == dict.fromkeys(found, (0.125, 1))


def test_repeated_kills_do_not_get_around_the_cap(folder: Path) -> None:
    configure(folder, limits={"cost_usd": 2})
    for _ in range(2):
        killed(folder, "tick")
    for _ in range(2):
        ended = cli(folder, "tick")
        assert ended.returncode == 0, ended.stderr
        assert "the run's limit of 2.0 USD is reached" in ended.stdout
    assert calls(folder) == 2
    found = counted(folder, None)
    assert found == dict.fromkeys(found, (2 * SEEN_USD, 2))


def test_a_forced_takeover_counts_the_cost_that_was_seen(folder: Path) -> None:
    killed(folder, "tick")
    assert cli(folder, "takeover", "--force").returncode == 0
    found = counted(folder, None)
    assert found == dict.fromkeys(found, (SEEN_USD, 1))


@pytest.mark.slow
def test_a_malformed_usage_file_counts_as_unknown(folder: Path) -> None:
    killed(folder, "tick")
    (used,) = folder.glob("sync/beats/*.used")
    used.write_text('{"cost_usd": -5, "input_tokens": "many"}')
    assert cli(folder, "tick").returncode == 0
    found = counted(folder, None)
    assert found == dict.fromkeys(found, (0.125, 1))


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("is_free", [False, True])
def test_a_killed_router_is_counted_even_if_the_steps_agent_is_free(
    folder: Path, *, is_free: bool
) -> None:
    talks = "cat > /dev/null; touch asked; while [ -e hold ]; do sleep 0.02; done; echo main.md"
    router = {"kind": "command", "argv": ["sh", "-c", talks], "free": is_free}
    agents = {"hand": {"kind": "scripted", "outcomes": [{"output": "done"}]}, "router": router}
    (folder / "prompts").mkdir()
    for name in ("main", "router"):
        (folder / "prompts" / f"{name}.md").write_text("Go on.")
    configure(folder, agents=agents, agent={"default": "hand", "prompts": {"router.md": "router"}})
    settings = json.loads((folder / "orchestration.yaml").read_text())
    settings |= {"router": {"enabled": True, "mode": "router_first", "prompt": "router.md"}}
    settings |= {"steps": [{"name": "main"}]}
    (folder / "orchestration.yaml").write_text(json.dumps(settings))
    killed(folder, "run", "--max-steps", "1", sees_usage=False)
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    (lost,) = facts(folder, "taken-over")
    usage = lost["outcome"]["usage"]
    assert usage.get("unpriced", 0) == (0 if is_free else 1), lost
