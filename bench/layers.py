"""Graphs of tasks as plain data, the same for us and for every peer.

Nothing but the standard library: peers read it in interpreters of their own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

Blockers = Mapping[str, tuple[str, ...]]
"""By task the tasks that come before it; a task stands behind all of those."""
WIDTH = 25
BLOCK = 2 * WIDTH
"""Tasks that fan out from one, as many that wait for three of those but one, which gathers."""
BEFORE = 3
SEED = 20_261_122
SLEEPERS, SLEEPERS_WIDTH, SLEEPERS_PLACES = 40, 8, 12
SHORTEST_MS, LONGEST_MS = 50, 400


def blocks(count: int) -> Blockers:
    """Return *count* tasks: again and again one fans out, layers are mixed, one gathers."""
    chance, found = random.Random(SEED), dict[str, tuple[str, ...]]()  # noqa: S311 - no secret
    for number in range(count):
        block, place = divmod(number, BLOCK)
        first = block * BLOCK
        if place < WIDTH:
            before = [first - 1] if block else []
        elif place < BLOCK - 1:
            before = sorted(chance.sample(range(first, first + WIDTH), BEFORE))
        else:
            before = list(range(first + WIDTH, number))
        found[f"t{number}"] = tuple(f"t{other}" for other in before)
    return found


def sleepers() -> tuple[Blockers, dict[str, float]]:
    """Return a layered graph with edges by chance, and how many seconds each task sleeps."""
    chance, found = random.Random(SEED), dict[str, tuple[str, ...]]()  # noqa: S311 - no secret
    for number in range(SLEEPERS):
        layer = number // SLEEPERS_WIDTH
        earlier = range((layer - 1) * SLEEPERS_WIDTH, layer * SLEEPERS_WIDTH) if layer else ()
        before = sorted(chance.sample(earlier, chance.randint(1, BEFORE))) if layer else []
        found[f"s{number}"] = tuple(f"s{other}" for other in before)
    times = {name: chance.randint(SHORTEST_MS, LONGEST_MS) / 1000 for name in found}
    return found, times


def earliest(blockers: Blockers, seconds: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return when each task begins and ends if nothing costs anything and nobody waits for a place.

    >>> earliest({"a": (), "b": ("a",)}, {"a": 1, "b": 2})
    {'a': (0.0, 1.0), 'b': (1.0, 3.0)}
    """
    found: dict[str, tuple[float, float]] = {}
    for name, before in blockers.items():
        begin = max((found[other][1] for other in before), default=0.0)
        found[name] = begin, begin + seconds[name]
    return found


def most_at_once(times: Mapping[str, tuple[float, float]]) -> int:
    """Return how many tasks run at the same moment, at most."""
    begins = [begin for begin, _ in times.values()]
    return max(sum(begin <= now < end for begin, end in times.values()) for now in begins)
