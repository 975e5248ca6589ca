"""The turn protocol holds in every reachable world, and broken rules are caught."""

from __future__ import annotations

import pytest

from tests.model.mutants import MUTANTS, PRODUCT, PRODUCT_BOUNDS
from tests.model.turn_protocol import Model

TOO_MANY = "too many states"


@pytest.mark.parametrize("name", PRODUCT_BOUNDS)
def test_the_protocol_holds(name: str) -> None:
    verdict = Model(PRODUCT, PRODUCT_BOUNDS[name]).explore()
    assert verdict.violation is None, verdict.path
    assert verdict.states > 5_000


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    protocol, bounds = MUTANTS[name]
    verdict = Model(protocol, bounds).explore()
    assert verdict.violation is not None
    assert not verdict.violation.startswith(TOO_MANY)
    assert verdict.path
