"""``python -m sequencer`` is the same as ``sequencer``."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # `-m` looks for modules in the current folder first: a project's own yaml.py would run.
    # Not promised: the same for a folder called "sequencer" there, which Python imports first.
    # Python before 3.11 has no such flag; `main` reports the old version.
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] == os.getcwd():  # noqa: PTH109 - as Python has it
        del sys.path[0]
    from sequencer.cli import main

    main()
