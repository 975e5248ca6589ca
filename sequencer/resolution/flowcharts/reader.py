"""From a workflow file to the workflow: everything is checked, and told all at once.

Not promised: that each executor can do what a node asks of it; that is known where the
executors are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sequencer.documents.file import read_bytes
from sequencer.documents.reader import decode
from sequencer.errors import ConfigurationError
from sequencer.model.graph import Graph
from sequencer.model.workflow import Workflow
from sequencer.resolution.flowcharts.building import Building
from sequencer.resolution.flowcharts.chart import Chart, ChartError
from sequencer.resolution.flowcharts.definition import KEYS
from sequencer.resolution.flowcharts.markdown import MAX_CHARS, Part, Parts, split
from sequencer.resolution.flowcharts.problems import Findings, FlowProblem
from sequencer.resolution.flowcharts.scanner import read_chart
from sequencer.resolution.flowcharts.sections import NodeSource, read_front, read_sections

CHART_SUFFIXES = (".mmd", ".mermaid")
"""Files that are a chart and nothing else."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What somebody else than the file says: a script for a simulation, for example."""

    entry: str | None = None
    on_error: str | None = None
    retry: Mapping[str, Any] | None = None
    max_iterations: int | None = None
    timeout: int | None = None
    timeouts: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds by node."""
    agents: frozenset[str] = frozenset()
    """Decisions that work like an agent's node, though they have no section."""

    def as_front_matter(self) -> dict[str, Any]:
        """Return the same in the keys of the front matter."""
        config = {"maxIterations": self.max_iterations, "timeout": self.timeout}
        written = {
            "entrypoint": self.entry,
            "onError": self.on_error,
            "retry": None if self.retry is None else dict(self.retry),
            "config": {key: value for key, value in config.items() if value is not None} or None,
        }
        return {key: value for key, value in written.items() if value is not None}


@dataclass(frozen=True)
class Flow:
    """A workflow file that can be run."""

    workflow: Workflow
    graph: Graph
    """The workflow's own."""
    chart: Chart
    mermaid: str
    """The chart's text."""
    mermaid_line: int
    """The line of the file where it begins."""
    title: str
    description: str
    version: str | None
    file: Path
    warnings: tuple[FlowProblem, ...]
    """In the order of the file."""
    sources: Mapping[str, NodeSource] = field(repr=False)

    def where(self, node: str, *path: str | int) -> str:
        """Return ``file:line:column`` of the setting *path* of *node*.

        Of what is not written it is the node's section, else its place in the chart.
        """
        place = self.sources[node].at(*path)
        if place is None:
            place = next(found.position for found in self.chart.nodes if found.id == node)
        return f"{self.file}:{place[0]}:{place[1]}"


def load_flow(path: Path, *, name: str | None = None, overrides: Overrides | None = None) -> Flow:
    """Return the workflow of the file *path*: Markdown, or a chart alone.

    Raises:
        FlowErrors: the file can't be read or has something that can't be run.
    """
    findings = Findings(path)
    try:
        # A character has up to four bytes.
        text = decode(read_bytes(path, 4 * MAX_CHARS), path)
    except ConfigurationError as error:
        findings.of("E-FILE", path.name, error)
        findings.ensure_none()
        raise
    if path.suffix.lower() in CHART_SUFFIXES:
        return read_chart_only(text, file=path, name=name, overrides=overrides)
    return read_flow(text, file=path, name=name, overrides=overrides)


def read_flow(
    text: str, *, file: Path, name: str | None = None, overrides: Overrides | None = None
) -> Flow:
    """Return the workflow that *text*, the content of *file*, defines.

    It is called *name*, else as its ``id`` says, else as the file is.

    Raises:
        FlowErrors: everything that keeps it from being run, in the order of the file.
    """
    findings = Findings(file)
    return _read(split(text, findings), findings, name, overrides or Overrides(), bare=False)


def read_chart_only(
    text: str, *, file: Path, name: str | None = None, overrides: Overrides | None = None
) -> Flow:
    """Return the workflow of a chart without sections: agents have no prompts.

    Raises:
        FlowErrors: see `read_flow`.
    """
    findings = Findings(file)
    if len(text) > MAX_CHARS:
        detail = f"has more than {MAX_CHARS} characters"
        findings.error("E-FILE", file.name, detail, (1, 1))
    parts = Parts(None, Part(text.removeprefix("\ufeff"), 1), None)
    return _read(parts, findings, name, overrides or Overrides(), bare=True)


def _read(
    parts: Parts, findings: Findings, name: str | None, overrides: Overrides, *, bare: bool
) -> Flow:
    front = read_front(parts, overrides.as_front_matter(), findings)
    chart = _chart(parts.chart, findings)
    names = None if chart is None else chart.names
    written = read_sections(parts.sections(names, KEYS), overrides.timeouts, findings)
    if chart is None or parts.chart is None:
        findings.ensure_none()
        raise AssertionError("there is no chart, and nobody has said so")
    building = Building(
        chart, front, written, overrides.timeouts, findings, agents=overrides.agents
    )
    graph, steps = building.graph_and_steps(needs_sections=not bare)
    findings.ensure_none()
    if graph is None:
        raise AssertionError("there is no graph, and nobody has said so")
    values = front.values
    called = name or values.id or findings.file.stem or "flow"
    try:
        workflow = Workflow(called, steps, kind="graph", graph=graph)
    except ValidationError as refused:
        text = str(refused.errors()[0]["msg"])
        findings.error("E-FILE", findings.file.name, f"{called!r}: {text}")
        findings.ensure_none()
        raise
    return Flow(
        workflow=workflow,
        graph=graph,
        chart=chart,
        mermaid=parts.chart.text,
        mermaid_line=parts.chart.line,
        title=values.name or parts.title or called,
        description=values.description or "",
        version=values.version,
        file=findings.file,
        warnings=findings.warnings,
        sources=building.sources,
    )


def _chart(part: Part | None, findings: Findings) -> Chart | None:
    if part is None:
        return None
    try:
        return read_chart(part.text, file=findings.file, first_line=part.line)
    except ChartError as error:
        findings.of("E-CHART", findings.file.name, error)
        return None
