"""Agents of one user at the same time, with a real sequencer: what one can do to another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, environment
from tests.unit.cli.calling import list_verbs

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


def test_a_forged_result_file_does_not_decide_the_path(tmp_path: Path) -> None:
    made = project(tmp_path)
    found = json.loads(cli(made, "check", "--json").stdout)["findings"]
    for lack in (one["message"] for one in found if "there is no wall" in one["message"]):
        pytest.skip(lack)
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


ASKING = """\
import ctypes, json, os, runpy, sys
from tests import forked
forked.import_all()
def ask(words):
    sys.argv = ["sequencer", *words]
    try:
        runpy.run_module("sequencer", run_name="__main__")
    except SystemExit:
        pass
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
with open("dumpable", "w") as answers:
    for words in json.load(sys.stdin):
        if not (pid := os.fork()):
            print(words[0], ask(words), file=answers, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
"""
"""Calls commands, and writes whether other processes of this user may read their memory."""


def dumpable(folder: Path, *commands: str, **variables: str) -> dict[str, int]:
    """Call each of *commands* in *folder*; return what the kernel says at its end, by verb."""
    settings = {**SETTINGS, "steps": [{"name": "a", "text": "x"}]}
    (folder / "orchestration.yaml").write_text(json.dumps(settings))
    (folder / "agent.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", ASKING],
        input=json.dumps([command.split() for command in commands]),
        cwd=folder,
        env=environment(**variables) | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    )
    # A command that was refused for its words has not begun.
    assert "Usage:" not in done.stderr, done.stderr
    lines = (folder / "dumpable").read_text().splitlines()
    return {verb: int(answer) for verb, answer in map(str.split, lines)}


ARGUMENTS = {
    "answer": "approve",
    "demo": "--steps 2 --seconds 0",
    "rewind": "0",
    "run": "--max-steps 1",
    "schedule": "show",
    "set": "exit=false",
    "start": "x",
    "tell": "x",
    "web": "--bind 0.0.0.0",
}
"""What some commands need to begin, and to end soon."""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such switch")
def test_exactly_these_commands_run_alongside_agents(tmp_path: Path) -> None:
    verbs = list_verbs()
    found = dumpable(tmp_path, *(f"{verb} {ARGUMENTS.get(verb, '')}" for verb in verbs))
    assert [*found] == verbs
    alongside = {verb for verb, is_dumpable in found.items() if not is_dumpable}
    assert alongside == {"run", "tick", "start", "worker", "web", "mcp"}


@pytest.mark.slow(sample=1)
@pytest.mark.skipif(sys.platform != "linux", reason="there is no such switch")
@pytest.mark.parametrize(
    ("command", "variables", "is_dumpable"),
    [
        ("run --max-steps 1", {}, 0),
        ("tick", {}, 0),
        ("status", {}, 1),
        # An agent's own: it has nothing that the agent lacks.
        ("run --dry-run", {"SEQUENCER_TOKEN": "3"}, 1),
    ],
)
def test_only_root_can_read_secrets_of_commands_alongside_agents(
    tmp_path: Path, command: str, variables: dict[str, str], is_dumpable: int
) -> None:
    verb = command.split(maxsplit=1)[0]
    assert dumpable(tmp_path, command, **variables) == {verb: is_dumpable}
