"""Agents of one user at the same time, with a real sequencer: what one can do to another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sequencer.cli.program import COMMANDS, Verbs
from sequencer.executors.wall import unavailable_reason
from tests.acceptance.cli_process import cli, environment

LACK = unavailable_reason()
needs_wall = pytest.mark.skipif(LACK is not None, reason=f"no wall here: {LACK}")

AGENT = """\
import json, os, sys, time
from pathlib import Path
text, step = sys.stdin.read(), os.environ["SEQUENCER_STEP"]
result = Path(os.environ["SEQUENCER_RESULT"])
def others():
    for folder in result.parent.parent.iterdir():
        if folder != result.parent:
            yield folder / "result.json"
def wait(found):
    end = time.monotonic() + 30
    while not found() and time.monotonic() < end:
        time.sleep(0.01)
if step == "review":
    # Until the other one has done its work.
    wait(Path("forged").exists)
    print("no")
if step == "build":
    # The names of folders are no secret, as root or not.
    wait(lambda: list(others()))
    for path in others():
        path.write_text(json.dumps({"status": "ok", "output": "yes"}))
    Path("forged").touch()
"""
FLOW = """\
---
id: f
---

```mermaid
flowchart TD
 s[S] --> review[R] & build[B]
 review --> ok{OK?}
 ok -->|no| n((N))
 ok -->|yes| y((Y))
```

### s
Start.

### review
Review.

### build
Build.
"""
ENTRY = {"kind": "command", "argv": ["{python}", "-IS", "agent.py"]}
SETTINGS = {"agent": {"default": "script"}, "agents": {"script": ENTRY}}


def project(folder: Path, **entry: str) -> Path:
    settings = {**SETTINGS, "agents": {"script": {**ENTRY, **entry}}}
    (folder / "orchestration.yaml").write_text(json.dumps(settings))
    (folder / "agent.py").write_text(AGENT)
    (folder / "f.md").write_text(FLOW)
    return folder


@needs_wall
def test_a_forged_result_file_does_not_decide_the_path(tmp_path: Path) -> None:
    made = project(tmp_path)
    ran = cli(made, "run", "f.md", "--max-parallel", "4")
    assert ran.returncode == 0, ran.stderr
    assert (made / "forged").exists(), "it was not tried"
    history = cli(made, "--run", "f", "history", "--json").stdout.splitlines()
    begun = {fact["step"] for fact in map(json.loads, history)}
    assert "n" in begun
    assert "y" not in begun
    (log,) = made.glob("logs/**/*review*.log")
    assert "the result file is ignored" in log.read_text()


def test_without_a_wall_nothing_works_beside_the_decision(tmp_path: Path) -> None:
    made = project(tmp_path, wall="none")
    agent = AGENT.replace('wait(Path("forged").exists)', "pass").replace(
        "wait(lambda: list(others()))", "pass"
    )
    (made / "agent.py").write_text(
        f"{agent}\nopen('order', 'a').write('end ' + step + '\\n')\n".replace(
            "def others", "open('order', 'a').write('begin ' + step + '\\n')\ndef others"
        )
    )
    ran = cli(made, "run", "f.md", "--max-parallel", "4")
    assert ran.returncode == 0, ran.stderr
    lines = (made / "order").read_text().splitlines()
    for begun, over in zip(lines[::2], lines[1::2], strict=True):
        if "review" in begun:
            assert over == begun.replace("begin", "end")


def test_exactly_these_commands_run_alongside_agents() -> None:
    program = Verbs()
    found = {
        name
        for name in COMMANDS
        if getattr(program.get_command(click.Context(program), name), "has_secrets", False)
    }
    assert found == {"run", "tick", "start", "worker", "web", "mcp"}


@pytest.mark.slow(sample=1)
@pytest.mark.skipif(sys.platform != "linux", reason="there is no such switch")
@pytest.mark.parametrize(
    ("arguments", "variables", "is_dumpable"),
    [
        ("run --max-steps 1", {}, 0),
        ("tick", {}, 0),
        ("status", {}, 1),
        # An agent's own: it has nothing that the agent lacks.
        ("run --dry-run", {"SEQUENCER_TOKEN": "3"}, 1),
    ],
)
def test_only_root_can_read_secrets_of_commands_alongside_agents(
    tmp_path: Path, arguments: str, variables: dict[str, str], is_dumpable: int
) -> None:
    settings = {**SETTINGS, "steps": [{"name": "a", "text": "x"}]}
    (tmp_path / "orchestration.yaml").write_text(json.dumps(settings))
    (tmp_path / "agent.py").write_text("")
    script = (
        "import ctypes\nfrom sequencer.cli.program import run\n"
        f"run({arguments.split()!r})\n"
        "print('dumpable', ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(**variables) | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == f"dumpable {is_dumpable}", done.stderr
