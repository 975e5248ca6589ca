"""How many examples a hostile property gets: some on every run, many on request."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
LONG = [pytest.mark.long, pytest.mark.timeout(3_600)]

AMOUNTS = pytest.mark.parametrize("examples", [300, pytest.param(2_000, marks=LONG)])
FEW = pytest.mark.parametrize("examples", [12, pytest.param(200, marks=LONG)])
"""For what starts processes or opens whole projects."""


def for_all(examples: int, check: Callable[..., None], *drawn: st.SearchStrategy[object]) -> None:
    """Call *check* with values of *drawn*, which may use the test's own fixtures."""
    amount = settings(max_examples=examples, deadline=None, suppress_health_check=SLOW)
    amount(given(*drawn)(check))()
