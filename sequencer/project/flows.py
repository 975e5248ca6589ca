"""Flowcharts of a project: find one by name or path, and the run that belongs to it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sequencer.engine.flow_source import find_flow_source
from sequencer.engine.run import Run
from sequencer.errors import (
    ConfigurationError,
    SequencerError,
    TransitionRefused,
    UnknownName,
    UsageRefused,
    format_command,
)
from sequencer.files.textfile import MAX_RUN_NAME, slug
from sequencer.model.graph.source import FlowSource
from sequencer.model.head import Head
from sequencer.model.workflow import Workflow
from sequencer.project.project import Project
from sequencer.project.runs import find_run_source, missing_source_error, workflow_of_source
from sequencer.workflows.finding import GraphFile, find_flow, flow_files


def find_flow_file(project: Project, asked: str) -> Path:
    """Return the file for *asked*: the name of a configured workflow, a path, or a name.

    Raises:
        UnknownName: there is no such file.
        ConfigurationError: several files have the name.
    """
    settings = project.settings
    if asked in settings.registry.flows:
        return settings.registry.flows[asked]
    if asked in settings.registry.names:
        raise UsageRefused(
            f"workflow {asked!r} is not a flowchart",
            hint=f"{format_command(None, shlex.join(['run', '--workflow', asked]))} runs it",
        )
    try:
        return find_flow(asked, settings.project_dir, project.home_folder)
    except UnknownName as error:
        flow_names = {*error.known, *settings.registry.flows, *settings.registry.lists}
        raise UnknownName("flow", asked, flow_names) from None


def open_flow(project: Project, asked: str) -> GraphFile:
    """Return the flowchart or the task list for *asked*; see `find_flow_file`.

    Raises:
        ConfigurationError: see `find_flow_file`; or the workflow can't be run.
    """
    registry = project.settings.registry
    if asked in registry.lists:
        return registry.lists[asked]
    path = find_flow_file(project, asked)
    return registry.load(path, name=asked if is_configured(project, asked) else None)


def load_current_graph(
    project: Project, run: Run, workflow: Workflow, source: FlowSource | None = None
) -> GraphFile | None:
    """Return the current source of the graph *workflow* of *run*, or None.

    *source* is the source of a run that has not started. A run that was made from a request has
    no file.

    Raises:
        ConfigurationError: see `open_flow`.
    """
    settings = project.settings
    source = source or find_run_source(settings, run.store)
    if source is not None and source.file is not None:
        path = settings.project_dir / source.file
        return settings.registry.load(path, name=source.workflow.name)
    if run.definition is not None or not is_configured(project, workflow.name):
        return None
    return open_flow(project, workflow.name)


def add_location(
    error: SequencerError,
    project: Project,
    run: Run,
    workflow: Workflow,
    source: FlowSource | None,
) -> None:
    """Add file and line to *error* if it is about nodes of a graph, as `check` does."""
    if not isinstance(error, ConfigurationError):
        return
    nodes = {
        f"{words} {name!r}": name
        for name in (node.id for node in workflow.nodes)
        for words in ("step", "agent of step")
    }
    parts = [(part, nodes[part.where]) for part in error.each if part.where in nodes]
    if not parts:
        return
    # If the file can't be read now, the caller still reports *error* without a line.
    with suppress(SequencerError):
        graph_file = load_current_graph(project, run, workflow, source)
        for part, name in parts:
            if graph_file is not None and name in graph_file.graph.by_id:
                part.where = graph_file.locate_setting(name)


def is_configured(project: Project, asked: str) -> bool:
    """Return whether *asked* is the name of a graph in the settings."""
    registry = project.settings.registry
    return asked in registry.flows or asked in registry.lists


def all_flows(project: Project) -> dict[str, Path]:
    """Return the file of every flowchart of the project, by name."""
    settings = project.settings
    files = dict(settings.registry.flows)
    real_paths = {path.resolve() for path in files.values()}
    for path in flow_files(settings.project_dir, project.home_folder):
        if path.resolve() not in real_paths:
            files[_format_path(path, settings.project_dir)] = path
    return files


def list_project_flows(project: Project) -> list[Path]:
    """Return the files that are workflows of this project, without repetitions.

    They are the configured files and the files in the project's workflow folders. Files next to
    the configuration or in the home folder don't count: they may be any document.
    """
    folder, home = project.settings.project_dir.resolve(), project.home_folder
    files = {path.resolve(): path for path in project.settings.registry.flows.values()}
    for path in flow_files(folder, home):
        real_path = path.resolve()
        if real_path.is_relative_to(folder) and real_path.parent != folder:
            files.setdefault(real_path, path)
    return list(files.values())


def _format_path(path: Path, project_dir: Path) -> str:
    real_path, base = path.resolve(), project_dir.resolve()
    return str(real_path.relative_to(base)) if real_path.is_relative_to(base) else str(real_path)


def make_flow_source(project: Project, asked: str, state: Mapping[str, Any]) -> FlowSource:
    """Return the source for a new run of the flowchart *asked*; see `open_flow`.

    Raises:
        ConfigurationError: see `open_flow`; or *state* has a key that the flow doesn't have.
    """
    flow = open_flow(project, asked)
    source = FlowSource(
        file=None
        if is_configured(project, asked)
        else _format_path(flow.file, project.settings.project_dir),
        state=dict(state),
        workflow=flow.workflow,
    )
    # Apply the state now, so that a wrong key fails before the run exists.
    workflow = workflow_of_source(project.settings, source, None) if state else flow.workflow
    return source.replace(workflow=workflow)


def choose_run_name(
    project: Project,
    asked: str,
    workflow: Workflow,
    name: str | None,
    *,
    means_default: bool = False,
) -> str | None:
    """Return the name of the run for the flowchart *asked*.

    Without *name*, the run has the name of the *workflow*. It is None, the default run, if the
    user *means_default*, or if the settings choose this workflow for the default run.
    """
    if means_default:
        return None
    settings = project.settings
    is_default = settings.workflow.name == workflow.name and is_configured(project, asked)
    return None if name is None and is_default else name or _make_run_name(project, workflow.name)


def resolve_run(
    project: Project,
    asked: str,
    state: Mapping[str, Any],
    name: str | None,
    *,
    is_new: bool,
    means_default: bool = False,
) -> tuple[str | None, FlowSource | None]:
    """Return the name of the run for the flowchart *asked*, and its source.

    *is_new* starts another run next to the existing ones. Without *name*, the user may mean the
    default run (*means_default*). Source None: the run exists and continues.

    Raises:
        TransitionRefused: a run of this name exists and has another workflow.
        UsageRefused: the run exists, and *state* works only for a new run; or *is_new* and
            *means_default* contradict each other.
    """
    if is_new and means_default:
        hint = "leave out --run, or give another name"
        raise UsageRefused("there is only one default run", where="--new", hint=hint)
    source = make_flow_source(project, asked, state)
    workflow_name = source.workflow.name
    run_name = choose_run_name(project, asked, source.workflow, name, means_default=means_default)
    if is_new:
        return _find_free_name(project, run_name or _make_run_name(project, workflow_name)), source
    store = project.run(run_name).store
    head = store.view().head
    if head is None:
        return run_name, source
    old_source = find_flow_source(store) if head.flow is not None else None
    if old_source is None and head.flow is not None:
        raise missing_source_error(project.settings, head)
    if old_source is None or (old_source.file, old_source.workflow.name) != (
        source.file,
        workflow_name,
    ):
        raise TransitionRefused(
            f"run {run_name or 'default'!r} has a different workflow: "
            f"{_describe_start(head, old_source)}",
            hint="--new starts a separate run; --run NAME gives it a name",
        )
    if state and dict(state) != old_source.state:
        raise UsageRefused(
            f"run {run_name or 'default'!r} has already started, so you can't set its state",
            where="--state",
            hint="--new starts another run",
        )
    return run_name, None


def _describe_start(head: Head, source: FlowSource | None) -> str:
    """Return a clause that names the source of the run with *head*."""
    if source is not None and source.file is not None:
        return f"it was started from {source.file}"
    return f"it was started with {head.workflow_name!r}"


def _make_run_name(project: Project, workflow_name: str) -> str:
    """Return the name for a run of the workflow *workflow_name*.

    It is the same name if a person can type it. Otherwise it is the slug, which is also the name
    of a run that an earlier version of this program has started.
    """
    slugged = slug(workflow_name)
    can_be_typed = workflow_name.isprintable() and len(workflow_name) <= MAX_RUN_NAME
    is_old = slugged != workflow_name and slugged in project.run_names()
    return workflow_name if can_be_typed and not is_old else slugged


def _find_free_name(project: Project, base_name: str) -> str:
    slugs = set(map(slug, project.run_names()))
    for number in itertools.count(1):
        name = base_name if number == 1 else f"{base_name}-{number}"
        if slug(name) not in slugs:
            return name
    raise AssertionError("numbers do not end")
