"""The parts of a project, each kind in a registry, and what other packages add to these."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any


def plugin(group: str, name: str) -> Any | None:
    """Return the object of the entry point *name* in *group*, or None if there is none."""
    found = next(iter(entry_points(group=group, name=name)), None)
    return None if found is None else found.load()


def plugin_names(group: str) -> set[str]:
    """Return the names of the entry points in *group*."""
    return {entry.name for entry in entry_points(group=group)}
