"""How far a template's path can be followed before there is a run.

Outputs are not known yet, so what stands where a node puts one may be anything, and so may
a text (it may be JSON), and what is declared empty: a run may begin with more there. All
else is written in the file, and a path that leaves it can never have a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sequencer.resolution.templates import MAX_DEPTH, parsed

RUN_STATE: Mapping[str, Any] = {
    "_completed_nodes": (),
    "_current_node": None,
    "_error": {"node": None, "type": None, "message": None, "attempts": None},
    "_iteration_count": 0,
    "_started_at": None,
    "_workflow_id": None,
}
"""What a run sets itself in its state, as far as it has a form."""


class StatePaths:
    """What there will be in the state: what it begins with, and where outputs go."""

    def __init__(self, state: Mapping[str, Any], output_keys: Iterable[str]) -> None:
        """Look into *state*, with outputs at *output_keys*."""
        self._state = {**state, **RUN_STATE}
        self._keys = frozenset(tuple(key.split(".")) for key in output_keys)
        # For each map on the way to an output, what is known to be in it.
        self._above: dict[tuple[str, ...], dict[str, None]] = {}
        for key in self._keys:
            for length in range(len(key)):
                self._above.setdefault(key[:length], {})[key[length]] = None

    def missing(self, path: tuple[str, ...]) -> tuple[str, list[str]] | None:
        """Return the part of *path* that nothing sets, and what there is in its place."""
        if any(path[:length] in self._keys for length in _lengths(path)):
            return None
        here: Any = self._state
        for place, part in enumerate(path):
            outputs = self._above.get(path[:place], {})
            if isinstance(here, Mapping) and part in here:
                here = here[part]
            elif part in outputs:
                here = {}
            elif place and not outputs and _may_become_another(here, part):
                return None
            else:
                return ".".join(path[: place + 1]), _names(here, outputs)
        return None


def missing_below(value: Any, path: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """Return the part of *path* that is not in *value*, which no run changes."""
    here = value
    for place, part in enumerate(path):
        if isinstance(here, str):
            if "{{" in here:
                return None
            try:
                here = parsed(here)
            except KeyError:
                here = None
        if isinstance(here, Mapping) and part in here:
            here = here[part]
        elif isinstance(here, list) and part.isdecimal() and int(part[:MAX_DEPTH]) < len(here):
            here = here[int(part[:MAX_DEPTH])]
        else:
            return ".".join(path[: place + 1]), _names(here, {})
    return None


def _may_become_another(here: Any, part: str) -> bool:
    """Return whether a run may begin with something else, in which there is *part*."""
    if isinstance(here, Mapping):
        return not here
    if isinstance(here, (list, tuple)):
        return not here or part.isdecimal()
    return here is None or isinstance(here, str)


def _names(here: Any, outputs: Mapping[str, None]) -> list[str]:
    known = [*map(str, here)] if isinstance(here, Mapping) else []
    # The author's own keys first: they are what was meant.
    return sorted({*known, *outputs}, key=lambda key: (key in RUN_STATE, key))


def _lengths(path: tuple[str, ...]) -> range:
    return range(1, min(len(path), MAX_DEPTH) + 1)
