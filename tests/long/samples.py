"""Campaigns that try nothing, to try out the program that runs them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.long.report import Report, Size


def holds(folder: Path, size: Size) -> Report:
    """Everything holds."""
    print("on the way")
    assert list(folder.iterdir()) == []
    return Report({"rounds": 2 if size is Size.SHORT else 20}, figures={"longest_s": 0.5})


def breaks(folder: Path, size: Size) -> Report:  # noqa: ARG001
    """Two things | do not hold."""
    return Report({"rounds": 1, "kills": 3}, ("seed 1: lost", "seed 2: doubled"))


def raises(folder: Path, size: Size) -> Report:
    """The campaign itself is wrong."""
    message = f"no such file below {folder} for {size}"
    raise FileNotFoundError(message)


def sticks(folder: Path, size: Size) -> Report:  # noqa: ARG001
    """It waits for ever."""
    while True:
        time.sleep(60)


def vanishes(folder: Path, size: Size) -> Report:  # noqa: ARG001
    """The process ends well and says nothing."""
    os._exit(0)
