"""The installed command as a child process, and what it must never say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequencer import SequencerError, open_project
from tests.forked import Forked

LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int | None
    """None: it hung and was killed."""
    out: str
    err: str

    def wrong(self, *codes: int) -> str:
        """Return what is wrong with it; nothing if it ended with one of *codes*, in words."""
        if self.code is None:
            return "hung"
        if "Traceback" in self.err or "this is a bug" in self.err:
            return f"a bug: {self.err[-600:]}"
        if self.code not in codes:
            return f"exit code {self.code}: {self.err[-300:]}"
        if self.code == 3 and len((self.out + self.err).strip().splitlines()) < 2:
            return f"no word about what to do: {self.err}"
        return ""


def environment(**variables: str) -> dict[str, str]:
    """Return this process's variables without the program's own, and with *variables*."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SEQUENCER_")}
    return {**clean, "PYTHONDONTWRITEBYTECODE": "1", "SEQUENCER_TRUST": "all", **variables}


def argv_of(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sequencer", *arguments]


def sequencer(
    folder: Path,
    *arguments: str,
    limit_s: float = LIMIT_S,
    before: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run ``sequencer ARGUMENTS`` in *folder*, by way of *before*, with more *variables*."""
    process = Forked(
        [*before, *argv_of(*arguments)],
        cwd=folder,
        env=environment(**(variables or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return Ended(None, out, err)
    return Ended(process.returncode, out, err)


def project(folder: Path, *outcomes: dict[str, Any], **settings: Any) -> Path:
    """Make a project of two steps in a cycle whose agent plays *outcomes*."""
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    for name in ("supervisor", "main"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do the work of {name}.\n")
    document = {
        "workflow": {"name": "standard"},
        "agent": {"default": "canned"},
        "agents": {
            "canned": {"kind": "scripted", "outcomes": list(outcomes) or [{"status": "ok"}]}
        },
        **settings,
    }
    # YAML holds JSON.
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    return folder


def facts(folder: Path, variables: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the history of the run in the project *folder*, read by this process.

    A history that can't be read is one fact that no check takes for right.
    """
    try:
        run = open_project(folder, environment=variables or {}).run()
        if not (told := list(run.history())):
            # That there is none is believed only of a run that has no state.
            run.view()
    except SequencerError as error:
        said = {"output": f"history: {error.exit_code} {error}"}
        return [{"event": "succeeded", "step_index": -1, "token": -1, "outcome": said}]
    return told


def accepted(told: list[dict[str, Any]]) -> list[int]:
    """Return the step indexes that were accepted, in their order."""
    return [fact["step_index"] for fact in told if fact["event"] == "succeeded"]
