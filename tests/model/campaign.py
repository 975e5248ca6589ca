"""The model as a campaign: two workers with all mutants, or three."""

from __future__ import annotations

from pathlib import Path

from tests.long.report import Report, Size
from tests.model.exploring import TOO_MANY
from tests.model.mutants import LONG_BOUNDS, MUTANTS, PRODUCT_BOUNDS, explore, rules_for


def campaign(folder: Path, size: Size) -> Report:  # noqa: ARG001 (it needs no files)
    """Every order of the moves of two workers, of three in the long programme, and mutants."""
    bounds = PRODUCT_BOUNDS if size is Size.SHORT else LONG_BOUNDS
    states, moves, violations = 0, 0, []
    for name, bound in bounds.items():
        verdict = explore(rules_for(name), bound)
        states, moves = states + verdict.states, moves + verdict.moves
        if verdict.violation is not None:
            violations.append(f"{name}: {verdict.violation}")
    for name, (protocol, bound) in MUTANTS.items():
        verdict = explore(protocol, bound)
        if verdict.violation in (None, TOO_MANY):
            violations.append(f"the mutant {name!r} is not caught")
    counts = {"states": states, "moves": moves, "mutants": len(MUTANTS)}
    return Report(counts, tuple(violations))
