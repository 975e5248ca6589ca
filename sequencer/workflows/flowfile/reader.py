"""From a workflow file to the workflow: everything is checked, and told all at once.

Not promised: that each executor can do what a node asks of it; that is known where the
executors are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from sequencer.errors import ConfigurationError
from sequencer.files.regular import read_bytes
from sequencer.files.yamlfile import KeyPath, decode
from sequencer.frozen.fields import ValidationError
from sequencer.model.workflow import Workflow
from sequencer.workflows.finding import MAX_CHARS, GraphFile
from sequencer.workflows.flowfile.graph import GraphBuilder
from sequencer.workflows.flowfile.markdown import Excerpt, Parts, split
from sequencer.workflows.flowfile.problems import Diagnostics
from sequencer.workflows.flowfile.settings import KEYS, NodeSource, Overrides, read_front, read_node
from sequencer.workflows.mermaid.chart import Chart
from sequencer.workflows.mermaid.parser import read_chart
from sequencer.workflows.mermaid.text import ChartError

CHART_SUFFIXES = (".mmd", ".mermaid")
"""Files that are a chart and nothing else."""


def load_flow(
    path: Path,
    *,
    name: str | None = None,
    overrides: Overrides | None = None,
    text: str | None = None,
) -> GraphFile:
    """Return the workflow of the file *path*: Markdown, or a chart alone.

    *text* is its content, where somebody has read it already.

    Raises:
        FlowErrors: the file can't be read or has something that can't be run.
    """
    findings = Diagnostics(path)
    try:
        # A character has up to four bytes.
        if text is None:
            text = decode(read_bytes(path, 4 * MAX_CHARS), path)
    except ConfigurationError as error:
        findings.of("E-FILE", path.name, error)
        findings.ensure_none()
        raise
    return read_flow(text, file=path, name=name, overrides=overrides)


def read_flow(
    text: str, *, file: Path, name: str | None = None, overrides: Overrides | None = None
) -> GraphFile:
    """Return the workflow that *text*, the content of *file*, defines.

    It is called *name*, else as its ``id`` says, else as the file is. In a file that is a chart
    and nothing else, agents need no prompts.

    Raises:
        FlowErrors: everything that keeps it from being run, in the order of the file.
    """
    findings, overrides = Diagnostics(file), overrides or Overrides()
    is_chart_alone = file.suffix.lower() in CHART_SUFFIXES
    parts = _parts_of_chart(text, findings) if is_chart_alone else split(text, findings)
    front = read_front(parts.front, overrides.as_front_matter(), findings)
    chart = _chart(parts.chart, findings)
    written = _sections(parts, chart, overrides, findings)
    if chart is None or parts.chart is None:
        findings.ensure_none()
        raise AssertionError("there is no chart, and nobody has said so")
    builder = GraphBuilder(chart, front, written, overrides, findings)
    drawn, steps = builder.graph_and_steps(needs_sections=not is_chart_alone)
    findings.ensure_none()
    if drawn is None:
        raise AssertionError("there is no graph, and nobody has said so")
    values = front.values
    called = name or values.id or file.stem or "flow"
    try:
        workflow = Workflow(called, steps, kind="graph", graph=drawn)
    except ValidationError as refused:
        findings.tell("E-FILE", file.name, f"{called!r}: {refused.errors()[0]['msg']}")
        findings.ensure_none()
        raise
    return GraphFile(
        workflow=workflow,
        chart=chart,
        mermaid=parts.chart.text,
        title=values.name or parts.title or called,
        description=values.description or "",
        version=values.version,
        file=file,
        warnings=findings.warnings,
        place_of=_places(file, chart, builder.sources),
    )


def _places(
    file: Path, chart: Chart, sources: Mapping[str, NodeSource]
) -> Callable[[str, KeyPath], str]:
    """Return what tells where a node's setting is written, else its section, else in the chart."""
    positions = {node.id: node.position for node in chart.nodes}

    def place_of(node: str, path: KeyPath) -> str:
        line, column = sources[node].at(*path) or positions[node]
        return f"{file}:{line}:{column}"

    return place_of


def _parts_of_chart(text: str, findings: Diagnostics) -> Parts:
    if len(text) > MAX_CHARS:
        detail = f"has more than {MAX_CHARS} characters"
        findings.tell("E-FILE", findings.file.name, detail, (1, 1))
    return Parts(None, Excerpt(text.removeprefix("\ufeff"), 1), None)


def _chart(part: Excerpt | None, findings: Diagnostics) -> Chart | None:
    if part is None:
        return None
    try:
        return read_chart(part.text, file=findings.file, first_line=part.line)
    except ChartError as error:
        findings.of("E-CHART", findings.file.name, error)
        return None


def _sections(
    parts: Parts, chart: Chart | None, overrides: Overrides, findings: Diagnostics
) -> dict[str, NodeSource]:
    """Return what the sections say about each node.

    Of two sections of one id the first counts, and the second is a problem.
    """
    found: dict[str, NodeSource] = {}
    for section in parts.sections(chart.names if chart else None, KEYS):
        first = found.get(section.id)
        if first is None:
            found[section.id] = read_node(section.id, section, overrides.timeouts, findings)
        elif first.section is not None:
            detail = f"a second section of this id; the first one is in line {first.section.line}"
            findings.tell("E-SECTION", section.id or "###", detail, (section.line, 1))
    return found
