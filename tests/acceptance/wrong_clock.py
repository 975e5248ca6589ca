"""A wall clock that a test moves, for what is called in its own process."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

DAY_S = 24 * 60 * 60
_now = time.time
Later = Callable[[float], None]


def mover(monkeypatch: pytest.MonkeyPatch, unit_s: float = 1.0) -> Later:
    """Return what moves the clock that many units after now; the times of a run stay true."""

    def move(units: float) -> None:
        monkeypatch.setattr(time, "time", lambda: _now() + units * unit_s)

    return move
