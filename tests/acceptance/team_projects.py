"""Projects with teams whose agents are a script that does what its task's line says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.cli_process import cli

AGENT = """\
import json, os, pathlib, sys, time

asked = sys.stdin.read()
task = os.environ["SEQUENCER_STEP"]
home = pathlib.Path(os.environ["SEQUENCER_STATE"]).parent
while home.name in ("sync", "runs") or not (home / "agent.json").exists():
    home = home.parent
plan = json.loads((home / "agent.json").read_text()).get(task, {})
seen = home / "seen"
seen.mkdir(exist_ok=True)
name = f"{task}-{os.environ['SEQUENCER_TOKEN']}"
(seen / name).write_text(asked)
(seen / (name + ".pid")).write_text(str(os.getpid()))
deadline = time.monotonic() + 100
while (wait := plan.get("until")) and not (home / wait).exists():
    assert time.monotonic() < deadline
    time.sleep(0.01)
time.sleep(plan.get("seconds", 0))
for path, text in plan.get("writes", {}).items():
    pathlib.Path(path).write_text(text)
result = {key: plan[key] for key in ("usage", "status") if key in plan}
said = plan.get("says", f"{task} is done")
if isinstance(said, list):
    said = said[min(len(list(seen.glob(f"{task}-[0-9]*.pid"))), len(said)) - 1]
if result:
    path = pathlib.Path(os.environ["SEQUENCER_RESULT"])
    path.write_text(json.dumps({"output": said, **result}))
print(said if isinstance(said, str) else json.dumps(said))
raise SystemExit(plan.get("exit", 0))
"""
"""It reads what to do from agent.json, by task; ``says`` may be a list, one for each attempt."""
SETTINGS: dict[str, Any] = {
    "agent": {"default": "script"},
    "agents": {"script": {"kind": "command", "argv": ["{python}", "-IS", "{project}/agent.py"]}},
}
IGNORED = "/sync/\n/logs/\n/seen/\n/agent.*\n/go*\n/orchestration.yaml\n/prompts/\n"


def git(folder: Path, *arguments: str) -> str:
    made = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return made.stdout.strip()


def make_project(
    folder: Path,
    tasks: list[dict[str, Any]],
    plan: dict[str, Any] | None = None,
    *,
    size: int = 3,
    is_repository: bool = False,
    **settings: Any,
) -> Path:
    """Write a project whose workflow ``team`` has *tasks*; the agent does what *plan* says."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.py").write_text(AGENT)
    (folder / "agent.json").write_text(json.dumps(plan or {}))
    whole = json.loads(json.dumps(SETTINGS).replace("{project}", str(folder)))
    whole |= {"workflow": {"name": "team"}, "workflows": {"team": {"size": size, "tasks": tasks}}}
    (folder / "orchestration.yaml").write_text(yaml.safe_dump({**whole, **settings}))
    if is_repository:
        (folder / ".gitignore").write_text(IGNORED)
        (folder / "shared.txt").write_text("as it was\n")
        git(folder, "init", "-q", "-b", "main")
        git(folder, "config", "user.name", "t")
        git(folder, "config", "user.email", "t@example.org")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "base")
    return folder


def events(project: Path, run: str | None = None) -> list[dict[str, Any]]:
    """Return the facts of the journal."""
    named = ("--run", run) if run else ()
    shown = cli(project, *named, "history", "--json").stdout
    return [json.loads(line) for line in shown.splitlines()]


def accepted(project: Path, run: str | None = None) -> list[str]:
    """Return the tasks in the order in which they were accepted."""
    return [one["step"] for one in events(project, run) if one["event"] == "succeeded"]


def told(project: Path, task: str) -> list[str]:
    """Return what the attempts at *task* were told, in order."""
    found = [path for path in (project / "seen").glob(f"{task}-[0-9]*") if path.suffix != ".pid"]
    by_token = sorted(found, key=lambda path: int(path.name.rsplit("-", 1)[1]))
    return [path.read_text() for path in by_token]
