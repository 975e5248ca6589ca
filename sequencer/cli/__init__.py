"""The command line: `main` is what ``sequencer`` and ``python -m sequencer`` call.

Nothing but the standard library is imported before it is clear that more is needed: a
timer asks every minute whether anything is due, and mostly nothing is.
"""

from __future__ import annotations

import gc
import sys

_OBJECTS = 100_000
"""New objects after which Python looks for garbage; its own 700 cost a command a sixth of its time,
because loading the program makes many objects and next to no garbage."""


def main() -> None:
    """Run the command line with this process's arguments and exit with its code."""
    from sequencer.cli import idle  # noqa: PLC0415 - see the module's docstring

    arguments = sys.argv[1:]
    if idle.answers(arguments):
        sys.exit(0)
    gc.set_threshold(_OBJECTS)
    from sequencer.cli.program import run  # noqa: PLC0415

    sys.exit(run(arguments))
