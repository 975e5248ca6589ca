"""One row of the result, and the verdict over all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from bench.measuring import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured, against what, and how much is allowed."""

    name: str
    value: float | None
    """Ours; None if it could not be measured, and the note says why."""
    unit: str
    against: str
    against_value: float | None = None
    """The other side, in the same unit."""
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    """First and third quartile of the rounds' ratios."""
    rounds: int = 1
    bar: float | None = None
    """None: shown for information."""
    note: str = ""

    @property
    def ok(self) -> bool | None:
        """Return whether the ratio is within its bar; None if there is nothing to judge."""
        if self.ratio is None or self.bar is None:
            return None
        return self.ratio <= self.bar

    def as_json(self) -> dict[str, Any]:
        """Return the row as ``--json`` prints it."""
        return {**asdict(self), "ok": self.ok}


def compared(
    name: str,
    comparison: Comparison,
    *,
    against: str,
    unit: str,
    scale: float,
    bar: float | None,
    note: str = "",
) -> Row:
    """Return the row of *comparison*; its values times *scale* are in *unit*."""
    return Row(
        name=name,
        value=comparison.ours * scale,
        unit=unit,
        against=against,
        against_value=comparison.other * scale,
        ratio=comparison.ratio,
        spread=(comparison.low, comparison.high),
        rounds=comparison.rounds,
        bar=bar,
        note=note,
    )


def absent(name: str, against: str, reason: str) -> Row:
    """Return a row that says why there is nothing to compare with."""
    return Row(name=name, value=None, unit="", against=against, note=f"absent: {reason}")


def capped(name: str, value: float, cap: float, unit: str, note: str = "") -> Row:
    """Return a row for a *value* that may be as large as *cap*."""
    return Row(
        name=name,
        value=value,
        unit=unit,
        against=f"cap of {cap:g} {unit}",
        against_value=cap,
        ratio=value / cap,
        bar=1.0,
        note=note,
    )


def failures(found: Iterable[Row]) -> list[Row]:
    """Return the rows that make the bench fail."""
    return [
        row
        for row in found
        if row.ratio is not None and row.bar is not None and row.ratio > row.bar
    ]
