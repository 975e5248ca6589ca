"""Whether a process of the product claims at a head of the models: a real run says so."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from functools import cache

from sequencer import Run, commands
from sequencer.errors import ClaimHeld, TransitionRefused
from sequencer.testing import ScratchProject
from tests.property.amounts import in_memory

HOLDER_THAT_DIES = """
import os
import sys
from sequencer import open_run

with open_run(sys.argv[1], environment={}, trust=True).turn():
    os._exit(0)
"""


@cache
def claims(step: int, steps: int, *, is_running: bool, takes_over: bool) -> bool:
    """Return whether a process claims at *step* of a procedure with so many *steps*.

    Any claim may be believed to be expired at any moment, so one that *is_running* is gone for
    a process that *takes_over*.
    """
    procedure = {"kind": "procedure", "steps": [f"s{number}" for number in range(steps)]}
    with in_memory() as folder, ExitStack() as holder:
        project = ScratchProject(folder, {"workflow": "w", "workflows": {"w": procedure}})
        run = project.run()
        run.commands.begin()
        for _ in range(step):
            run.do(commands.Accept())
        if is_running and takes_over:
            # Of a process that is gone, so that nobody has to wait for the end of its lease.
            argv = [sys.executable, "-c", HOLDER_THAT_DIES, str(folder)]
            subprocess.run(argv, check=True, timeout=60)
        elif is_running:
            holder.enter_context(run.turn())
        head = run.head
        assert head is not None
        assert (head.step_index, len(head.claims)) == (step, int(is_running))
        return _is_granted(project.run())


def _is_granted(run: Run) -> bool:
    try:
        with run.turn():
            return True
    except ClaimHeld as held:
        if held.hint != "Run.turn(wait=True) waits for it":
            raise  # the store has refused: a process that decides well does not even ask it
        return False
    except TransitionRefused:
        return False
