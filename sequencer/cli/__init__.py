"""The command line: `main` is what ``sequencer`` and ``python -m sequencer`` call.

Only the standard library is imported until more is needed: a timer asks every minute whether
a step is due, and usually none is.
"""

from __future__ import annotations

import gc
import sys

_GC_THRESHOLD = 100_000
"""Number of new objects that triggers a garbage collection. With Python's default of 700, a command
takes 5% longer, because loading the program creates many objects and almost no garbage. A run of
6,000 steps uses 31 MiB either way."""


OLDEST = (3, 11)
"""Same as in pyproject.toml. With an older Python, people see one sentence and no traceback."""
USAGE = 2
INTERRUPTED = 130
"""Exit codes, the same as in `errors`, which may not be loaded yet."""


def main() -> None:
    """Run the command line with this process's arguments and exit with its code."""
    try:
        _main()
    except KeyboardInterrupt:
        # Ctrl-C while the program was loading: no work has started.
        sys.exit(INTERRUPTED)


def _main() -> None:
    """Run the command line; answer an idle ``tick`` without loading the program."""
    if sys.version_info[:2] < OLDEST:
        version = f"{sys.version_info[0]}.{sys.version_info[1]} at {sys.executable}"
        sys.stderr.write(f"error: sequencer needs Python 3.11 or newer, but this is {version}\n")
        sys.exit(USAGE)
    arguments = sys.argv[1:]
    if "tick" in arguments:
        from sequencer.cli import idle  # noqa: PLC0415 - see the module's docstring

        if idle.try_answer(arguments):
            sys.exit(0)
    gc.set_threshold(_GC_THRESHOLD)
    from sequencer.cli.program import exit_process, run  # noqa: PLC0415

    code = run(arguments)
    temporal = sys.modules.get("sequencer.plugins.temporal.connection")
    if temporal is not None and temporal.Connection.is_open:
        # Its threads may abort the interpreter during shutdown, and the exit code would be lost.
        exit_process(code)
    sys.exit(code)
