"""Real processes under a wall clock of another day; every other clock and every wait is real.

libfaketime bends ``clock_nanosleep`` as well, by which Python sleeps; this bends three
functions. It needs a C compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_SOURCE = """\
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    const char *text = getenv("WALL_CLOCK_SHIFT_S");
    return text == NULL ? 0 : atol(text);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    long failed = syscall(SYS_clock_gettime, id, at);
    if (failed == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += shift();
    return (int)failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""
_ASK = "import time; print(int(time.time()), int(time.monotonic()))"


def library(folder: Path) -> Path | None:
    """Return the library, made in *folder*; None: it can't be made or does not work here."""
    compiler = shutil.which("cc") if sys.platform == "linux" else None
    if compiler is None:
        return None
    source, made = folder / "wall_clock.c", folder / "wall_clock.so"
    source.write_text(_SOURCE)
    argv = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(source)]
    if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        return None
    return made if _works(made) else None


def variables(path: Path, shift_s: int) -> dict[str, str]:
    """Return what makes a process' wall clock wrong by *shift_s* seconds."""
    return {"LD_PRELOAD": str(path), "WALL_CLOCK_SHIFT_S": str(shift_s)}


def _works(path: Path) -> bool:
    """Return whether the wall clock, and no other one, is a day ahead under it."""
    day, told = 86_400, []
    for shift_s in (0, day):
        asked = subprocess.run(
            [sys.executable, "-c", _ASK],
            env=variables(path, shift_s),
            capture_output=True,
            text=True,
            check=False,
        )
        told.append([int(word) for word in asked.stdout.split()])
    (wall, real), (ahead, same) = told
    return abs(ahead - wall - day) < 60 and abs(same - real) < 60
