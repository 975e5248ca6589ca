"""What is fair: between two moves of a run all others that can move have."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple


class Look(NamedTuple):
    """A moment: which runs could have moved, and which one did."""

    able: frozenset[str]
    moved: str | None


def waited_too_long(looks: list[Look]) -> list[str]:
    """Return which runs could move all the time from one move of another run to its next."""
    found = []
    for name in {look.moved for look in looks} - {None}:
        for first, second in pairwise(at for at, look in enumerate(looks) if look.moved == name):
            between = looks[first + 1 : second + 1]
            could = frozenset.intersection(looks[first].able, *(look.able for look in between))
            had = {look.moved for look in between}
            found += [f"{one} waits while {name} moves twice" for one in sorted(could - had)]
    return found
