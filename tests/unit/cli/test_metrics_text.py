"""What is written is read again by the parsers that the package of Prometheus' makers has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_prometheus

from sequencer.history.story import build_story
from sequencer.history.totals import Total, Totals, UsageKey
from sequencer.model.head import Head, Status
from sequencer.model.outcome import Usage
from sequencer.plugins.metrics.cli_metrics import DEFAULT_RUN, FORMATS, RunSample, metrics_text
from sequencer.plugins.metrics.facts import Cap
from tests.unit.history.journal_facts import Told

Read = Callable[[str], Iterable[Metric]]
READERS: dict[str, Read] = {"openmetrics": read_openmetrics, "prometheus": read_prometheus}
HEAD = Head(
    run_id="r",
    workflow_name="team",
    workflow_digest="sha256:0",
    expected_step="a",
    last_update="2026-11-22T12:00:00Z",
    step_index=7,
    failures_in_row=2,
    status=Status.FAILED,
    usage=Usage(steps=5, cost_usd=1.25, input_tokens=1000, output_tokens=30, seconds=61.5),
)
USAGE = {"input_tokens": 100, "output_tokens": 7, "cost_usd": 0.25}
# What a line may be, from the specification of OpenMetrics 1.0, without timestamps and exemplars.
NAME, LABEL, QUOTED = (
    r"[a-zA-Z_:][a-zA-Z0-9_:]*",
    r"[a-zA-Z_][a-zA-Z0-9_]*",
    r'"(?:[^"\\\n]|\\[\\"n])*"',
)
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|Inf|NaN)"
LINE = re.compile(
    rf"# TYPE {NAME} (?:counter|gauge)|# UNIT {NAME} {LABEL}|# HELP {NAME} (?:[^\\\n]|\\[\\\"n])*|"
    rf"{NAME}(?:\{{{LABEL}={QUOTED}(?:,{LABEL}={QUOTED})*\}})? {NUMBER}|# EOF"
)


def told() -> Told:
    found = Told().claim("a", 0).end("a", 0, 2, usage=USAGE, model="opus")
    found.claim("a", 2).end("a", 2, 3, "failed", usage=USAGE, model="opus")
    return found.claim("b", 3).end("b", 3, 7, agent="codex")


def seen(
    name: str | None = None, head: Head = HEAD, tallies: Totals | None = None, **more: Any
) -> RunSample:
    return RunSample(
        name, head, build_story(told().facts).totals if tallies is None else tallies, **more
    )


def samples(
    one: Iterable[RunSample],
    text_format: str = "openmetrics",
    unreadable: Iterable[str | None] = (),
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the values by name and labels; none may be there twice."""
    text = metrics_text(one, unreadable, text_format).decode()
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in READERS[text_format](text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            assert sample.timestamp is None
            found[key] = sample.value
    return found


def value(
    found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, /, **labels: str
) -> float:
    """Return the one sample called *name* that has *labels* among its own."""
    (one,) = (
        number for (n, own), number in found.items() if n == name and labels.items() <= set(own)
    )
    return one


@pytest.mark.parametrize("text_format", FORMATS)
def test_attempts_are_counted_by_step_role_and_agent(text_format: str) -> None:
    found = samples([seen(roles={"a": "coder"})], text_format)
    a = {"run": DEFAULT_RUN, "workflow": "team", "step": "a", "role": "coder", "model": "opus"}
    assert value(found, "sequencer_steps_accepted_total", **a, agent="claude") == 1
    assert value(found, "sequencer_attempts_failed_total", **a) == 1
    assert value(found, "sequencer_attempts_released_total", **a) == 0
    assert value(found, "sequencer_attempts_taken_over_total", **a) == 0
    assert value(found, "sequencer_agent_seconds_total", **a) == 3
    assert value(found, "sequencer_input_tokens_total", **a) == 200
    assert value(found, "sequencer_output_tokens_total", **a) == 14
    assert value(found, "sequencer_cost_usd_total", **a) == 0.5
    assert value(found, "sequencer_agent_seconds_total", step="b", agent="codex") == 4
    assert value(found, "sequencer_journal_first_revision") == 1


@pytest.mark.parametrize("text_format", FORMATS)
def test_the_totals_of_a_run_are_written(text_format: str) -> None:
    found = samples([seen("nightly")], text_format)
    run = {"run": "nightly", "workflow": "team"}
    assert value(found, "sequencer_run_steps_accepted_total", **run) == 5
    assert value(found, "sequencer_run_agent_seconds_total", **run) == 61.5
    assert value(found, "sequencer_run_input_tokens_total", **run) == 1000
    assert value(found, "sequencer_run_output_tokens_total", **run) == 30
    assert value(found, "sequencer_run_cost_usd_total", **run) == 1.25
    assert value(found, "sequencer_run_step_index", **run) == 7
    assert value(found, "sequencer_run_claims", **run) == 0
    assert value(found, "sequencer_run_failures_in_row", **run) == 2
    assert value(found, "sequencer_run_last_update_timestamp_seconds", **run) == 1_795_348_800
    assert value(found, "sequencer_run_readable", run="nightly") == 1


def test_caps_and_remaining_budgets_are_written() -> None:
    caps = (
        Cap("run", "", "usd", 2, 1.25),
        Cap("role", "coder", "tokens", 1000, 1500),
        Cap("run", "", "seconds", 100, 61.5),
        Cap("run", "", "steps", 9, 5),
    )
    found = samples([seen(caps=caps)])
    assert value(found, "sequencer_budget_usd", scope="run") == 2
    assert value(found, "sequencer_budget_left_usd", scope="run") == 0.75
    assert value(found, "sequencer_budget_tokens", scope="role", name="coder") == 1000
    assert value(found, "sequencer_budget_left_tokens", name="coder") == 0
    assert value(found, "sequencer_budget_left_seconds") == 38.5
    assert value(found, "sequencer_budget_left_steps") == 4
    assert not any(name.startswith("sequencer_budget") for name, _ in samples([seen()]))


def test_every_line_is_one_that_the_specification_knows() -> None:
    text = metrics_text([seen('odd "name"\\')], ["x"], "openmetrics").decode()
    assert [line for line in text.splitlines() if not LINE.fullmatch(line)] == []


HOSTILE = st.text(max_size=20)


@settings(max_examples=40)
@given(st.text(min_size=1), HOSTILE, HOSTILE, st.text(max_size=5), st.sampled_from(FORMATS))
def test_any_name_is_read_back_unchanged(
    run: str, step: str, model: str, agent: str, text_format: str
) -> None:
    tallies = Totals()
    tallies.by_maker[UsageKey(step, agent, model)] = build_story(told().facts).totals.by_maker[
        UsageKey("a", "claude", "opus")
    ]
    text = metrics_text([seen(run, tallies=tallies)], [], text_format).decode()
    # Split at line feeds alone, as the format has it.
    assert all(line.startswith(("# ", "sequencer_")) for line in text.split("\n") if line)
    if not any(
        set(name) & set("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\n\\") for name in (run, step, model)
    ):
        found = samples([seen(run, tallies=tallies)], text_format)
        assert value(found, "sequencer_steps_accepted_total", run=run, step=step, model=model) == 1


def test_an_unreported_cost_has_no_sample() -> None:
    unknown = Totals(by_maker={UsageKey("a", "x", ""): Total(usage=Usage(unpriced=1))})
    names = {name for name, _ in samples([seen(tallies=unknown)])}
    assert "sequencer_calls_unpriced_total" in names
    assert not {name for name in names if name.startswith("sequencer_cost_usd")}
