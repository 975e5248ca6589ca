"""Real processes under a wrong clock, by the libfaketime of the package with that name.

Only the wall clock is wrong. Nobody can set the monotonic clock or the one since boot, and
what this library makes of those is no clock at all: a wait of half a second takes ten.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

SHARED = Path("/dev/shm")  # noqa: S108 (where the library shares its clock, by name)
_LIBRARY = "vendor/libfaketime/src/libfaketime.so.1"
_ASK = "import time; print(time.time(), time.clock_gettime(7), time.monotonic())"
"""7 is the clock since boot on Linux."""


@cache
def library() -> Path | None:
    """Return the library, if it is installed and works on this machine."""
    found = importlib.util.find_spec("libfaketime") if sys.platform == "linux" else None
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / _LIBRARY
    return path if path.exists() and _works(path) else None


def _works(path: Path) -> bool:
    """Return whether the wall clock, and no other one, is an hour ahead under it."""
    real, faked = (_clocks({}), _clocks(variables(path, "+1h")))
    if len(real) != len(faked) or not real:
        return False
    ahead = [there - here for here, there in zip(real, faked, strict=True)]
    return 3_500 < ahead[0] < 3_700 and all(0 <= difference < 60 for difference in ahead[1:])


def _clocks(extra: dict[str, str]) -> list[float]:
    asked = subprocess.run(
        [sys.executable, "-c", _ASK],
        env={**os.environ, **extra},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return [float(word) for word in asked.stdout.split()]


def forget(pid: int) -> None:
    """Remove what the library has shared for the process *pid*; one that is killed leaves it."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        (SHARED / name).unlink(missing_ok=True)


def variables(path: Path, offset: str) -> dict[str, str]:
    """Return what makes a process' wall clock wrong by *offset*, as ``+1h`` or ``-10y``."""
    return {**_COMMON, "LD_PRELOAD": str(path), "FAKETIME": offset}


def following(path: Path, file: Path) -> dict[str, str]:
    """Return what makes a process' wall clock wrong by the offset that *file* holds, always."""
    return {**_COMMON, "LD_PRELOAD": str(path), "FAKETIME_TIMESTAMP_FILE": str(file)}


_COMMON = {
    "DONT_FAKE_MONOTONIC": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    # Else a change of the file is seen after ten seconds.
    "FAKETIME_NO_CACHE": "1",
    "NO_FAKE_STAT": "1",
}
