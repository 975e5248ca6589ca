"""How many examples a hostile property gets, and a campaign that gives them many more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.scratch_folders import scratch_folder

EXAMPLES = 250
"""For each kind of input that somebody else may make."""
PART = EXAMPLES // 2
"""Where two properties or more look at inputs of one kind."""
RULES = 60
"""For plain rules, whose inputs are no attacker's."""
FEW = 25
"""For what starts processes or opens whole projects."""
FACTOR = "SEQUENCER_TEST_FACTOR"
"""Variable with the number of times that many; the long programme sets it."""
TALLY = "SEQUENCER_TEST_TALLY"
"""Variable with a file that gets a line with the number of examples of each property."""

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
# No database: thousands of files a property, and what failed is printed anyway.
PHASES = [Phase.explicit, Phase.generate, Phase.shrink]


MAX_ROUNDS = 50
"""A kind that is not among so many times the usual examples can't be drawn."""


def for_all(
    check: Callable[..., None],
    *drawn: st.SearchStrategy[object],
    examples: int = EXAMPLES,
    until: Callable[[], bool] = lambda: True,
) -> None:
    """Call *check* with values of *drawn*, which may use the test's own fixtures.

    If *until* says that kinds of examples are missing, draw more: that a kind can be drawn is
    true of the strategies, and how often it is among a few dozen is chance.
    """
    amount = settings(
        max_examples=examples * int(os.environ.get(FACTOR, "1")),
        phases=PHASES,
        suppress_health_check=SLOW,
    )
    tried = count()

    @wraps(check)
    def counted(*values: object, **named: object) -> None:
        next(tried)
        check(*values, **named)

    # Hypothesis calls by name, and looks for the names here.
    counted.__signature__ = signature(check)  # type: ignore[attr-defined]

    rounds = range(MAX_ROUNDS)
    try:
        for _ in rounds:
            amount(given(*drawn)(counted))()
            if until():
                break
        else:
            raise AssertionError(f"{MAX_ROUNDS} rounds had not all kinds of examples")
    finally:
        if TALLY in os.environ:
            with Path(os.environ[TALLY]).open("a", encoding="ascii") as tally:
                tally.write(f"{next(tried)}\n")


@contextmanager
def in_memory() -> Iterator[Path]:
    """Return a folder in memory where there is one: thousands of runs wait for no disk."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made below it
    with scratch_folder(memory if os.access(memory, os.W_OK) else None) as made:
        yield made
