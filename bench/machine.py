"""Which machine the figures are from."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def describe_machine(folder: Path) -> dict[str, Any]:
    """Return what a reader needs to judge figures that were measured in *folder*."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "filesystem": filesystem_of(folder),
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def filesystem_of(folder: Path) -> str:
    """Return the type of the file system that *folder* is on.

    On ``tmpfs`` a durable write costs nothing, and the figures mean nothing.
    """
    found, longest = "unknown", -1
    resolved = folder.resolve()
    for line in _lines("/proc/self/mounts"):
        _, mount, kind, *_ = line.split()
        place = Path(mount.replace("\\040", " "))
        if resolved.is_relative_to(place) and len(place.parts) >= longest:
            found, longest = kind, len(place.parts)
    return found


def _cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
