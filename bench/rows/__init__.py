"""What is measured, one module a row family; `FAMILIES` is the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from bench.measuring import Effort
from bench.result import Row


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how hard to measure."""

    folder: Path
    """Empty, on the disk that counts, and this family's own."""
    effort: Effort
    with_peers: bool


FAMILIES: Mapping[str, str] = {
    "step": "one accepted, durable step that does nothing, against the floor and the peers",
    "handoff": "from one process's step to the other's, and what waiting costs",
    "tick": "CPU of a whole `sequencer tick` with nothing due",
    "growth": "a step of a long run against one of a young run",
    "resolve": "which step comes at an index",
    "git": "from one clone's step to the other's, through a bare repository",
    "flow": "flowcharts: reading, scheduling, and whole runs, small and large",
    "fleet": "on a Temporal server, beside bare workflows: a step, its history, memory",
    "web": "pages over hundreds of runs, who follows them, and a server at rest",
    "team": "task graphs: the schedule beside its critical path, a task beside the peers'",
}
"""Name of a family -> what it measures; the module has the name of the family."""


def measure(family: str, setting: Setting) -> list[Row]:
    """Return the rows of *family*."""
    function: Callable[[Setting], list[Row]] = import_module(f"bench.rows.{family}").measure
    return function(setting)
