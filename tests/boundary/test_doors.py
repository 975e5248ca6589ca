"""Each door by which people decide, tried by a real agent that wants to look like a person."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, environment
from tests.boundary.doors import DOORS
from tests.forked import Forked

ROOT = Path(__file__).parents[2]
CHART = """\
---
id: f
---

```mermaid
flowchart TD
 s[S] --> a[A]
 a --> z((Z))
{questions}
```

### s
Begin.

### a
Decide.
"""
AGENT = """\
import json, os, subprocess, sys, time
if os.environ["SEQUENCER_STEP"] == "a":
    way = json.load(open("way.json"))
    subprocess.Popen(["sh", "-c", way["script"], "sh", *way["argv"]]).wait()
    until = time.monotonic() + 90
    while not os.path.exists("said.json") and time.monotonic() < until:
        time.sleep(0.05)
print("done")
"""
UNSET = 'env -i PATH="$PATH" HOME="$HOME" XDG_STATE_HOME="$XDG_STATE_HOME" '
WAYS = {
    "nothing": ('exec "$@"', tuple(DOORS)),
    "an empty mark": ('SEQUENCER_TOKEN= exec "$@"', ("library",)),
    "an orphan in a session of its own, without variables": (
        f'setsid {UNSET}"$@" &',
        ("command", "web"),
    ),
    "another pid namespace": (f'exec {UNSET}unshare -Urpf "$@"', ("library", "web")),
}
"""How an agent calls a door, and at which doors: all decide by the one question who asks."""


def has_namespaces() -> bool:
    has_program = shutil.which("unshare") is not None
    return has_program and not subprocess.run(["unshare", "-Urpf", "true"], check=False).returncode


@pytest.fixture
def project(tmp_path: Path) -> Path:
    questions = "".join(
        f" s --> {door}{{{{Publish by {door}?}}}}\n {door} -->|yes| {door}y((Y))\n"
        f" {door} -->|no| {door}n((N))\n"
        for door in DOORS
    )
    (tmp_path / "f.md").write_text(CHART.replace("{questions}", questions))
    (tmp_path / "agent.py").write_text(AGENT)
    worker = {"kind": "command", "argv": [sys.executable, "agent.py"], "free": True}
    worker["pass_env"] = ["XDG_STATE_HOME", "PYTHONPATH"]
    document = {"agent": "w", "agents": {"w": worker}, "workflows": {"f": "f.md"}}
    (tmp_path / "orchestration.yaml").write_text(json.dumps(document))
    assert cli(tmp_path, "trust", "--yes", XDG_STATE_HOME=str(tmp_path / "state")).returncode == 0
    return tmp_path


@contextmanager
def pages(project: Path) -> Iterator[None]:
    """Serve the pages of *project*, with a key that lies where agents can read it."""
    key = project / "web.token"
    key.write_text("k" * 32)
    key.chmod(0o600)
    command = [sys.executable, "-m", "sequencer", "web", "--no-browser", "--port", "0"]
    with Forked(
        [*command, "--token-file", str(key)],
        cwd=project, env=own(project), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        port = server.stdout.readline().partition("/login")[0].rpartition(":")[2]
        (project / "web.json").write_text(json.dumps({"port": port, "key": "k" * 32}))
        try:
            yield
        finally:
            server.terminate()


def own(project: Path) -> dict[str, Any]:
    state = {"XDG_STATE_HOME": str(project / "state"), "PYTHONPATH": str(ROOT)}
    return environment(**state, SEQUENCER_TRUST="")


def doors(*names: str) -> list[str]:
    program = str(ROOT / "tests" / "boundary" / "doors.py")
    return [sys.executable, program, str(ROOT), "said.json", *names]


def answered(project: Path) -> set[str]:
    """Return the questions of the run that were answered."""
    facts = [
        json.loads(x) for x in cli(project, "--run", "f", "history", "--json").stdout.splitlines()
    ]
    return {fact["step"] for fact in facts if fact["event"] == "answered"}


@pytest.mark.parametrize("way", WAYS)
def test_no_door_mistakes_an_agent_for_a_person(project: Path, way: str) -> None:
    if "namespace" in way and not has_namespaces():
        pytest.skip("no user namespaces here")
    script, names = WAYS[way]
    (project / "way.json").write_text(json.dumps({"script": script, "argv": doors(*names)}))
    with pages(project):
        ran = cli(project, "--run", "f", "run", "f", timeout_s=110, **own(project))
        assert ran.returncode == 4, ran.stderr
    said = json.loads((project / "said.json").read_text())
    assert said.keys() == {*names}
    for door, text in said.items():
        # The pages say it in their own words.
        assert "inside of an agent's step" in text or "An agent sent this request" in text, (
            door, text,
        )  # fmt: skip
    assert answered(project) == set()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")
def test_agent_input_in_a_persons_terminal_counts_as_the_persons(project: Path) -> None:
    """As docs/protocol.md says: what a person's own tmux server starts is not below a guard."""
    with tempfile.TemporaryDirectory() as folder:
        tmux = ["tmux", "-S", f"{folder}/socket", "-f", "/dev/null"]
        script = 'tmux -S "$1" send-keys "$2" Enter'
        argv = [f"{folder}/socket", shlex.join(doors("command"))]
        (project / "way.json").write_text(json.dumps({"script": script, "argv": argv}))
        subprocess.run(
            [*tmux, "new-session", "-d", "sh"], cwd=project, env=own(project), check=True
        )
        try:
            cli(project, "--run", "f", "run", "f", **own(project))
        finally:
            subprocess.run([*tmux, "kill-server"], check=True)
    assert answered(project) == {"command"}


def test_each_door_accepts_a_person(project: Path) -> None:
    """So that what is refused above is refused to the agent."""
    (project / "way.json").write_text(json.dumps({"script": "echo > said.json", "argv": []}))
    cli(project, "--run", "f", "run", "f", **own(project))
    with pages(project):
        subprocess.run(doors(*DOORS), cwd=project, env=own(project), check=True, timeout=110)
    said = json.loads((project / "said.json").read_text())
    assert answered(project) == set(DOORS), said
