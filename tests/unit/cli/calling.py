"""The command line called in this process, and projects for it to work on."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequencer.cli import idle
from sequencer.cli.program import run
from sequencer.store.user_state import user_state_path

CONFIGURATION = """\
workflow: {name: review_cadence, review_every_n: 2}
agent: {default: rehearsal}
"""

BUG = 70
"""The exit code of an error that is no user's mistake."""


@dataclass(frozen=True)
class Called:
    """What one call said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(folder: Path, *arguments: str) -> Called:
    """Run ``sequencer ARGUMENTS`` in *folder*."""
    # With a buffer: some commands write bytes to it.
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(arguments))
    finally:
        os.chdir(before)
    called = Called(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
    assert code != BUG, called.err
    return called


def list_verbs() -> list[str]:
    """Return all commands that `help all` lists."""
    groups = call(Path(__file__).parent, "help", "all").out.partition("\nStart:\n")[2]
    lines = groups.partition("\nOptions:\n")[0].splitlines()
    names = [line.split()[0] for line in lines if re.match("  [^ ]", line)]
    assert {"run", "status", "answer"} <= set(names), names
    return names


def project(folder: Path, configuration: str = CONFIGURATION, *prompts: str) -> Path:
    """Make a project whose agent is a rehearsal."""
    (folder / "prompts").mkdir(parents=True)
    for name in prompts or ("supervisor.md", "main.md", "reviewer.md"):
        (folder / "prompts" / name).write_text(f"# {name}\n")
    (folder / "orchestration.yaml").write_text(configuration)
    return folder


def state(folder: Path) -> dict[str, Any]:
    """Return the content of the default run's state.json."""
    found: dict[str, Any] = json.loads((folder / "sync" / "state.json").read_text())
    return found


def worked(folder: Path, steps: int) -> Path:
    """Make a project and run *steps* steps in it."""
    project(folder)
    if steps:
        ended = call(folder, "run", "--max-steps", str(steps), "--quiet")
        assert ended.code == 0, ended.err
    return folder


def idle_record(folder: Path, run: str = "") -> Path:
    """Return where the answers of idle ticks in *folder* are kept."""
    sync = Path(os.path.realpath(folder), "sync", *(("runs", run) if run else ()))
    return user_state_path("ticks", idle.record_name(sync / "state.json"))
