"""`metrics`: what runs have done and used, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import click
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest as as_prometheus
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.registry import Collector

from sequencer.cli.context import Invocation
from sequencer.cli.options import NewFile, pass_invocation, save, verb
from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.history.totals import Cap, Maker, Total, Totals, caps_of, totals_of
from sequencer.model.head import Head, Status
from sequencer.model.workflow import Workflow
from sequencer.project import Project

FILE_MODE = 0o644
"""The exporter is another user."""


@verb("metrics", has_json=False)
@click.option("--all-runs", is_flag=True, help="Every run of the project, not only one.")
@click.option(
    "--format",
    "text_format",
    type=click.Choice(["openmetrics", "prometheus"]),
    default="openmetrics",
    show_default=True,
    help="How it is written; a node exporter reads prometheus.",
)
@click.option(
    "--output",
    type=NewFile(),
    metavar="FILE",
    help="Write FILE, whole or not at all, instead of printing.",
)
@pass_invocation
def metrics(
    invocation: Invocation, *, all_runs: bool, text_format: str, output: Path | None
) -> None:
    """Print what a run has done and used as metrics: steps, failures, time, tokens, cost.

    \b
    Examples:
      sequencer metrics
      sequencer metrics --all-runs --format prometheus --output /srv/s.prom
    """
    if all_runs and invocation.run_name is not None:
        raise click.UsageError("--all-runs and --run exclude each other")
    seen, unreadable = _seen(invocation, all_runs=all_runs)
    data = metrics_text(seen, unreadable, text_format)
    if output is None:
        invocation.echo(data.decode().removesuffix("\n"), is_verbatim=True)
        return
    save(output, data, is_ours=_is_metrics, what="metrics", mode=FILE_MODE)
    invocation.say(f"{output} was written")


def _seen(invocation: Invocation, *, all_runs: bool) -> tuple[list[Seen], list[str | None]]:
    """Return the runs that were asked for and have begun, and those that can't be read.

    Raises:
        SequencerError: the one run that was asked for can't be read.
    """
    project = invocation.project()
    if not all_runs:
        one = _look(invocation, project, invocation.run())
        if one is None:
            invocation.say("nothing has happened yet: the run was never begun")
        return [one] if one is not None else [], []
    seen: list[Seen] = []
    unreadable: list[str | None] = []
    for name in (None, *project.run_names()):
        try:
            one = _look(invocation, project, project.run(name))
        except SequencerError as error:
            # One that is damaged must not hide the others.
            invocation.say(f"warning: run {name or '(default)'}: {error.message}")
            unreadable.append(name)
            continue
        if one is not None:
            seen.append(one)
    return seen, unreadable


def _look(invocation: Invocation, project: Project, run: Run) -> Seen | None:

    head = run.head
    if head is None:
        return None
    workflow, graph, spent = None, None, {}
    try:
        workflow = run.workflow
        if workflow.graph is not None:
            marking = run.flow.marking(head)[1]
            graph, spent = marking.graph, marking.team.spent
    except SequencerError as error:
        invocation.say(f"warning: roles and models are not known: {error.message}")
    tasks = () if graph is None else graph.nodes
    return Seen(
        run.name,
        head,
        totals_of(run.history()),
        tuple(caps_of(run.limits, head.usage, graph, spent, project.settings.teams.rules)),
        {node.id: node.task.role for node in tasks if node.task and node.task.role},
        _models(project, workflow),
    )


def _models(project: Project, workflow: Workflow | None) -> Callable[[Maker], str]:
    """Return what names a model: the attempt's own, else its step's, else its agent's."""
    steps = {} if workflow is None else workflow.steps_by_name
    agents = project.settings.agents

    def model_of(maker: Maker) -> str:
        step, agent = steps.get(maker.step), agents.get(maker.agent)
        options: Mapping[str, object] = {} if agent is None else agent.options
        return maker.model or (step and step.model) or str(options.get("model") or "")

    return model_of


def _is_metrics(beginning: bytes) -> bool:
    return not beginning.strip() or beginning.startswith(b"# ")


PREFIX = "sequencer"
DEFAULT_RUN = "(default)"
"""As `runs` calls it."""
FORMATS: tuple[str, str] = ("openmetrics", "prometheus")

RUN = ("run", "workflow")
MAKER = (*RUN, "step", "role", "model", "agent")
_KEPT = "Of the facts that the journal still has: where old ones were dropped it is less."
_EXACT = "From the run's state: exact, also where old facts were dropped."


@dataclass(frozen=True, slots=True)
class Seen:
    """One run, as it is to be shown."""

    name: str | None
    head: Head
    tallies: Totals
    caps: tuple[Cap, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    """By step."""
    model_of: Callable[[Maker], str] = lambda maker: maker.model
    """What a maker's model is where the journal names none."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the values of `RUN`."""
        return (_clean(self.name or DEFAULT_RUN), _clean(self.head.workflow_name))


class _Sum(NamedTuple):
    """One counter of what the attempts of a maker have come to."""

    name: str
    help: str
    unit: str
    value: Callable[[Total], float | None]
    """None: it is not known, and no sample says that it is 0."""


_SUMS = (
    _Sum("steps_accepted", "Steps that were accepted.", "", lambda t: t.accepted),
    _Sum("attempts_failed", "Attempts that failed or judged no.", "", lambda t: t.failed),
    _Sum("attempts_released", "Attempts that were given back.", "", lambda t: t.released),
    _Sum("attempts_taken_over", "Attempts whose process was lost.", "", lambda t: t.taken_over),
    _Sum("agent_seconds", "Time of agents, all attempts.", "seconds", lambda t: t.usage.seconds),
    _Sum("input_tokens", "Tokens that were sent.", "tokens", lambda t: t.usage.input_tokens),
    _Sum("output_tokens", "Tokens that came back.", "tokens", lambda t: t.usage.output_tokens),
    _Sum("cost_usd", "Cost as far as it is known.", "usd", lambda t: t.usage.known_usd),
    _Sum(
        "estimated_usd",
        "Part of the cost that is estimated.",
        "usd",
        lambda t: t.usage.estimated_usd,
    ),
    _Sum("calls_unpriced", "Calls whose cost nobody told.", "", lambda t: t.usage.unpriced),
)


class _OfHead(NamedTuple):
    """One figure of a run's head."""

    name: str
    help: str
    unit: str
    value: Callable[[Head], float | None]


_COUNTERS = (
    _OfHead("run_steps_accepted", "Steps that were accepted.", "", lambda h: h.usage.steps),
    _OfHead("run_agent_seconds", "Time of agents.", "seconds", lambda h: h.usage.seconds),
    _OfHead("run_input_tokens", "Tokens sent.", "tokens", lambda h: h.usage.input_tokens),
    _OfHead("run_output_tokens", "Tokens back.", "tokens", lambda h: h.usage.output_tokens),
    _OfHead("run_cost_usd", "Cost as far as it is known.", "usd", lambda h: h.usage.known_usd),
    _OfHead(
        "run_estimated_usd",
        "Part of the cost that is estimated.",
        "usd",
        lambda h: h.usage.estimated_usd,
    ),
    _OfHead("run_calls_unpriced", "Calls whose cost nobody told.", "", lambda h: h.usage.unpriced),
)
_GAUGES = (
    _OfHead("run_step_index", "Where the run stands, from 0.", "", lambda h: h.step_index),
    _OfHead("run_claims", "Steps that are being run.", "", lambda h: len(h.claims)),
    _OfHead("run_failures_in_row", "Failures in a row.", "", lambda h: h.failures_in_row),
    _OfHead(
        "run_last_update_timestamp_seconds",
        "When the run changed last, seconds since 1970.",
        "seconds",
        lambda h: datetime.fromisoformat(h.last_update).timestamp(),
    ),
)  # fmt: skip
_UNITS = {"usd": "USD", "tokens": "tokens", "steps": "steps", "seconds": "seconds of agents"}


def metrics_text(seen: Iterable[Seen], unreadable: Iterable[str | None], text_format: str) -> bytes:
    """Return *seen* in *text_format*, one of `FORMATS`; *unreadable* are other runs' names."""
    collector = _Runs(tuple(seen), tuple(unreadable))
    write = as_openmetrics if text_format == FORMATS[0] else as_prometheus
    data: bytes = write(collector)
    return data


class _Runs(Collector):
    """What prometheus_client asks for the families."""

    def __init__(self, seen: tuple[Seen, ...], unreadable: tuple[str | None, ...]) -> None:
        self._seen = seen
        self._unreadable = unreadable

    def collect(self) -> Iterator[Metric]:
        """Yield every family that has a sample."""
        families = (*self._sums(), *self._heads(), self._status(), *self._caps(), self._readable())
        return (family for family in families if family.samples)

    def _sums(self) -> Iterator[Metric]:
        makers = [(one, _by_labels(one)) for one in self._seen]
        for name, text, unit, value in _SUMS:
            counter = _counter(name, f"{text} {_KEPT}", MAKER, unit)
            for _, rows in makers:
                for labels, tallies in rows.items():
                    known = [one for one in map(value, tallies) if one is not None]
                    if known:
                        counter.add_metric(labels, round(sum(known), 9))
            yield counter
        first = _gauge(
            "journal_first_revision",
            "The oldest revision that the journal still has; above 1 older facts were dropped.",
            RUN,
        )
        for one in self._seen:
            if one.tallies.first_revision is not None:
                first.add_metric(one.labels, one.tallies.first_revision)
        yield first

    def _heads(self) -> Iterator[Metric]:
        for name, text, unit, value in _COUNTERS:
            counter = _counter(name, f"{text} {_EXACT}", RUN, unit)
            for one in self._seen:
                if (known := value(one.head)) is not None:
                    counter.add_metric(one.labels, known)
            yield counter
        for name, text, unit, value in _GAUGES:
            gauge = _gauge(name, text, RUN, unit)
            for one in self._seen:
                if (known := value(one.head)) is not None:
                    gauge.add_metric(one.labels, known)
            yield gauge

    def _status(self) -> Metric:
        gauge = _gauge("run_status", "1 for the status that it has.", (*RUN, "status"))
        for one in self._seen:
            for status in Status:
                gauge.add_metric((*one.labels, str(status)), int(one.head.status == status))
        return gauge

    def _caps(self) -> Iterator[Metric]:
        labels = (*RUN, "scope", "name")
        for unit, words in _UNITS.items():
            limit = _gauge(f"budget_{unit}", f"The cap, in {words}.", labels, unit)
            left = _gauge(f"budget_left_{unit}", f"What is left, in {words}.", labels, unit)
            for one in self._seen:
                for cap in one.caps:
                    if cap.unit == unit:
                        limit.add_metric((*one.labels, cap.scope, cap.name), cap.limit)
                        left.add_metric((*one.labels, cap.scope, cap.name), round(cap.left, 9))
            yield limit
            yield left

    def _readable(self) -> Metric:
        gauge = _gauge("run_readable", "0: its state or its journal can't be read.", ("run",))
        for one in self._seen:
            gauge.add_metric(one.labels[:1], 1)
        for name in self._unreadable:
            gauge.add_metric((_clean(name or DEFAULT_RUN),), 0)
        return gauge


def _by_labels(one: Seen) -> dict[tuple[str, ...], list[Total]]:
    """Return the tallies by the values of `MAKER`: makers may differ in nothing else."""
    found: dict[tuple[str, ...], list[Total]] = {}
    for maker, tally in one.tallies.by_maker.items():
        role = one.roles.get(maker.step, "")
        labels = (*one.labels, maker.step, role, one.model_of(maker), maker.agent)
        found.setdefault(tuple(map(_clean, labels)), []).append(tally)
    return found


def _clean(text: str) -> str:
    """Return *text* as UTF-8 can hold it."""
    return text.encode("utf-8", "replace").decode()


def _counter(name: str, text: str, labels: Iterable[str], unit: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, labels=tuple(labels), unit=unit)


def _gauge(name: str, text: str, labels: Iterable[str], unit: str = "") -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=tuple(labels), unit=unit)
