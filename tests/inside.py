"""Processes inside of an agent, for tests of what only people decide."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

GUARD = """\
import os, subprocess, sys
os.dup2(int(sys.argv[2]), 1)
sys.exit(subprocess.run(COMMAND).returncode)
"""


def below_a_guard(folder: Path, command: Sequence[str | Path]) -> list[str]:
    """Return the command line that runs *command* below what is called as a guard is.

    It has no mark in its environment: only its command line tells what it is.
    """
    program = folder / "sequencer" / "executors" / "guard.py"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(GUARD.replace("COMMAND", json.dumps([str(word) for word in command])))
    return [sys.executable, "-I", "-S", str(program), "0", "1"]
