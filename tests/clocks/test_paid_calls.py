"""Calls of a paid agent in an hour of shifted time stay within the documented bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clocks.faketime import library
from tests.clocks.paid_calls import CASES, Case, an_hour_of


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_hour_of_trouble_costs_a_few_calls(tmp_path: Path, case: Case) -> None:
    found = library()
    if found is None:
        pytest.skip("libfaketime is not installed")
    assert case.least <= an_hour_of(tmp_path, case, found) <= case.most
