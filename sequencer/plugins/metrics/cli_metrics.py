"""`report --metrics`: the results and the usage of runs, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

import click
from msgspec import Struct, field
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest as as_prometheus
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.registry import Collector

from sequencer.cli.context import Invocation
from sequencer.cli.options import save
from sequencer.cli.views.runs import iter_started_runs, visit_runs
from sequencer.engine.run import Run
from sequencer.errors import SequencerError, UsageRefused
from sequencer.history.story import build_story
from sequencer.history.totals import Total, Totals, UsageKey
from sequencer.model.head import Head, Status
from sequencer.model.outcome import Usage
from sequencer.model.workflow import Workflow
from sequencer.plugins.metrics.facts import Cap, list_caps
from sequencer.plugins.teams.section import get_team_options
from sequencer.project.project import Project

FILE_MODE = 0o644
"""Readable by all, because the exporter runs as another user."""


def report_metrics(
    invocation: Invocation, *, all_runs: bool, text_format: str | None, output: Path | None
) -> None:
    """Print the metrics of a run: steps, failures, time, tokens, cost."""
    if invocation.is_json:
        raise UsageRefused("can't be used with --metrics", where="--json", hint="leave it out")
    if all_runs and invocation.run_name is not None:
        raise click.UsageError("--all-runs and --run can't be used together")
    samples, unreadable_names = _collect_samples(invocation, all_runs=all_runs)
    data = metrics_text(samples, unreadable_names, text_format or "openmetrics")
    if output is None:
        invocation.echo(data.decode().removesuffix("\n"), is_verbatim=True)
        return
    save(
        output,
        data,
        is_ours=_is_metrics,
        what="a metrics file",
        mode=FILE_MODE,
    )
    invocation.notify(f"{output} was written")


def _is_metrics(beginning: bytes) -> bool:
    """Return whether a file with this *beginning* is empty or was written by `metrics_text`.

    Other documents can start with "# ", too: in Markdown it marks the title.
    """
    text = beginning.strip()
    return not text or text == b"# EOF" or beginning.startswith(OPENINGS)


def _collect_samples(
    invocation: Invocation, *, all_runs: bool
) -> tuple[list[RunSample], list[str | None]]:
    """Return the requested runs that have started, and those that can't be read.

    Raises:
        SequencerError: the one requested run can't be read.
    """
    project, unreadable_names = invocation.project(), list[str | None]()
    if not all_runs:
        run = invocation.run_to_show()
        if (head := run.head) is None:
            invocation.notify(invocation.describe_not_started())
            return [], []
        return [_read_sample(invocation, project, run, head)], []

    samples = []
    for run, sample in visit_runs(
        iter_started_runs(project), partial(_read_sample, invocation, project)
    ):
        if isinstance(sample, RunSample):
            samples.append(sample)
        else:
            invocation.notify(f"warning: run {run.name or '(default)'}: {sample.message}")
            unreadable_names.append(run.name)
    return samples, unreadable_names


def _read_sample(invocation: Invocation, project: Project, run: Run, head: Head) -> RunSample:
    workflow, graph, usage_by_task = None, None, {}
    try:
        workflow = run.workflow
        if workflow.nodes:
            marking = run.flow.marking(head)[1]
            graph, usage_by_task = marking.graph, marking.ledger.spent
    except SequencerError as error:
        invocation.notify(f"warning: roles and models are unknown: {error.message}")
    tasks = graph.nodes if graph and workflow and workflow.tasks else ()
    rules = get_team_options(project.settings).rules if tasks else None
    return RunSample(
        run.name,
        head,
        build_story(run.history()).totals,
        tuple(list_caps(run.limits, head.usage, tasks, usage_by_task, rules)),
        {
            node.id: node.task.role
            for node in (graph.nodes if graph else ())
            if node.task and node.task.role
        },
        _make_model_lookup(project, workflow),
    )


def _make_model_lookup(project: Project, workflow: Workflow | None) -> Callable[[UsageKey], str]:
    """Return the model's name: from the attempt, else from its step, else from its agent."""
    steps = {} if workflow is None else workflow.steps_by_name
    agents = project.settings.agents

    def find_model(maker: UsageKey) -> str:
        step, agent = steps.get(maker.step), agents.get(maker.agent)
        options: Mapping[str, object] = {} if agent is None else agent.options
        return maker.model or (step and step.model) or str(options.get("model") or "")

    return find_model


PREFIX = "sequencer"
OPENINGS = (f"# HELP {PREFIX}_".encode(), f"# TYPE {PREFIX}_".encode())
"""Each file with a sample starts with one of these."""
DEFAULT_RUN = "(default)"
"""The name that `runs` uses."""
FORMATS: tuple[str, str] = ("openmetrics", "prometheus")

RUN = ("run", "workflow")
MAKER = (*RUN, "step", "role", "model", "agent")
_KEPT = "Counts only the facts still in the journal, so dropped old facts are missing."
_EXACT = "From the run's state: exact, even if old facts were dropped."


class RunSample(Struct, frozen=True):
    """The data of one run."""

    name: str | None
    head: Head
    tallies: Totals
    caps: tuple[Cap, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    """Step -> role."""
    find_model: Callable[[UsageKey], str] = lambda maker: maker.model
    """The model of a maker if the journal names none."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the values of `RUN`."""
        return (_clean(self.name or DEFAULT_RUN), _clean(self.head.workflow_name))


_COUNTS: tuple[tuple[str, str, Callable[[Total], int]], ...] = (
    ("steps_accepted", "Accepted steps.", lambda t: t.accepted),
    ("attempts_failed", "Attempts that failed or gave a negative verdict.", lambda t: t.failed),
    ("attempts_released", "Attempts that were given back.", lambda t: t.released),
    ("attempts_taken_over", "Attempts taken over from a lost process.", lambda t: t.taken_over),
)
_USED: tuple[tuple[str, str, str, Callable[[Usage], float | None]], ...] = (
    ("agent_seconds", "Agent time over all attempts.", "seconds", lambda u: u.seconds),
    ("input_tokens", "Tokens sent.", "tokens", lambda u: u.input_tokens),
    ("cache_read_tokens", "Tokens sent that came from a cache.", "tokens",
     lambda u: u.cache_read_tokens),
    ("output_tokens", "Tokens received.", "tokens", lambda u: u.output_tokens),
    ("cost_usd", "Known cost.", "usd", lambda u: u.known_usd),
    ("estimated_usd", "Estimated part of the cost.", "usd", lambda u: u.estimated_usd),
    ("calls_unpriced", "Calls with unknown cost.", "", lambda u: u.unpriced),
)  # fmt: skip
"""For a maker's attempts and for a run. None means unknown: no sample claims that it is 0."""
_GAUGES: tuple[tuple[str, str, str, Callable[[Head], float | None]], ...] = (
    ("run_step_index", "Position of the run, from 0.", "", lambda h: h.step_index),
    ("run_claims", "Steps that are running.", "", lambda h: len(h.claims)),
    ("run_failures_in_row", "Failures in a row.", "", lambda h: h.failures_in_row),
    ("run_last_update_timestamp_seconds", "When the run last changed, in seconds since 1970.",
     "seconds", lambda h: datetime.fromisoformat(h.last_update).timestamp()),
)  # fmt: skip
_UNITS = {"usd": "USD", "tokens": "tokens", "steps": "steps", "seconds": "seconds of agents"}
Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float | None]]


def metrics_text(
    seen: Iterable[RunSample], unreadable: Iterable[str | None], text_format: str
) -> bytes:
    """Return *seen* in *text_format*, one of `FORMATS`; *unreadable* are other runs' names."""
    write = as_openmetrics if text_format == FORMATS[0] else as_prometheus
    data: bytes = write(_Collected(_families(tuple(seen), tuple(unreadable))))
    return data


class _Collected(Collector):
    """Gives prometheus_client the families that have a sample."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return (family for family in self._families if family.samples)


def _families(runs: tuple[RunSample, ...], names: tuple[str | None, ...]) -> Iterator[Metric]:
    makers = [item for sample in runs for item in _group_by_labels(sample).items()]
    for name, text, of_total in _COUNTS:
        sums = [(labels, sum(map(of_total, totals))) for labels, totals in makers]
        yield _counter(name, f"{text} {_KEPT}", MAKER, sums)
    for name, text, unit, of_usage in _USED:
        rows = [(labels, [of_usage(total.usage) for total in totals]) for labels, totals in makers]
        cells = [(labels, [v for v in values if v is not None]) for labels, values in rows]
        sums_of_known = [(labels, sum(values) if values else None) for labels, values in cells]
        yield _counter(name, f"{text} {_KEPT}", MAKER, sums_of_known, unit)
    text = "Oldest revision still in the journal; above 1, older facts were dropped."
    yield _gauge(
        "journal_first_revision", text, RUN, ((s.labels, s.tallies.first_revision) for s in runs)
    )
    steps = [(sample.labels, sample.head.usage.steps) for sample in runs]
    yield _counter("run_steps_accepted", f"{_COUNTS[0][1]} {_EXACT}", RUN, steps)
    for name, text, unit, of_usage in _USED:
        samples = [(sample.labels, of_usage(sample.head.usage)) for sample in runs]
        yield _counter(f"run_{name}", f"{text} {_EXACT}", RUN, samples, unit)
    for name, text, unit, of_head in _GAUGES:
        states = ((sample.labels, of_head(sample.head)) for sample in runs)
        yield _gauge(name, text, RUN, states, unit)
    yield _gauge("run_status", "1 for the current status of the run.", (*RUN, "status"), (
        ((*sample.labels, str(status)), int(sample.head.status == status))
        for sample in runs
        for status in Status
    ))  # fmt: skip
    labels = (*RUN, "scope", "name")
    for unit, words in _UNITS.items():
        caps = [((*s.labels, c.scope, c.name), c) for s in runs for c in s.caps if c.unit == unit]
        limits, rests = ((of, cap.limit) for of, cap in caps), ((of, cap.left) for of, cap in caps)
        yield _gauge(f"budget_{unit}", f"The cap, in {words}.", labels, limits, unit)
        yield _gauge(f"budget_left_{unit}", f"What is left, in {words}.", labels, rests, unit)
    flags = [(sample.labels[:1], 1) for sample in runs]
    flags += [((_clean(name or DEFAULT_RUN),), 0) for name in names]
    yield _gauge("run_readable", "0 if the state or the journal can't be read.", ("run",), flags)


def _group_by_labels(sample: RunSample) -> dict[Labels, list[Total]]:
    """Return the tallies of *sample*, grouped by the values of `MAKER`."""
    grouped: dict[Labels, list[Total]] = {}
    for maker, tally in sample.tallies.by_maker.items():
        role = sample.roles.get(maker.step, "")
        labels = (*sample.labels, maker.step, role, sample.find_model(maker), maker.agent)
        grouped.setdefault(tuple(map(_clean, labels)), []).append(tally)
    return grouped


def _clean(text: str) -> str:
    """Return *text* without characters that UTF-8 can't encode."""
    return text.encode("utf-8", "replace").decode()


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: Labels,
    samples: Samples,
    *,
    unit: str,
) -> Metric:
    family = kind(f"{PREFIX}_{name}", text, labels=labels, unit=unit)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, round(value, 9))
    return family


def _counter(name: str, text: str, labels: Labels, samples: Samples, unit: str = "") -> Metric:
    return _family(CounterMetricFamily, name, text, labels, samples, unit=unit)


def _gauge(name: str, text: str, labels: Labels, samples: Samples, unit: str = "") -> Metric:
    return _family(GaugeMetricFamily, name, text, labels, samples, unit=unit)
