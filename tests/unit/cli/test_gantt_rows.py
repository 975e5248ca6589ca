from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sequencer.cli.views.gantt import gantt_summary, ticks
from tests.unit.cli.charts import chart
from tests.unit.history.journal_facts import Told

# --- the axis ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "most", "names"),
    [
        (3, 8, ["0s", "0.5s", "1s", "1.5s", "2s", "2.5s", "3s"]),
        (0.09, 5, ["0s", "0.02s", "0.04s", "0.06s", "0.08s"]),
        (100, 8, ["0s", "15s", "30s", "45s", "1m", "1m15", "1m30"]),
        (9 * 3600, 7, ["0s", "2h", "4h", "6h", "8h"]),
        (3 * 86_400, 8, ["0s", "12h", "1d", "1d12h", "2d", "2d12h", "3d"]),
        (5400, 4, ["0s", "30m", "1h", "1h30"]),
        (0, 5, ["0s"]),
    ],
)
def test_ticks_are_at_moments_that_people_count_in(
    total: float, most: int, names: list[str]
) -> None:
    assert [name for _, name in ticks(total, most)] == names


@given(st.floats(0, 1e10), st.integers(2, 100))
@example(10 - 1e-11, 10)
def test_there_are_never_too_many_ticks(total: float, most: int) -> None:
    found = [moment for moment, _ in ticks(total, most)]
    assert 1 <= len(found) <= most
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] <= total * (1 + 1e-6)


@given(st.floats(0.1, 1e8))
def test_a_ticks_name_is_its_own(total: float) -> None:
    names = [name for _, name in ticks(total, 9)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 8 for name in names)


# --- words -------------------------------------------------------------------------------


def test_the_figures_of_nothing() -> None:
    lines = gantt_summary(chart(Told()).figures, "", lambda text: text)
    assert lines == ["wall-clock time 0.0 s, work of one worker 0.0 s"]
    one = gantt_summary(chart(Told().run("a", 0, 5)).figures, "a", lambda text: text)
    assert one == ["wall-clock time 5.0 s, work of one worker 5.0 s", "critical path 5.0 s", "  a"]


def test_the_figures_of_a_run_that_rested_for_long_are_no_endless_per_cent() -> None:
    rested = Told().run("a", 0, 5).run("b", 9000, 9005)
    lines = gantt_summary(chart(rested, places=2).figures, "a", lambda text: text)
    assert lines[0].endswith("speed-up 0.0011")
    assert lines[1] == "critical path 5.0 s, wall-clock time is 1801 times as long"


@pytest.mark.parametrize("told", [
    pytest.param(Told().run("a", 0, 0.05).run("b", 0.5, 0.6), id="an-instant"),
    pytest.param(Told().run("a", 0, 5).run("b", 9000, 9005), id="one-place"),
])  # fmt: skip
def test_no_ratio_is_told_where_it_says_nothing(told: Told) -> None:
    text = "\n".join(gantt_summary(chart(told, places=1).figures, "a", lambda text: text))
    assert not re.search("%|speed-up|times|longer", text)
