"""What each command prints in each state of a run: one snapshot of each, to read in a diff.

After a change that is meant: ``pytest tests/acceptance/test_outputs.py --snapshot-update``.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from sequencer.testing import ScratchProject
from tests.acceptance.cli_process import cli

COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "inbox": ("inbox",),
    "history": ("history",),
    "plan": ("plan", "-n", "3"),
    "log": ("log",),
    "check": ("check",),
    "repair": ("repair",),
    "tick, not done": ("tick", "--dry-run"),
    "answer approve": ("answer", "approve"),
}
"""The last one changes the run."""

GATE = {
    "workflow": {"name": "release"},
    "workflows": {
        "release": {
            "kind": "procedure",
            "steps": [
                {"name": "build", "text": "Build it.", "requires_approval": True},
                {"name": "publish", "text": "Publish it."},
            ],
        }
    },
}
FLOW = """\
---
id: release
name: Release
version: 1.0.0
---
# Release

```mermaid
flowchart TD
  build[Build it] --> ask{{Publish it?}}
  ask -->|yes| publish[Publish it]
  ask -->|no| done((Done))
  publish --> done
```

### build
Build it.

### publish
Publish it.
"""


def _cycle(folder: Path, *done: tuple[str, ...], **configuration: object) -> ScratchProject:
    project = ScratchProject(folder, configuration, outcomes=("A plan.", "The work."))
    for arguments in done:
        cli(folder, *arguments)
    return project


def _failed(folder: Path) -> None:
    ScratchProject(
        folder,
        {"limits": {"failures_in_row": 1}},
        outcomes=({"status": "failed", "error": "no network"},),
    )
    cli(folder, "run", "--max-steps", "1")


def _gate(folder: Path) -> None:
    ScratchProject(folder, GATE, outcomes=("It is built.",))
    cli(folder, "run")


def _complete(folder: Path) -> None:
    _gate(folder)
    cli(folder, "answer", "approve")
    cli(folder, "run")


def _question(folder: Path) -> None:
    configuration = {"workflow": "release", "workflows": {"release": "flows/release.md"}}
    ScratchProject(folder, configuration)
    (folder / "flows").mkdir()
    (folder / "flows" / "release.md").write_text(FLOW, encoding="utf-8")
    cli(folder, "run")


def _damaged(folder: Path) -> None:
    _cycle(folder, ("run", "--max-steps", "2"))
    (folder / "sync" / "state.json").write_text("{", encoding="utf-8")
    (journal,) = (folder / "sync").glob("*journal*.jsonl")
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    journal.write_text("".join((*lines[:1], "{}\n", *lines[2:])), encoding="utf-8")


def _changed(folder: Path) -> None:
    _gate(folder)
    steps = [*GATE["workflows"]["release"]["steps"], {"name": "tell", "text": "Tell all."}]  # type: ignore[index]
    ScratchProject(
        folder,
        {**GATE, "workflows": {"release": {"kind": "procedure", "steps": steps}}},
        outcomes=("It is built.",),
    )


STATES: dict[str, Callable[[Path], object]] = {
    "a new project": _cycle,
    "in the middle of a cycle": lambda folder: _cycle(folder, ("run", "--max-steps", "1")),
    "paused": lambda folder: _cycle(folder, ("run", "--max-steps", "1"), ("stop", "--pause")),
    "stopped": lambda folder: _cycle(
        folder, ("run", "--max-steps", "1"), ("stop", "--reason", "Enough for today.")
    ),
    "a limit is reached": lambda folder: _cycle(folder, ("run",), limits={"steps": 1}),
    "a setting is wrong": lambda folder: _cycle(folder, limits={"stpes": 1}),
    "failed for good": _failed,
    "at a gate": _gate,
    "complete": _complete,
    "a flow asks": _question,
    "damaged": _damaged,
    "another definition": _changed,
}


def _plain(text: str, folder: Path) -> str:
    """Return *text* without what differs from one time to the next."""
    text = text.replace(str(folder), "PROJECT")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "TIME", text)
    text = re.sub(r"\b\d\d:\d\d(:\d\d)?\b", "TIME", text)
    # Shown only if it was long enough.
    text = re.sub(r" · (\d+ min )?\d+(\.\d+)? s of work", "", text)
    text = re.sub(r"\b(\d+ min )?\d+(\.\d+)? (s|ms|seconds?|minutes?)\b", "SPAN", text)
    text = re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b[0-9a-f]{8,64}\b", "ID", text)
    text = re.sub(rf"\bby {re.escape(getpass.getuser())}\b", "by USER", text)
    text = re.sub(r"\b\d+ bytes\b|\bbyte \d+", "BYTES", text)
    # Times are right-aligned, so the spaces before them differ as well.
    text = re.sub(r"(?<=\S) {2,}", "  ", text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("state", STATES)
def test_what_is_printed(state: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    STATES[state](tmp_path)
    printed = []
    for arguments in COMMANDS.values():
        ended = cli(tmp_path, *arguments, NO_COLOR="1", COLUMNS="100", USER="ann")
        printed.append(
            f"$ sequencer {' '.join(arguments)}\n{ended.stdout}"
            f"--- stderr, exit code {ended.returncode}\n{ended.stderr}"
        )
    assert _plain("\n".join(printed), tmp_path) == snapshot
