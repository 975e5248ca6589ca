"""The bench's rows of the fleet can be measured; how fast anything is, they do not ask here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.measuring import Effort
from bench.rows import Setting, fleet

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]


def test_every_row_has_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"BLOCK": 8, "FEW": 6, "MANY": 12, "QUICK_GROWTH": (10, 20)}
    for name, value in {**small, "QUICK_MANY_RUNS": (4, 5, 2, 2)}.items():
        monkeypatch.setattr(fleet, name, value)
    rows = fleet.measure(Setting(tmp_path, Effort(0.1, 200, 0.1), with_peers=False))
    assert [(row.name, row.bar is not None) for row in rows] == [
        ("fleet step", True),
        ("fleet step CPU", False),
        ("fleet events a step", True),
        ("fleet bytes a step", True),
        ("fleet memory", True),
        ("fleet many runs, step", True),
        ("fleet many runs, CPU of a step", False),
    ]
    assert all(row.value and row.ratio for row in rows)
