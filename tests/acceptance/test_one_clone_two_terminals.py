"""Two terminals work on one run in one clone: never at once, whatever becomes of their claims."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, until
from tests.acceptance.two_clones import IDENTITY, TWO_NODES, ended, none_left, shared_project, start
from tests.clones import Shared, git

AGENT = """\
import os, signal, sys, time
sys.stdin.read()
def note(what):
    with open("../log", "a") as file:
        file.write(f"{what}\\n")
is_first = os.environ.get("FIRST") == "yes" and not os.path.exists("../once")
open("../once", "w").close()
note("first began" if is_first else "second began")
if is_first:
    # It does not listen, so that it takes its time to end, and writes all the while.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deadline = time.monotonic() + 60
    while not os.path.exists("../enough") and time.monotonic() < deadline:
        with open("half.txt", "a") as file:
            file.write("half\\n")
        note("first writes")
        time.sleep(0.05)
    sys.exit(1)
with open("whole.txt", "w") as file:
    file.write("whole\\n")
note("second ended")
"""
CONFIGURATION = f"""\
workflow: {{name: standard}}
store: {{kind: git, retry_for_s: 0, ttl_s: 15, poll: {{fast_s: 0.1, slow_s: 1}}}}
commit: {{paths: ["*.txt"]}}
agent: {{default: script}}
agents:
  script:
    kind: command
    argv: ["{{python}}", -IS, ../agent.py]
    grace_s: 60
    pass_env: [FIRST, {", ".join(IDENTITY)}]
"""
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "flow.md").write_text(TWO_NODES)
    return shared_project(tmp_path, CONFIGURATION)


@pytest.fixture
def begin(shared: Shared) -> Iterator[Begin]:
    """Start work in the one clone; what still works at the end is ended."""
    with none_left() as made:

        def begin(*arguments: str, **variables: str) -> subprocess.Popen[str]:
            made.append(start(shared.clone("a"), *arguments, **variables))
            return made[-1]

        yield begin


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def committed(shared: Shared) -> list[tuple[str, set[str]]]:
    """Return the commits of steps on the remote's main, the newest first, with their files."""
    told = git(shared.bare, "log", "--format=%x01%s", "--name-only", "main")
    found = [one.split("\n") for one in told.split("\x01") if "run " in one]
    return [(lines[0], {name for name in lines[1:] if name}) for lines in found]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("kind", ["loop", "flow"])
def test_a_step_released_by_hand_does_not_start_beside_its_agent(
    kind: str, shared: Shared, tmp_path: Path, begin: Begin
) -> None:
    run = ("run", str(tmp_path / "flow.md")) if kind == "flow" else ("run",)
    named = ("--run", "flow") if kind == "flow" else ()
    first = begin(*run, "--max-steps", "1", FIRST="yes")
    until(lambda: "first writes" in log(tmp_path), 60)
    clone = shared.clone("a")
    told = cli(clone, *named, "takeover", "--force", timeout_s=60.0, **IDENTITY)
    assert told.returncode == 0, told.stdout + told.stderr
    second, said = begin(*run, "--max-steps", "1"), ""
    assert second.stdout is not None
    for line in second.stdout:
        said += line
        if f"agents of process {first.pid} of run" in line:
            # However long it took to come here, they were still at work.
            (tmp_path / "enough").touch()
    assert second.wait(60) == 0, said
    lines = log(tmp_path)
    assert "first writes" not in lines[lines.index("second began") :], "both worked at once"
    assert (tmp_path / "enough").exists(), said
    # Whoever does the step now says what it has found there.
    told_of = said + ended(first)[1]
    assert "continues with what attempt 1 left: 1 changed path, 'half.txt'" in told_of
    assert {"half.txt", "whole.txt"} in [names for _, names in committed(shared)]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("kind", ["loop", "flow"])
def test_the_next_process_starts_after_the_agents_of_a_killed_one(
    kind: str, tmp_path: Path, begin: Begin
) -> None:
    run = ("run", str(tmp_path / "flow.md")) if kind == "flow" else ("run",)
    first = begin(*run, "--max-steps", "1", FIRST="yes")
    until(lambda: "first writes" in log(tmp_path), 60)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    status, said = ended(begin(*run, "--max-steps", "1"))
    assert status == 0, said
    lines = log(tmp_path)
    assert "first writes" not in lines[lines.index("second began") :], "both worked at once"
    assert "or someone changed since" in said
