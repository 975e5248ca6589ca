"""Patterns of paths: ``*`` and ``?`` within a name, ``**`` for any number of folders.

A pattern means a path from the project's folder on, or with ``/`` in front from the
repository's; one that ends in ``/`` means everything below a folder. Nothing floats:
``*.md`` is a file of the folder itself, ``**/*.md`` one anywhere below it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

_ANY = None
"""Stands for ``**``."""


class Patterns:
    """Some patterns of one project.

    >>> found = Patterns(["plans/**/*.md", "out/"], "app")
    >>> [found.match(path) for path in ("app/plans/a.md", "app/out/x/y", "plans/a.md")]
    ['plans/**/*.md', 'out/', None]
    """

    def __init__(self, patterns: Iterable[str], prefix: str = "") -> None:
        """Read *patterns*; *prefix* is the project's folder from the repository's on."""
        self._patterns = [(pattern, _compiled(pattern, prefix)) for pattern in patterns]

    def __bool__(self) -> bool:
        """Return whether there is any pattern."""
        return bool(self._patterns)

    def match(self, path: str) -> str | None:
        """Return the first pattern that means *path* (from the repository's folder on)."""
        parts = path.rstrip("/").split("/")
        return next((text for text, parsed in self._patterns if _is_match(parsed, parts)), None)


def _compiled(pattern: str, prefix: str) -> list[re.Pattern[str] | None]:
    if pattern.startswith("/"):
        prefix = ""
    below = pattern.removeprefix("./").strip("/").split("/")
    if pattern.endswith("/"):
        below.append("**")
    literal = [re.compile(re.escape(part)) for part in prefix.split("/") if part]
    return [*literal, *(_part(part) for part in below if part not in ("", "."))]


def _part(part: str) -> re.Pattern[str] | None:
    return _ANY if part == "**" else re.compile(fnmatch.translate(part))


def _is_match(pattern: Sequence[re.Pattern[str] | None], parts: Sequence[str]) -> bool:
    """Match part by part; what was reached so far is a set, so ``**/**/**`` costs no more."""
    reached = {0}
    for part in parts:
        following = set()
        for place in _with_skipped(pattern, reached):
            if place == len(pattern):
                continue
            wanted = pattern[place]
            if wanted is None:
                # At the end it has meant one name at least: `out/**` is not `out` itself.
                following |= {place, place + 1}
            elif wanted.fullmatch(part):
                following.add(place + 1)
        reached = following
    return len(pattern) in reached


def _with_skipped(pattern: Sequence[re.Pattern[str] | None], places: Iterable[int]) -> set[int]:
    """Return *places*, and those behind a ``**`` that means no folder at all."""
    found: set[int] = set()
    for start in places:
        place = start
        found.add(place)
        while place < len(pattern) - 1 and pattern[place] is None:
            place += 1
            found.add(place)
    return found
