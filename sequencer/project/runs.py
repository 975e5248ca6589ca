"""The runs of a project: the workflow and the store of each run."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sequencer.engine.flow_source import find_flow_source
from sequencer.engine.logs import build_progress_evidence, find_later_logs
from sequencer.errors import (
    ConfigurationError,
    CorruptState,
    StateRefused,
    StepsMissing,
    UnsafePath,
    UsageRefused,
    format_command,
)
from sequencer.files.textfile import is_linked_outside, slug
from sequencer.frozen.fields import ValidationError
from sequencer.model.graph.source import FlowSource, with_state
from sequencer.model.head import FLOW_DOCUMENT, Head
from sequencer.model.request import DEFINITION_FILE, Definition
from sequencer.model.sequence.order import find_step_ref
from sequencer.model.workflow import Workflow
from sequencer.project.settings import Settings
from sequencer.project.store_requests import StoreRequest
from sequencer.store.file import FileStore
from sequencer.store.folder import keep_from_git
from sequencer.store.head import migrate, read_head
from sequencer.store.highwater import HighWaterMark
from sequencer.store.identity import utc_now
from sequencer.store.protocol import Store
from sequencer.store.reading import ProgressEvidence, no_progress_evidence
from sequencer.store.recovery import find_furthest_mark, missing_steps_error


def read_definition(store: Store) -> Definition | None:
    """Return the definition of the run in *store*; None for a run without a request.

    Raises:
        CorruptState: the file is not a definition. The program never guesses a run's steps.
    """
    data = store.read_document(DEFINITION_FILE)
    if data is None:
        return None
    try:
        return Definition.model_validate_json(data)
    except ValidationError as error:
        raise CorruptState(
            f"is not the definition of a run: {error.messages(with_values=False)[0]}",
            where=str(store.state_path.with_name(DEFINITION_FILE)),
            hint="restore the file, or start a new run from the same request",
        ) from None


def find_run_source(
    settings: Settings, store: Store, head: Head | None = None
) -> FlowSource | None:
    """Return the source that the run in *store* started with, or None.

    Without *head*, the head is read from the store. The result is None if ``--workflow`` names
    another workflow: that is how a person continues a run whose workflow file was removed.

    Raises:
        CorruptState: see `find_flow_source`.
    """
    is_named = _is_flag(settings, "name")
    try:
        source = find_flow_source(store)
    except CorruptState:
        if is_named or _has_no_graph(store, head):
            return None
        raise
    if source is None or (is_named and source.file is not None) or _has_no_graph(store, head):
        return None
    return source


def _has_no_graph(store: Store, head: Head | None) -> bool:
    """Return whether the run has no graph; a reset may have removed it."""
    try:
        head = head or store.view().head
    except StateRefused:
        return False
    return head is not None and head.flow is None


def _recover_workflow(settings: Settings, head: Head) -> Workflow:
    """Return the workflow of the graph run with *head*, whose ``flow.json`` is missing.

    Raises:
        CorruptState: no option and no configured workflow has its name.
    """
    if _is_flag(settings, "name"):
        return workflow_for(settings, head)
    if head.workflow_name in settings.registry.names:
        return settings.registry.get(head.workflow_name)
    raise missing_source_error(settings, head)


def missing_source_error(settings: Settings, head: Head) -> CorruptState:
    """Return the error for a graph run whose source is missing."""
    return CorruptState(
        f"is missing; the run of {head.workflow_name!r} can't continue without it",
        where=str(_folder(settings, head) / FLOW_DOCUMENT),
        hint=f"restore the file; or {_restart_hint(settings, head)}",
    )


def _folder(settings: Settings, head: Head) -> Path:
    folder = settings.state_file.parent
    return folder if head.run_name is None else folder / "runs" / slug(head.run_name)


def _restart_hint(settings: Settings, head: Head) -> str:
    command = format_command(head.run_name, "reset --yes --workflow WORKFLOW")
    text = f"{command} starts another workflow instead"
    if head.run_name is None:
        return text
    return f"{text}; or remove {_folder(settings, head)} to delete the run"


def workflow_of_source(settings: Settings, source: FlowSource, head: Head | None) -> Workflow:
    """Return the workflow that *source* names, read from its current file.

    Raises:
        ConfigurationError: the file is missing, or is no longer a workflow.
    """
    if source.file is None:
        # A named run keeps its flow, even if the settings change the default run's workflow.
        is_kept = (head is None or head.run_name is not None) and not _is_flag(settings, "name")
        name = source.workflow.name
        workflow = settings.find_workflow(name) if is_kept else workflow_for(settings, head)
    else:
        path = settings.project_dir / source.file
        if not path.is_file():
            hint = "restore it; the run has kept everything that was done"
            raise ConfigurationError(
                "the workflow's file is missing",
                where=str(path),
                hint=hint if head is None else f"{hint}. Or {_restart_hint(settings, head)}",
            )
        workflow = settings.registry.load(path, name=source.workflow.name).workflow
    try:
        return with_state(workflow, source.state)
    except KeyError as error:
        known_keys = workflow.graph.state if workflow.graph else ()
        raise ConfigurationError(
            f"the state has no key {error.args[0]!r}",
            where="--state",
            hint=f"its keys: {', '.join(known_keys) or 'none'}",
        ) from None


def workflow_of_run(
    settings: Settings,
    head: Head | None,
    definition: Definition | None,
    source: FlowSource | None = None,
) -> Workflow:
    """Return the workflow of the run with *head*; a run made from a request has its own.

    Raises:
        ConfigurationError: ``--workflow`` names another workflow, or ``--review-every`` is set and
            the workflow has no review.
        CorruptState: the run's definition is missing.
    """
    workflow = _workflow_of_run(settings, head, definition, source)
    interval = settings.workflow.review_every_n or 0
    if interval > 0 and workflow.review is None and _is_flag(settings, "review_every_n"):
        raise ConfigurationError(
            f"workflow {workflow.name!r} has no review step",
            where="--review-every",
            hint="'review_cadence' is 'standard' with a reviewer; 'sequencer plan --list' shows "
            "which workflows have one",
        )
    return workflow


def _workflow_of_run(
    settings: Settings,
    head: Head | None,
    definition: Definition | None,
    source: FlowSource | None,
) -> Workflow:
    if definition is None and head is not None and head.has_definition:
        raise CorruptState(
            "the run was made from a request, and its definition is missing",
            where=f"{DEFINITION_FILE} next to its state.json",
            hint="restore the file, or start a new run from the same request",
        )
    if source is not None and definition is None:
        return workflow_of_source(settings, source, head)
    if definition is None and head is not None and head.flow is not None:
        return _recover_workflow(settings, head)
    if definition is None:
        return workflow_for(settings, head)
    workflow = definition.workflow
    if _is_flag(settings, "name") and settings.workflow.name != workflow.name:
        raise ConfigurationError(
            f"the run was made from a request and has its own steps ({workflow.name})",
            where="--workflow",
            hint="leave out the option, or name another run with --run",
        )
    return workflow


_GRANTS = frozenset({"allowed_tools", "tools", "agents"})
"""Fields of a step that give an agent more than its entry does."""


def ensure_covered(settings: Settings, run: str, store: Store) -> None:
    """Check that the project's files allow the workflow and the tools of the run in *store*.

    The run may have been started on another machine, by anyone who can write to the server.

    Raises:
        UnsafePath: the run's workflow file is outside the project.
        UsageRefused: its steps get tools that no workflow of the project gives.
    """
    source, definition = find_flow_source(store), read_definition(store)
    file = None if source is None else source.file
    if file is not None:
        path = Path(os.path.normpath(settings.project_dir / file))
        if not path.is_relative_to(settings.project_dir) or is_linked_outside(
            path, settings.project_dir
        ):
            raise UnsafePath("the run's workflow is outside the project", where=file)
    run_grants = set() if definition is None else set(_find_grants(_dump(definition.workflow)))
    if run_grants and (excess_grants := run_grants - _collect_project_grants(settings)):
        text = "the run gives its agents tools that no workflow of this project gives"
        hint = "start a new run from the files of this project"
        raise UsageRefused(f"{text}: {', '.join(sorted(excess_grants))}", where=run, hint=hint)


def _collect_project_grants(settings: Settings) -> set[str]:
    """Return the tools that the project, or a built-in workflow, gives to any step."""
    grants = {*_find_grants(settings.step_defaults)}
    grants |= {grant for part in settings.sections.values() for grant in _find_grants(_dump(part))}
    for name in settings.registry.names:
        with contextlib.suppress(ConfigurationError):
            grants.update(_find_grants(_dump(settings.registry.get(name))))
    return grants


def _dump(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_defaults=True)


def _find_grants(value: Any) -> Iterator[str]:
    """Yield a short text for each tool that a step anywhere in *value* gives its agent."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, child in items:
        if key in _GRANTS and isinstance(child, dict):
            yield from (f"{key} {name} {json.dumps(item)}" for name, item in child.items() if item)
        elif key in _GRANTS and isinstance(child, list):
            yield from (f"{key} {item}" for item in child)
        elif isinstance(child, (dict, list)):
            yield from _find_grants(child)


def workflow_for(settings: Settings, head: Head | None) -> Workflow:
    """Return the workflow of the run with *head*, or of a run that has not started.

    A workflow that the user asks for wins (see `_is_asked`); a run that started with another one
    refuses it later. Otherwise the run keeps its workflow and its review interval.
    """
    name, where = settings.workflow.name, None
    if head is not None and not _is_asked(settings, "name", head):
        name, where = head.workflow_name, f"run {head.run_name or head.run_id!r}"
    workflow = settings.find_workflow(name, where=where)
    is_asked = _is_asked(settings, "review_every_n", head)
    interval = settings.workflow.review_every_n if is_asked else None
    if interval is not None and workflow.review is not None:
        return workflow.with_review_every(interval)
    initial_interval = (head.params if head is not None else {}).get("review_every_n_cycles")
    if workflow.review is None or type(initial_interval) is not int:
        return workflow
    is_own = head is not None and head.run_name is not None and head.workflow_name == name
    return (
        workflow.with_review_every(initial_interval)
        if is_own or not workflow.review_every
        else workflow
    )


def _is_asked(settings: Settings, key: str, head: Head | None) -> bool:
    """Return whether the user asks for *key* of `workflow` in the run with *head*.

    File and environment count for the default run, and for runs that have not started. A named
    run may have started with another workflow, so only an option counts for it.
    """
    if head is not None and head.run_name is not None:
        return _is_flag(settings, key)
    return settings.get_source("workflow", key).kind != "default"


def _is_flag(settings: Settings, key: str) -> bool:
    return settings.get_source("workflow", key).kind == "flag"


def file_store(
    request: StoreRequest, state_path: Path | None = None, kind: type[FileStore] = FileStore
) -> FileStore:
    """Return the store of a run in files on this machine, with all options of `store:`.

    A package may keep the head at another *state_path*, and use a *kind* of its own.
    """
    options, path = request.settings.store, state_path or request.state_path
    return kind(
        path,
        ttl_s=options.ttl_s,
        allow_network_fs=options.allow_network_fs,
        rotate_bytes=options.journal.rotate_bytes,
        keep=options.journal.keep,
        migrate=request.to_head,
        progress=_progress_in_logs(request.settings, path),
        mark=HighWaterMark(path),
        redact=request.redact,
    )


def copy_of_run(request: StoreRequest) -> Store:
    """Return a store that reads a run's files because its own kind of store is unavailable.

    Raises:
        PluginUnavailable: there are no files: the run is elsewhere.
    """
    error = request.settings.missing_store
    if error is not None and not request.state_path.exists():
        raise error
    return file_store(request)


def progress_evidence_for(settings: Settings, state_path: Path) -> ProgressEvidence:
    """Return the function that finds evidence of progress for the run at *state_path*.

    It searches step logs and this user's records. For a store that machines share it finds
    nothing, because such a store compares with the shared copy.
    """
    if not settings.store_kind.is_local:
        return no_progress_evidence
    return HighWaterMark(state_path).prepend_to(_progress_in_logs(settings, state_path))


def find_lost_steps(
    settings: Settings, state_path: Path, head: Head, folders_of_logs: Iterable[Path]
) -> StepsMissing | None:
    """Return the error if *head* is older than the evidence of progress; None: it is not.

    For commands that only read. If this user has a record of the run, only that record and the
    log of the next attempt are read; otherwise all evidence of `progress_evidence_for`. The error
    counts only if *head* is still the newest: a worker may have continued meanwhile.
    """
    if not settings.store_kind.is_local or head.moved_to is not None:
        return None
    records = tuple(HighWaterMark(state_path).find_marks(head.run_id))
    all_logs = _progress_in_logs(settings, state_path)
    log_marks = find_later_logs(folders_of_logs, head) if records else all_logs(head.run_id)
    evidence = find_furthest_mark(head, head.revision, (*records, *log_marks))
    return (
        None if evidence is None else missing_steps_error(state_path, head, head.revision, evidence)
    )


def _progress_in_logs(settings: Settings, state_path: Path) -> ProgressEvidence:
    is_default = state_path == settings.state_file
    return build_progress_evidence(
        settings.logs_dir, None if is_default else state_path.parent.name
    )


def read_run_name(state_path: Path) -> str | None:
    """Return the name of the run in *state_path*'s folder, if its head can be read."""
    try:
        name = (read_head(state_path).content or {}).get("run_name")
    except (OSError, StateRefused):
        return None
    return name if isinstance(name, str) and slug(name) == state_path.parent.name else None


def get_state_path(settings: Settings, run: str | None) -> Path:
    """Return the path of a run's head; the default run's is ``state_file`` itself."""
    if run is None:
        return settings.state_file
    return settings.state_file.parent / "runs" / slug(run) / settings.state_file.name


def make_store(
    settings: Settings,
    run: str | None,
    allowed: Callable[[], Mapping[str, str] | None] = lambda: None,
    redact: Callable[[str], str] = str,
) -> Store:
    """Return the store of a run; for *allowed* and *redact* see `StoreRequest`.

    Raises:
        ConfigurationError: the package that provides the kind returned no store.
    """
    for folder in (settings.state_file.parent, settings.logs_dir):
        if not any(
            path.is_relative_to(folder) for path in (settings.project_dir, settings.prompts_dir)
        ):
            keep_from_git(folder)

    def to_head(raw: dict[str, Any]) -> Head:
        workflow = workflow_for(settings, None)
        legacy_name = raw.get("workflow_name")
        if isinstance(legacy_name, str) and legacy_name in settings.registry.names:
            is_default = settings.get_source("workflow", "name").kind == "default"
            workflow = settings.registry.get(legacy_name) if is_default else workflow
        return migrate(
            raw,
            new_run_id=str(uuid.uuid4()),
            workflow_name=workflow.name,
            digest=workflow.digest(),
            params=workflow.params,
            expected_step_for=lambda index: find_step_ref(workflow, index).step,
            at=utc_now(),
            cycle_length=len(workflow.steps),
        )

    path = get_state_path(settings, run)
    request = StoreRequest(settings, path, run, to_head, allowed, redact)
    return settings.store_kind.open(request)
