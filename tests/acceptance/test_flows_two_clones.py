"""A flowchart whose nodes commit code, worked on in two clones by two processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, until
from tests.acceptance.two_clones import IDENTITY, ended, none_left, shared_project, start
from tests.clones import Shared, git

NODE = """\
import os, subprocess, sys, time
name, folder = os.environ["SEQUENCER_STEP"], os.path.basename(os.getcwd())
sys.stdin.read()
def note(what):
    with open("../log", "a") as file:
        file.write(f"{what} {name} {folder}\\n")
note("began")
def wait(reason):
    deadline = time.monotonic() + 120
    while reason() and time.monotonic() < deadline:
        time.sleep(0.02)
if name == "long":
    wait(lambda: os.path.exists("../hold"))
    if os.path.exists("../together"):
        wait(lambda: not os.path.exists("short.txt"))
if name == "short" and os.path.exists("../together"):
    wait(lambda: "began long" not in open("../log").read())
missing = {"join": {"long.txt", "short.txt"}}.get(name, set()) - set(os.listdir())
if missing:
    sys.exit(f"{name} needs the code of all before it, and has no {missing}")
with open(f"{name}.txt", "w") as file:
    file.write(f"{folder}\\n")
subprocess.run(["git", "add", f"{name}.txt"], check=True)
subprocess.run(["git", "commit", "-qm", name], check=True)
note("ended")
"""
CONFIGURATION = f"""\
workflow: {{name: standard}}
store: {{kind: git, retry_for_s: 0, poll: {{fast_s: 0.1, slow_s: 1}}}}
agent: {{default: script}}
agents:
  script:
    kind: command
    argv: ["{{python}}", -IS, ../node.py]
    pass_env: [{", ".join(IDENTITY)}]
"""
Begin = Callable[..., subprocess.Popen[str]]
NAMES = ("begin", "long", "short", "join")


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    (tmp_path / "node.py").write_text(NODE)
    sections = "\n".join(f"### {name}\n\n{name}\n" for name in NAMES)
    chart = "begin --> long & short --> join"
    (tmp_path / "flow.md").write_text(f"```mermaid\nflowchart TD\n{chart}\n```\n\n{sections}")
    return shared_project(tmp_path, CONFIGURATION)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start work on the flow in a clone; what still works at the end is ended."""
    with none_left() as made:

        def begin(clone: str, *options: str) -> subprocess.Popen[str]:
            made.append(start(tmp_path / clone, "run", str(tmp_path / "flow.md"), *options))
            return made[-1]

        yield begin


def log(folder: Path) -> list[list[str]]:
    """Return what the nodes did: began or ended, which one, in which clone."""
    path = folder / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def until_it_waits(process: subprocess.Popen[str]) -> str:
    """Read what *process* says until it waits for the long node; return it."""
    said, pipe = "", process.stdout
    assert pipe is not None
    while "'long' runs in another process" not in said:
        line = pipe.readline()
        assert line, said
        said += line
    return said


def done(clone: Path) -> list[str]:
    assert (
        cli(clone, "--run", "flow", "sync", "--fetch", timeout_s=60.0, **IDENTITY).returncode == 0
    )
    told = cli(clone, "--run", "flow", "history", "--json", timeout_s=60.0, **IDENTITY).stdout
    facts = map(json.loads, told.splitlines())
    return [fact["step"] for fact in facts if fact["event"] == "succeeded"]


def ensure_whole(shared: Shared, folder: Path) -> None:
    """Ensure that each node was run once, and that main has the code of all, as the state says."""
    for name in "ab":
        assert sorted(done(folder / name)) == sorted(NAMES)
    began = [name for event, name, _ in log(folder) if event == "began"]
    assert sorted(began) == sorted(NAMES)
    assert sorted(git(shared.bare, "log", "--format=%s", "-4", "main").split()) == sorted(NAMES)
    held = git(shared.bare, "ls-tree", "--name-only", "main").split()
    assert {f"{name}.txt" for name in NAMES} <= set(held)
    branches = git(shared.bare, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
    assert [name for name in branches if name.startswith("sequencer-kept")] == []
    assert branches.count("main") == 1


@pytest.mark.slow
def test_branches_that_both_commit_run_one_after_the_other(
    shared: Shared, tmp_path: Path, begin: Begin
) -> None:
    """One has the long node, and the other one does not begin the short one beside it."""
    (tmp_path / "hold").touch()
    first = begin("a", "--max-parallel", "1", "--max-steps", "2")
    until(lambda: ["began", "long", "a"] in log(tmp_path), 90)
    second = begin("b", "--max-parallel", "1")
    said = until_it_waits(second)
    assert [entry for entry in log(tmp_path) if entry[2] == "b"] == []
    (tmp_path / "hold").unlink()
    status, told = ended(first)
    assert status == 0, told
    status, told = ended(second)
    assert status == 0, said + told
    assert [entry[2] for entry in log(tmp_path)] == [*"aaaa", *"bbbb"]
    ensure_whole(shared, tmp_path)


@pytest.mark.slow
def test_branches_run_side_by_side_in_one_clone_while_another_waits(
    shared: Shared, tmp_path: Path, begin: Begin
) -> None:
    """Each of the two branches waits for the other; one after the other they would not end."""
    (tmp_path / "together").touch()
    (tmp_path / "hold").touch()
    first = begin("a")
    until(lambda: ["ended", "short", "a"] in log(tmp_path), 90)
    second = begin("b")
    until_it_waits(second)
    (tmp_path / "hold").unlink()
    results = [ended(first), ended(second)]
    assert [status for status, _ in results] == [0, 0], results
    ensure_whole(shared, tmp_path)
    lines = log(tmp_path)
    assert lines.index(["began", "long", "a"]) < lines.index(["ended", "short", "a"])
    assert lines.index(["ended", "short", "a"]) < lines.index(["ended", "long", "a"])
    newest = git(shared.bare, "rev-parse", "main")
    state = json.loads(git(shared.bare, "show", "sequencer/flow:state.json"))
    assert state["work"] == {"branch": "main", "commit": newest}
