"""The result as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.result import Row

COLUMNS = ("row", "ours", "other", "ratio", "quartiles", "bar", "", "against")


def as_json(found: Sequence[Row], machine: dict[str, Any], *, is_quick: bool) -> dict[str, Any]:
    """Return the whole result."""
    return {
        "rows": [row.as_json() for row in found],
        "machine": machine,
        "quick": is_quick,
    }


def table(found: Sequence[Row]) -> str:
    """Return the rows in aligned columns; what could not be measured has its reason."""
    lines = [COLUMNS, *(_cells(row) for row in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {True: "ok", False: "OVER", None: ""}[row.ok]
    note = f" ({row.note})" if row.note else ""
    return (
        row.name,
        _number(row.value, row.unit),
        _number(row.against_value, row.unit),
        "-" if row.ratio is None else f"{row.ratio:.3f}",
        "" if row.spread is None else f"{row.spread[0]:.2f}-{row.spread[1]:.2f} n={row.rounds}",
        "" if row.bar is None else f"{row.bar:g}",
        verdict,
        row.against + note,
    )


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.4g} {unit}"


def summary(found: Sequence[Row], *, is_quick: bool) -> str:
    """Return what a reader has to know beside the table."""
    judged = [row for row in found if row.ok is not None]
    over = [row.name for row in judged if not row.ok]
    lines = [f"{len(judged) - len(over)} of {len(judged)} ratios are within their bar"]
    lines += [f"over its bar: {name}" for name in over]
    lines += [f"not measured: {row.name}: {row.note}" for row in found if row.note[:6] == "absent"]
    if is_quick:
        lines.append("quick form: no peers, a short long run; the full form is without --quick")
    return "\n".join(lines)


def machine_line(machine: dict[str, Any]) -> str:
    """Return the machine in one line."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load'][0]:g}, "
        f"{machine['filesystem']}, Python {machine['python']}, {machine['system']}, {machine['at']}"
    )
