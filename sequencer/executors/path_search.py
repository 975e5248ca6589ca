"""Finds the files whose path matches a pattern such as ``src/**/*.py``.

The pattern comes from a model, so no pattern may be slow. `pathlib` starts a new walk at each
``**``: sixty of them take years. Here one walk tracks the set of reached positions in the pattern,
and enters a folder at most once for each position. So the time is at most the number of entries
multiplied by the length of the pattern, even if links form a circle.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_ANY = "**"


class PathPattern:
    """A pattern for paths below a folder; ``**`` is any number of folders.

    A part also matches names that start with a dot. ``**`` does not follow links, other parts do.
    """

    def __init__(self, text: str) -> None:
        """Read the pattern *text*.

        Raises:
            ValueError: it has no parts, or ``**`` is only a piece of a part.
        """
        parts: list[str] = []
        for part in PurePosixPath(text).parts:
            if _ANY in part and part != _ANY:
                raise ValueError("** has to be a whole part of the path")
            # A second ** matches nothing that the first one does not match.
            if part != _ANY or parts[-1:] != [_ANY]:
                parts.append(part)
        if not parts:
            raise ValueError("it has no parts")
        self._parts = [
            None if part == _ANY else re.compile(fnmatch.translate(part)) for part in parts
        ]
        self._last = len(parts) - 1

    def find_files(
        self, root: Path, may_enter: Callable[[Path], bool], check: Callable[[], None]
    ) -> Iterator[Path]:
        """Yield the matching paths below *root* that are not folders.

        A folder to which *may_enter* says no is left out. *check* is called for each entry, and
        may raise an error to end the search. If several links lead to a folder, its files are
        listed under one of the paths, and under the path without a link if that matches.
        """
        folders, links = [(str(root), self._skip_any({0}))], list[tuple[str, frozenset[int]]]()
        entered: dict[tuple[int, int], set[int]] = {}
        while folders or links:
            # Links come last, so that a path without a link is the one that is listed.
            path, positions = folders.pop() if folders else links.pop()
            with suppress(OSError):
                status = os.stat(path)  # noqa: PTH116 - strings, because there may be many
                known_positions = entered.setdefault((status.st_dev, status.st_ino), set())
                positions -= known_positions
                if not positions or not may_enter(Path(path)):
                    continue
                known_positions |= positions
                with os.scandir(path) as entries:
                    for entry in entries:
                        check()
                        if not _is_folder(entry):
                            if self._is_match(entry.name, positions):
                                yield Path(entry.path)
                        elif below := self._step_into(entry, positions):
                            (links if entry.is_symlink() else folders).append((entry.path, below))

    def _step_into(self, entry: os.DirEntry[str], positions: frozenset[int]) -> frozenset[int]:
        """Return the positions that are reached inside the folder *entry*."""
        reached: set[int] = set()
        for position in positions:
            regex = self._parts[position]
            if regex is None:
                if not entry.is_symlink():
                    reached.add(position)
            elif position < self._last and regex.match(entry.name):
                reached.add(position + 1)
        return self._skip_any(reached)

    def _skip_any(self, positions: set[int]) -> frozenset[int]:
        """Return *positions* and those after a ``**``, which may match no folder at all."""
        skipped = {
            position + 1
            for position in positions
            if position < self._last and self._parts[position] is None
        }
        return frozenset(positions | skipped)

    def _is_match(self, name: str, positions: frozenset[int]) -> bool:
        regex = self._parts[self._last]
        return self._last in positions and (regex is None or regex.match(name) is not None)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
