"""From a workflow file to the workflow: everything is checked, and told all at once.

Not promised: that each executor can do what a node asks of it; that is known where the
executors are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sequencer.documents.file import leads_out, read_bytes
from sequencer.documents.reader import decode
from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.model.fields import ValidationError
from sequencer.model.net.graph import Graph
from sequencer.model.workflow import Workflow
from sequencer.workflows.flowfile.graph import GraphBuilder
from sequencer.workflows.flowfile.markdown import MAX_CHARS, Excerpt, Parts, split
from sequencer.workflows.flowfile.problems import Findings, FlowProblem
from sequencer.workflows.flowfile.settings import KEYS, NodeSource, Overrides, read_front, read_node
from sequencer.workflows.mermaid.chart import Chart
from sequencer.workflows.mermaid.parser import read_chart
from sequencer.workflows.mermaid.text import ChartError
from sequencer.workflows.teams.lists import is_task_list

CHART_SUFFIXES = (".mmd", ".mermaid")
"""Files that are a chart and nothing else."""


@dataclass(frozen=True)
class FlowFile:
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


def load_flow(
    path: Path,
    *,
    name: str | None = None,
    overrides: Overrides | None = None,
    text: str | None = None,
) -> FlowFile:
    """Return the workflow of the file *path*: Markdown, or a chart alone.

    *text* is its content, where somebody has read it already.

    Raises:
        FlowErrors: the file can't be read or has something that can't be run.
    """
    findings = Findings(path)
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
) -> FlowFile:
    """Return the workflow that *text*, the content of *file*, defines.

    It is called *name*, else as its ``id`` says, else as the file is. In a file that is a chart
    and nothing else, agents need no prompts.

    Raises:
        FlowErrors: everything that keeps it from being run, in the order of the file.
    """
    findings, overrides = Findings(file), overrides or Overrides()
    is_chart_alone = file.suffix.lower() in CHART_SUFFIXES
    parts = _parts_of_chart(text, findings) if is_chart_alone else split(text, findings)
    front = read_front(parts.front, overrides.as_front_matter(), findings)
    chart = _chart(parts.chart, findings)
    written = _sections(parts, chart, overrides, findings)
    if chart is None or parts.chart is None:
        findings.ensure_none()
        raise AssertionError("there is no chart, and nobody has said so")
    builder = GraphBuilder(chart, front, written, overrides, findings)
    graph, steps = builder.graph_and_steps(needs_sections=not is_chart_alone)
    findings.ensure_none()
    if graph is None:
        raise AssertionError("there is no graph, and nobody has said so")
    values = front.values
    called = name or values.id or file.stem or "flow"
    try:
        workflow = Workflow(called, steps, kind="graph", graph=graph)
    except ValidationError as refused:
        findings.error("E-FILE", file.name, f"{called!r}: {refused.errors()[0]['msg']}")
        findings.ensure_none()
        raise
    return FlowFile(
        workflow=workflow,
        graph=graph,
        chart=chart,
        mermaid=parts.chart.text,
        mermaid_line=parts.chart.line,
        title=values.name or parts.title or called,
        description=values.description or "",
        version=values.version,
        file=file,
        warnings=findings.warnings,
        sources=builder.sources,
    )


def _parts_of_chart(text: str, findings: Findings) -> Parts:
    if len(text) > MAX_CHARS:
        detail = f"has more than {MAX_CHARS} characters"
        findings.error("E-FILE", findings.file.name, detail, (1, 1))
    return Parts(None, Excerpt(text.removeprefix("\ufeff"), 1), None)


def _chart(part: Excerpt | None, findings: Findings) -> Chart | None:
    if part is None:
        return None
    try:
        return read_chart(part.text, file=findings.file, first_line=part.line)
    except ChartError as error:
        findings.of("E-CHART", findings.file.name, error)
        return None


def _sections(
    parts: Parts, chart: Chart | None, overrides: Overrides, findings: Findings
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
            findings.error("E-SECTION", section.id or "###", detail, (section.line, 1))
    return found


SUFFIX = ".md"
_FOLDERS = ("", "flows", ".opencode/workflows")
_HOME_FOLDER = ".config/opencode/workflows"
_MARKS = (b"```mermaid", b"~~~mermaid", b"``` mermaid", b"~~~ mermaid")


class AmbiguousName(ConfigurationError):
    """Several files have the name, and none was chosen."""

    def __init__(self, name: str, files: tuple[Path, ...]) -> None:
        """List *files*, which are all called *name*."""
        self.name = name
        self.files = files
        listed = ", ".join(map(str, files))
        super().__init__(
            f"several workflows are called {name!r}: {listed}", hint="name one of them by its path"
        )


def folders(project: Path, home: Path) -> tuple[Path, ...]:
    """Return where workflow files are looked for, in order."""
    return (*(project / folder for folder in _FOLDERS), home / _HOME_FOLDER)


def find_flow(name: str, project: Path, home: Path) -> Path:
    """Return the file that *name* means: a path, or a name with or without ``.md``.

    A path is relative to the current folder, else to *project*.

    Raises:
        AmbiguousName: several folders have a file of that name.
        UnknownName: there is none; the files that there are are listed.
        UnsafePath: a link of the project leads to a file outside of it.
        ConfigurationError: it is a README, whose charts show people something.
    """
    found = _found(name, project, home)
    ensure_within(found, project)
    if _is_about_a_folder(found):
        raise ConfigurationError(
            "is about its folder, and no workflow",
            where=str(found),
            hint="give the workflow a file name of its own",
        )
    return found


def ensure_within(path: Path, project: Path) -> None:
    """Raise UnsafePath if a link of *project* leads *path* to a file outside of it."""
    if leads_out(path, project):
        raise UnsafePath(
            "a link leads out of the project", where=str(path), hint="name the file itself"
        )


def _found(name: str, project: Path, home: Path) -> Path:
    if "\0" in name or not name.strip():
        raise UnknownName("flow", name, _known(project, home))
    for base in (Path.cwd(), project):
        path = base / name
        # A folder of that name, or a file without a suffix that a bare word happens to
        # name, is not what was meant.
        is_path = os.sep in name or path.suffix
        if is_path and path.is_file():
            return path
        if os.sep in name and (with_suffix := base / f"{name}{SUFFIX}").is_file():
            return with_suffix
    found = [] if os.sep in name else list(_called(name, project, home))
    if not found:
        raise UnknownName("flow", name, _known(project, home))
    if len(found) > 1:
        raise AmbiguousName(name, tuple(found))
    return found[0]


def flow_files(project: Path, home: Path) -> tuple[Path, ...]:
    """Return the files in the folders of workflows that have a chart or are a list of tasks."""
    found: list[Path] = []
    for folder in folders(project, home):
        try:
            paths = sorted(folder.iterdir())
        except OSError:
            continue
        for path in paths:
            is_meant = path.suffix.lower() == SUFFIX and not _is_about_a_folder(path)
            is_meant = is_meant and not leads_out(path, project)
            if is_meant and _is_graph(path) and not _is_among(path, found):
                found.append(path)
    return tuple(found)


def _called(name: str, project: Path, home: Path) -> Iterator[Path]:
    found: list[Path] = []
    file = name if name.lower().endswith(SUFFIX) else f"{name}{SUFFIX}"
    for folder in folders(project, home):
        path = folder / file
        # The same file by way of a link, or of a project in the home folder, is one.
        if path.is_file() and not _is_among(path, found):
            found.append(path)
            yield path


def _is_among(path: Path, found: list[Path]) -> bool:
    return any(path.samefile(other) for other in found)


def _is_about_a_folder(path: Path) -> bool:
    return path.stem.lower() == "readme"


def _is_graph(path: Path) -> bool:
    try:
        data = read_bytes(path, 4 * MAX_CHARS)
    except ConfigurationError:
        return False
    return any(mark in data for mark in _MARKS) or is_task_list(data.decode("utf-8", "replace"))


def _known(project: Path, home: Path) -> list[str]:
    return sorted({path.stem for path in flow_files(project, home)})
