"""Real processes under a wall clock of another day; the monotonic clock and every wait are real.

libfaketime bends ``clock_nanosleep`` as well, by which Python sleeps; this bends three
functions, and opening files: a machine that was started again has another boot, and one whose
disk is full makes no file. It needs a C compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_SOURCE = """\
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long number(const char *name) {
    const char *text = getenv(name);
    return text == NULL ? 0 : atol(text);
}

static long shift(void) {
    return number("WALL_CLOCK_SHIFT_S");
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    const char *boot = getenv("WALL_CLOCK_BOOT_ID");
    if (boot != NULL && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0)
        path = boot;
    if ((flags & O_CREAT) && number("WALL_CLOCK_FULL_DISK") && strncmp(path, "/dev/", 5) != 0
        && syscall(SYS_faccessat, folder, path, F_OK) != 0) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define MODE(last) \
    mode_t mode = 0; \
    va_list more; \
    va_start(more, last); \
    if (flags & (O_CREAT | __O_TMPFILE)) \
        mode = va_arg(more, mode_t); \
    va_end(more);

int open(const char *path, int flags, ...) {
    MODE(flags)
    return opened(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags)
    return opened(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return opened(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return opened(folder, path, flags, mode);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    long failed = syscall(SYS_clock_gettime, id, at);
    if (failed == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += shift();
    if (failed == 0 && id == CLOCK_BOOTTIME)
        at->tv_sec += number("WALL_CLOCK_BOOT_SHIFT_S");
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


def variables(
    path: Path, shift_s: int, boot: tuple[int, Path] | None = None, *, has_full_disk: bool = False
) -> dict[str, str]:
    """Return what makes a process' wall clock wrong by *shift_s* seconds.

    *boot* is by how much the clock since boot is wrong, and a file with the id of that boot.
    With *has_full_disk* no new file can be made.
    """
    found = {"LD_PRELOAD": str(path), "WALL_CLOCK_SHIFT_S": str(shift_s)}
    if boot is not None:
        found |= {"WALL_CLOCK_BOOT_SHIFT_S": str(boot[0]), "WALL_CLOCK_BOOT_ID": str(boot[1])}
    return {**found, **({"WALL_CLOCK_FULL_DISK": "1"} if has_full_disk else {})}


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
