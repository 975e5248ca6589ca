"""huey as in `huey_step`, whose task leaves what a step leaves: a log and a readable state file.

The files are written as the floor writes them, without a flush of their own.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

from bench.floor import LOG, Floor
from bench.peers import huey_step
from bench.serving import Answer, serve


def begin() -> tuple[dict[str, Any], Answer]:
    """Open a queue in the folder of the first argument."""
    folder = Path(sys.argv[1])
    files = Floor(folder / "files", preallocates=True)
    head, temporary = str(folder / "head"), str(folder / "head.tmp")
    numbers = count(1)

    def step() -> bool:
        create = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_EXCL
        log = os.open(f"{folder}/files/logs/{next(numbers)}", create, 0o644)
        os.write(log, LOG)
        os.close(log)
        files.replace(temporary, head)
        return True

    return huey_step.begin(step, ", a log and a state file")


if __name__ == "__main__":
    serve(begin)
