"""What holds for all tests, however they are started."""

from __future__ import annotations

import compileall
import gc
import signal
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "sequencer"


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C mean something, and let no command compile the program once more."""
    # A shell starts what it puts in the background deaf to Ctrl-C, and so are its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # With PYTHONDONTWRITEBYTECODE each of hundreds of processes would, for half a second.
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(PACKAGE, quiet=2)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the thousands of tests to be run out of every search for garbage."""
    del session
    gc.collect()
    gc.freeze()
