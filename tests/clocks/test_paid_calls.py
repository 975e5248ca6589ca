"""Calls of a paid agent in an hour of shifted time stay within the documented bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clocks.faketime import library
from tests.clocks.paid_calls import CASES, an_hour_of
from tests.git.tables import table

TROUBLES = {case.name: case for case in CASES}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", table(TROUBLES, "retry-in-1s", "failure-with-retry"))
def test_an_hour_of_trouble_costs_a_few_calls(tmp_path: Path, name: str) -> None:
    found, case = library(), TROUBLES[name]
    if found is None:
        pytest.skip("libfaketime is not installed")
    assert case.least <= an_hour_of(tmp_path, case, found) <= case.most
