"""Medians of interleaved rounds.

A shared machine is slower for seconds at a time. So both sides of a ratio are measured in
turns of a few milliseconds, each turn gives one ratio, and the median of those counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MINIMUM_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a row may do."""

    seconds: float
    """Measuring time of a row, preparation not counted."""
    growth_steps: int
    """Length of the long run."""
    idle_s: float
    """How long a waiting process is watched."""


QUICK = Effort(seconds=4.0, growth_steps=2_000, idle_s=3.0)
FULL = Effort(seconds=20.0, growth_steps=100_000, idle_s=20.0)


def rounds(seconds: float, minimum: int = MINIMUM_ROUNDS) -> Iterator[int]:
    """Count rounds from 0 until *seconds* are over, but at least *minimum*."""
    deadline = time.monotonic() + seconds
    number = 0
    while number < minimum or time.monotonic() < deadline:
        yield number
        number += 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides of one ratio, each with a value a round."""

    ours: float
    other: float
    ratio: float
    """Median of the rounds' ratios, not the ratio of the medians."""
    low: float
    high: float
    """First and third quartile of the rounds' ratios."""
    rounds: int


def compare(ours: Sequence[float], other: Sequence[float]) -> Comparison:
    """Return how *ours* compares with *other*, round by round.

    >>> compare([2.0, 2.0, 8.0], [1.0, 1.0, 4.0]).ratio
    2.0
    """
    ratios = [mine / theirs for mine, theirs in zip(ours, other, strict=True)]
    low, high = quartiles(ratios)
    return Comparison(
        statistics.median(ours),
        statistics.median(other),
        statistics.median(ratios),
        low,
        high,
        len(ratios),
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 4.0)
    """
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third
