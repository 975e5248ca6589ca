"""What the page of costs draws."""

from __future__ import annotations

from sequencer.model.outcome import Usage
from sequencer.plugins.web.costs import MAX_SERIES, MEASURES, PARTS, plot_growth
from sequencer.plugins.web.records import AttemptUsage


def test_a_plot_stays_small_for_many_attempts() -> None:
    spent = [
        (
            "a run",
            AttemptUsage(1_760_000_000 + place, Usage(cost_usd=0.001), "a", f"step {place % 40}"),
        )
        for place in range(20_000)
    ]
    plot, series = plot_growth(spent, MEASURES["cost"], PARTS["step"])
    assert len(plot) < 60_000
    assert len(series) == MAX_SERIES + 1
    assert round(sum(one.values[-1] for one in series), 6) == 20
