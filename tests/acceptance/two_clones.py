"""A project in two clones of a bare repository, whose steps commit code that the next one needs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.cli_process import launched
from tests.clones import ENVIRONMENT, Shared, copied, git

AGENT = """\
import os, subprocess, sys, time
sys.stdin.read()
index = int(os.environ["SEQUENCER_STEP_INDEX"])
lines = open("code.txt").read().split() if os.path.exists("code.txt") else []
if lines != [str(number) for number in range(index)]:
    sys.exit(f"step {index} needs the code of all before it, and has {lines}")
with open("code.txt", "w") as file:
    file.write("".join(f"{number}\\n" for number in range(index + 1)))
subprocess.run(["git", "add", "code.txt"], check=True)
subprocess.run(["git", "commit", "-qm", f"step {index}"], check=True)
for name in os.environ.get("NOTES", "").split():
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").write(f"{index}\\n")
open("../running", "w").close()
deadline = time.monotonic() + 30
while os.path.exists("../hold") and time.monotonic() < deadline:
    time.sleep(0.02)
"""
IDENTITY = {name: value for name, value in ENVIRONMENT.items() if name.startswith("GIT_")}
"""Of whoever runs the commands, and through git's own variables of the agents too."""


def configuration(extra: str = "", workflow: str = "review_cadence", work: str = "") -> str:
    return f"""\
workflow: {{name: {workflow}}}
store: {{kind: git, retry_for_s: 0, poll: {{fast_s: 0.1, slow_s: 1}}{work}}}
agent: {{default: script}}
agents:
  script:
    kind: command
    argv: ["{{python}}", -IS, agent.py]
    pass_env: [NOTES, {", ".join(IDENTITY)}]
{extra}"""


TWO_NODES = "```mermaid\nflowchart TD\na --> b\n```\n\n### a\n\na\n\n### b\n\nb\n"


@copied
def shared_project(folder: Path, text: str) -> Shared:
    """Make a project on main of a bare repository, with the clones ``a`` and ``b``."""
    shared = Shared(folder)
    first = shared.clone("first")
    (first / "prompts").mkdir()
    for name in ("supervisor", "main", "reviewer"):
        (first / "prompts" / f"{name}.md").write_text(f"# {name}\n")
    (first / "agent.py").write_text(AGENT)
    (first / "orchestration.yaml").write_text(text or configuration())
    git(first, "add", ".")
    git(first, "commit", "-qm", "a project")
    git(first, "push", "-q", "origin", "HEAD:main")
    for name in ("a", "b"):
        shared.clone(name)
    return shared


def start(clone: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start ``sequencer ARGUMENTS`` in *clone*."""
    return launched(
        clone,
        *arguments,
        variables={**IDENTITY, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def none_left() -> Iterator[list[subprocess.Popen[str]]]:
    """Give a list for what is started; what of it still works at the end is ended."""
    made: list[subprocess.Popen[str]] = []
    try:
        yield made
    finally:
        for one in made:
            if one.poll() is None:
                one.kill()
            one.wait()
            if one.stdout is not None:
                one.stdout.close()


def ended(process: subprocess.Popen[str], timeout_s: float = 120.0) -> tuple[int, str]:
    """Return the exit code of *process* and what it said."""
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, said


def code(shared: Shared) -> list[int]:
    """Return what main on the remote holds of the steps' code."""
    return [int(line) for line in git(shared.bare, "show", "main:code.txt", check=False).split()]
