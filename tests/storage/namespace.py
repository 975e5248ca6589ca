"""Run a part of a campaign where it may mount file systems that nobody else sees.

The mounts go with the process, however it ends. Needs ``unshare`` and ``mount`` of
util-linux, and either root or a kernel that gives user namespaces to everybody.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.long.report import Report, Size

ROOT = Path(__file__).parents[2]
WAYS = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])


@cache
def way() -> tuple[str, ...]:
    """Return the command that gives a mount namespace; empty if this machine gives none."""
    for command in WAYS:
        try:
            probe = [*command, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
            if subprocess.run(probe, capture_output=True, timeout=10, check=False).returncode == 0:
                return tuple(command)
        except OSError:
            continue
    return ()


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def in_namespace(module: str, folder: Path, size: Size) -> Report:
    """Run ``python -m MODULE FOLDER SIZE`` in a mount namespace; its last line is a report."""
    if not way():
        return Report({"inputs": 0}, (), {"skipped_because_nothing_can_be_mounted_here": 1})
    ended = subprocess.run(
        [*way(), sys.executable, "-m", module, str(folder), size],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    told = json.loads(ended.stdout.splitlines()[-1])
    return Report(told["counts"], tuple(told["violations"]), told["figures"])
