"""Reads a workflow from a file, checks everything, and reports all problems together.

Not checked: whether the executor of a node supports the node's settings; the code that chooses
the executors does that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from sequencer.errors import ConfigurationError
from sequencer.files.regular import read_bytes
from sequencer.files.yamlfile import KeyPath, decode
from sequencer.frozen.fields import ValidationError
from sequencer.model.step import MAX_PURPOSE
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

    *text* is its content, if the caller has read it already; for *name* and *overrides* see
    `read_flow`.

    Raises:
        FlowErrors: the file can't be read or has something that can't be run.
    """
    diagnostics = Diagnostics(path)
    try:
        if text is None:
            # A character has up to four bytes.
            text = decode(read_bytes(path, 4 * MAX_CHARS), path)
    except ConfigurationError as error:
        diagnostics.add_error("E-FILE", path.name, error)
        diagnostics.ensure_none()
        raise
    return read_flow(text, file=path, name=name, overrides=overrides)


def read_flow(
    text: str, *, file: Path, name: str | None = None, overrides: Overrides | None = None
) -> GraphFile:
    """Return the workflow in *text*, the content of *file*.

    Its name is *name*, else its ``id``, else the file's name. In a file with only a chart, agents
    need no prompts.

    Raises:
        FlowErrors: the file has errors; all of them, in the order of the file.
    """
    diagnostics, overrides = Diagnostics(file), overrides or Overrides()
    is_chart_alone = file.suffix.lower() in CHART_SUFFIXES
    parts = _parts_of_chart(text, diagnostics) if is_chart_alone else split(text, diagnostics)
    front = read_front(parts.front, overrides.as_front_matter(), diagnostics)
    chart = _parse_chart(parts.chart, diagnostics)
    sources = _read_sections(parts, chart, overrides, diagnostics)
    if chart is None or parts.chart is None:
        diagnostics.ensure_none()
        raise AssertionError("there is no chart, but no error was reported")
    builder = GraphBuilder(chart, front, sources, overrides, diagnostics)
    flow_graph, steps = builder.build(needs_sections=not is_chart_alone)
    diagnostics.ensure_none()
    if flow_graph is None:
        raise AssertionError("there is no graph, but no error was reported")
    values = front.values
    flow_name = name or values.id or file.stem or "flow"
    try:
        purpose = (values.description or "")[:MAX_PURPOSE]
        workflow = Workflow(flow_name, steps, kind="graph", graph=flow_graph, description=purpose)
    except ValidationError as error:
        diagnostics.add("E-FILE", file.name, f"{flow_name!r}: {error.errors()[0]['msg']}")
        diagnostics.ensure_none()
        raise
    return GraphFile(
        workflow=workflow,
        chart=chart,
        mermaid=parts.chart.text,
        title=values.name or parts.title or flow_name,
        version=values.version,
        file=file,
        warnings=diagnostics.warnings,
        format_place=_make_locator(file, chart, builder.sources),
    )


def _make_locator(
    file: Path, chart: Chart, sources: Mapping[str, NodeSource]
) -> Callable[[str, KeyPath], str]:
    """Return a function that returns the place of a node's setting, section or mention."""
    positions = {node.id: node.position for node in chart.nodes}

    def format_place(node: str, path: KeyPath) -> str:
        line, column = sources[node].find_position(*path) or positions[node]
        return f"{file}:{line}:{column}"

    return format_place


def _parts_of_chart(text: str, diagnostics: Diagnostics) -> Parts:
    if len(text) > MAX_CHARS:
        detail = f"has more than {MAX_CHARS} characters"
        diagnostics.add("E-FILE", diagnostics.file.name, detail, (1, 1))
    return Parts(None, Excerpt(text.removeprefix("\ufeff"), 1), None)


def _parse_chart(part: Excerpt | None, diagnostics: Diagnostics) -> Chart | None:
    if part is None:
        return None
    try:
        return read_chart(part.text, file=diagnostics.file, first_line=part.line)
    except ChartError as error:
        diagnostics.add_error("E-CHART", diagnostics.file.name, error)
        return None


def _read_sections(
    parts: Parts, chart: Chart | None, overrides: Overrides, diagnostics: Diagnostics
) -> dict[str, NodeSource]:
    """Return node id -> its section.

    If two sections have the same id, the first one counts, and the second one is a problem.
    """
    sources: dict[str, NodeSource] = {}
    for section in parts.read_sections(chart.names if chart else None, KEYS):
        source = sources.get(section.id)
        if source is None:
            sources[section.id] = read_node(section.id, section, overrides.timeouts, diagnostics)
        elif source.section is not None:
            detail = f"a second section of this id; the first one is in line {source.section.line}"
            diagnostics.add("E-SECTION", section.id or "###", detail, (section.line, 1))
    return sources
