"""What a campaign of faults tells: how much it tried, and what did not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Size(StrEnum):
    """How much a campaign tries: on every push, or in the long programme."""

    SHORT = "short"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one campaign."""

    counts: Mapping[str, int]
    """What was tried, as ``{"kills": 500}``: kills, crash points, inputs, rounds, …"""
    violations: tuple[str, ...] = ()
    """What did not hold, one line each, enough to try it again."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured on the way, the unit in the name, as ``{"take_over_p99_s": 0.4}``."""
    notes: tuple[str, ...] = ()
    """What a reader has to know beside the figures: a tool that is missing, above all."""


class Campaign(Protocol):
    """A function that breaks things below *folder*, which is empty, and looks at the rest."""

    def __call__(self, folder: Path, size: Size) -> Report:
        """Try as much as *size* says.

        A violation is reported, never raised; what is raised is a fault of the campaign.
        """
