"""The end of a step that takes longer than its lease, to be collected or to be pushed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_process import until
from tests.acceptance.two_clones import IDENTITY, TWO_NODES, ended, none_left, shared_project, start
from tests.clones import Shared, git

LEASE_S, SLOW_S = 2, 5
AGENT = """\
import os, sys
sys.stdin.read()
with open("../log", "a") as file:
    file.write(os.path.basename(os.getcwd()) + "\\n")
with open("made.txt", "a") as file:
    file.write("made\\n")
open("../slow", "w").close()
"""
CONFIGURATION = f"""\
workflow: {{name: standard}}
store: {{kind: git, ttl_s: {LEASE_S}, retry_for_s: 30, poll: {{fast_s: 0.1, slow_s: 0.5}}}}
commit: {{paths: ["*.txt"]}}
agent: {{default: script}}
agents:
  script:
    kind: command
    argv: ["{{python}}", -IS, ../agent.py]
    pass_env: [{", ".join(IDENTITY)}]
"""
SLOW = "if test -e {slow}; then rm {slow}; touch {begun}; sleep {s}; fi"
"""Once, behind the first agent; heartbeats come through meanwhile."""
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "flow.md").write_text(TWO_NODES)
    return shared_project(tmp_path, CONFIGURATION)


@pytest.fixture
def begin(shared: Shared) -> Iterator[Begin]:
    """Start work in a clone; what still works at the end is ended."""
    with none_left() as made:

        def begin(clone: str, *arguments: str) -> subprocess.Popen[str]:
            made.append(start(shared.clone(clone), *arguments))
            return made[-1]

        yield begin


def slow_push(shared: Shared, slow: str) -> None:
    """Let the remote take its time for the first push with code in it."""
    hook = shared.bare / "hooks" / "update"
    hook.write_text(f'#!/bin/sh\ncase "$1" in refs/heads/main) {slow};; esac\n')
    hook.chmod(0o755)


def slow_collect(shared: Shared, slow: str) -> None:
    """Let git take its time to read the first file that an agent has left."""
    clone = shared.clone("a")
    (clone / ".git" / "info").mkdir(exist_ok=True)
    (clone / ".git" / "info" / "attributes").write_text("made.txt filter=slow\n")
    git(clone, "config", "filter.slow.clean", f"sh -c '{slow}; cat'")


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(("make", "kind"), [(slow_push, "loop"), (slow_collect, "flow")])
def test_no_one_takes_over_a_step_that_is_being_recorded(
    make: Callable[[Shared, str], None], kind: str, shared: Shared, tmp_path: Path, begin: Begin
) -> None:
    begun = tmp_path / "begun"
    make(shared, SLOW.format(slow=tmp_path / "slow", begun=begun, s=SLOW_S))
    run = ["run", *([str(tmp_path / "flow.md")] if kind == "flow" else ["--mode", "sync"])]
    first = begin("a", *run, "--max-steps", "1")
    until(begun.exists, 60)
    second = begin("b", *run, "--max-steps", "1")
    status, said = ended(first)
    assert status == 0, said
    status, told = ended(second)
    assert status == 0, told
    assert (tmp_path / "log").read_text().split() == ["a", "b"], "a step was done twice"
    assert git(shared.bare, "show", "main:made.txt").split() == ["made", "made"]
    kept = git(shared.bare, "for-each-ref", "refs/heads/sequencer-kept")
    assert kept == "", "work was thrown away"
