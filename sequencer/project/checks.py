"""The problems of a project, found before a step runs.

Checks configuration, workflows, prompts, agents, state, journal and folders, and continues after
each problem. It changes nothing, takes no lock, and starts no agent.

Not promised: that an agent's account works, or that its model exists. Only a step shows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from sequencer import extensions, packages
from sequencer.engine.kinds import make_changes
from sequencer.engine.run import Run
from sequencer.engine.supported_fields import drop_unsupported_fields, find_optional_fields
from sequencer.errors import (
    ConfigurationError,
    NotTrusted,
    RemoteUnreachable,
    SequencerError,
    StateRefused,
)
from sequencer.files.textfile import SCHEMA_NAME
from sequencer.model.graph.graph import NodeKind
from sequencer.model.head import Head
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.project.agent_checks import (
    check_agents,
    check_client_files,
    check_evidence,
    check_left_processes,
    check_selection_names,
    check_time_limits,
    check_variables,
    check_walls,
)
from sequencer.project.agents import agent_problems, list_agent_steps
from sequencer.project.costs import agent_warnings
from sequencer.project.diagnostics import Area, Diagnostic, Level, diagnose_error
from sequencer.project.flows import list_project_flows
from sequencer.project.folder_checks import check_folders
from sequencer.project.package_checks import check_packages, package_findings
from sequencer.project.permissions import list_permissions
from sequencer.project.project import Project
from sequencer.project.readable import find_prompt_error, find_unprompted_steps, unreadable_prompts
from sequencer.project.runs import progress_evidence_for
from sequencer.project.store_requests import CheckRequest
from sequencer.project.worktrees import WORKTREES
from sequencer.store.diagnosis import Action, Diagnosis, diagnose
from sequencer.store.folder import read_regular
from sequencer.store.protocol import Store
from sequencer.store.reading import ProgressEvidence, no_progress_evidence
from sequencer.workflows.registry import with_defaults
from sequencer.workflows.router import allowed_prompts

if TYPE_CHECKING:
    from sequencer.workflows.finding import GraphFile

MAX_BAD_LINES = 20
"""Maximum number of bad lines that are listed for one journal file."""


def check_project(project: Project, run: str | None) -> list[Diagnostic]:
    """Return the problems of *project* and of its run called *run*, the most basic first."""
    parts = (
        # Must be first: it loads the workflows that the other parts check.
        _check_store_and_run(project, run),
        check_flows(project),
        check_agents(project, Level.NOTICE),
        check_selection_names(project),
        check_client_files(project),
        check_walls(project),
        check_variables(project),
        _check_plugins(project, run),
        _check_schema(project),
        _check_code(project, run),
        _check_worktrees(project),
        check_folders(project, run),
        check_packages(),
    )
    notices = [
        Diagnostic(Level.NOTICE, Area.CONFIGURATION, text) for text in project.settings.notices
    ]
    return deduplicate([*notices, *(finding for part in parts for finding in _catch_errors(part))])


def deduplicate(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return *found* without repetitions.

    An agent that a step names is found twice; the first finding has the more severe level.
    """
    findings: dict[tuple[str, str | None], Diagnostic] = {}
    for finding in found:
        findings.setdefault((finding.message, finding.where), finding)
    return list(findings.values())


def _catch_errors(part: Iterator[Diagnostic]) -> Iterator[Diagnostic]:
    """Yield the findings of *part*; if code or a server outside this program fails, yield that.

    A server that may not be contacted, because the project is not trusted, is a finding too.

    Raises:
        Exception: code of this program failed.
    """
    try:
        yield from part
    except RemoteUnreachable as error:
        yield from diagnose_error(Area.REMOTE, error)
    except NotTrusted as refusal:
        yield _describe_distrust(refusal, Level.ERROR)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again, if it is a bug
        yield from package_findings(error)


def _check_store_and_run(project: Project, run: str | None) -> Iterator[Diagnostic]:
    opened_run = project.run(run)
    with closing(opened_run.store):
        yield from _catch_errors(_check_store(project, opened_run.store, acts=project.acts))
        yield from _check_run(project, opened_run)


def check_statically(project: Project) -> Iterator[Diagnostic]:
    """Yield the problems that reading *project* shows, without running any of its code."""
    try:
        yield from _catch_errors(_check_static_parts(project))
    except SequencerError as error:
        yield from diagnose_error(Area.CONFIGURATION, error)
    yield from check_packages()
    yield from _catch_errors(check_agents(project, Level.WARNING))


def _check_static_parts(project: Project) -> Iterator[Diagnostic]:
    kind = project.settings.store_kind
    if kind.checks is not None and not kind.needs_trust:
        yield from _check_store(project, project.run(None).store, acts=False)
    yield from check_flows(project)
    yield from check_folders(project, None)
    yield from _check_plugins(project, None, looks=True)
    yield from _check_sinks(project, None)


def _ensure_diagnostic(item: Any) -> Diagnostic:
    if not isinstance(item, Diagnostic):
        raise TypeError(f"{packages.describe(item)} is not a Diagnostic")
    return item


def _check_plugins(
    project: Project, run: str | None, *, looks: bool = False
) -> Iterator[Diagnostic]:
    """Yield the findings of plug-ins; see `extensions.CHECKS`."""
    for _, find in extensions.load_builtins(extensions.CHECKS):
        yield from _catch_errors(find(project, run, looks=looks))
    failures: list[ConfigurationError] = []
    only_looks = looks or not project.trust.is_current
    for point, find in extensions.load_from_packages(extensions.CHECKS, failures.append):
        try:
            with extensions.package_code(extensions.CHECKS, point.name, point):
                findings = [
                    _ensure_diagnostic(item) for item in find(project, run, looks=only_looks)
                ]
            yield from findings
        except ConfigurationError as error:
            failures.append(error)
    for failure in failures:
        yield from diagnose_error(Area.CONFIGURATION, failure)


def _check_store(project: Project, store: Store, *, acts: bool) -> Iterator[Diagnostic]:
    """Yield the findings of the kind of *store*; *acts*: whether its remote may be reached."""
    kind = project.settings.store_kind
    if kind.checks is not None:
        request = CheckRequest(project.settings, store, acts)
        with extensions.package_code(extensions.STORES, kind.name):
            findings = [
                _ensure_diagnostic(item) for item in extensions.resolve_part(kind.checks)(request)
            ]
        yield from findings


def _check_run(project: Project, run: Run) -> Iterator[Diagnostic]:
    """Yield findings about the workflow of *run* and about its files."""
    settings = project.settings
    path = run.store.state_path
    # A run on a server leaves outputs in the folder, but no head or journal files.
    has_files = settings.store_kind.has_files
    state_findings = (
        list(check_state(path, progress_evidence_for(settings, path))) if has_files else []
    )
    head = None
    try:
        head = run.view().head
    except (ConfigurationError, StateRefused) as error:
        is_of_files = isinstance(error, StateRefused) and not isinstance(error, RemoteUnreachable)
        area = Area.STATE if is_of_files else Area.REMOTE
        is_known = any(finding.level is Level.ERROR for finding in state_findings)
        state_findings += [] if is_known else diagnose_error(area, error)
    try:
        workflow = _find_workflow(project, run, head)
    except ConfigurationError as error:
        yield from diagnose_error(Area.WORKFLOW, error)
    except StateRefused as error:
        state_findings += diagnose_error(Area.STATE, error)
    else:
        yield from _catch_errors(_check_kind(run.store, workflow))
        if not workflow.nodes and _is_asked_for(project, head):
            yield from check_workflow(project, workflow)
        if head is not None:
            try:
                ensure_definition(head, workflow)
            except StateRefused as error:
                state_findings += diagnose_error(Area.STATE, error)
    other_workflows = [
        workflow
        for name, workflow in settings.workflows.items()
        if name != settings.workflow.name and not workflow.nodes
    ]
    for other_workflow in other_workflows:
        yield from _catch_errors(_check_kind(run.store, other_workflow))
        yield from check_prompts(project, other_workflow, Level.WARNING)
        yield from _check_costs(project, other_workflow)
    yield from state_findings
    yield from check_left_processes(path)


def _find_workflow(project: Project, run: Run, head: Head | None) -> Workflow:
    """Return the workflow of *run*; if its server does not answer, the one of a new run.

    Raises:
        ConfigurationError: the workflow can't be read.
        StateRefused: the files of the run can't be read.
    """
    try:
        return run.workflow_for(head)
    except RemoteUnreachable:
        return project.settings.default_workflow()


def _check_kind(store: Store, workflow: Workflow) -> Iterator[Diagnostic]:
    """Yield the reason if the kind of *workflow*, perhaps from a package, can't be used."""
    try:
        make_changes(store, workflow)
    except ConfigurationError as error:
        yield from diagnose_error(Area.WORKFLOW, error)


def _is_asked_for(project: Project, head: Head | None) -> bool:
    """Return whether the workflow of the default run is used.

    A project with flowcharts, teams or named runs may not need it.
    """
    is_named = project.settings.get_source("workflow", "name").kind != "default"
    has_others = bool(project.settings.registry.lists or list_project_flows(project))
    # If a server has the names of the runs and does not answer, `_check_run` reports that.
    with suppress(RemoteUnreachable):
        has_others = has_others or bool(project.run_names())
    return head is not None or is_named or not has_others


def check_workflow(project: Project, workflow: Workflow) -> Iterator[Diagnostic]:
    """Yield the problems that would stop *workflow*, such as a missing prompt or agent."""
    where = f"workflow {workflow.name}"
    yield from check_prompts(project, workflow, Level.ERROR)
    if workflow.review is not None and not workflow.review_every:
        message = (
            "the workflow has a review step, but review_every_n is not set, so it never reviews"
        )
        hint = "set workflow.review_every_n, or choose a workflow without a review"
        yield Diagnostic(Level.WARNING, Area.WORKFLOW, message, where, hint)
    yield from _check_router(project, workflow)
    problems: dict[str, Diagnostic] = {}
    for step, position in _list_step_positions(project, workflow):
        try:
            name, executor = project.agents.choose(step, position)
            messages = agent_problems(executor)
        except ConfigurationError as error:
            for finding in diagnose_error(Area.AGENT, error):
                problems.setdefault(str(finding), finding)
            continue
        for problem in messages:
            finding = Diagnostic(Level.ERROR, Area.AGENT, problem, f"agent {name}")
            problems.setdefault(str(finding), finding)
    yield from problems.values()
    yield from _check_permissions(project, workflow)
    yield from check_variables(project, list_agent_steps(project.settings, workflow))
    yield from _check_decisions(workflow)
    yield from _check_costs(project, workflow)
    yield from check_time_limits(project, workflow)
    yield from check_evidence(project, workflow)


def _check_permissions(project: Project, workflow: Workflow) -> Iterator[Diagnostic]:
    """Yield one diagnostic per agent: its permissions, or a warning that it can't edit files."""
    for permission in list_permissions(project.agents, workflow):
        where, warning = f"agent {permission.agent}", permission.warning
        if warning is None:
            text = f"permissions: {permission.summary}"
            yield Diagnostic(Level.NOTICE, Area.AGENT, text, where)
        else:
            yield Diagnostic(Level.WARNING, Area.AGENT, warning, where, permission.hint)


def _check_decisions(workflow: Workflow) -> Iterator[Diagnostic]:
    """Yield a notice if *workflow* waits for people, because an agent could pass for one."""
    has_gate = any(step.requires_approval for step in workflow.steps)
    if has_gate or any(node.kind is NodeKind.HUMAN for node in workflow.nodes):
        message = (
            "people decide here, but an agent that runs as you can pass for you, as through tmux"
        )
        hint = "run agents as another user; 'Who is an agent' in docs/protocol.md lists the ways"
        yield Diagnostic(Level.NOTICE, Area.WORKFLOW, message, hint=hint)


def _check_costs(project: Project, workflow: Workflow) -> Iterator[Diagnostic]:
    """Yield the agents that a cost cap can't stop, and those that can't replace others."""
    caps = project.settings.cost_caps(workflow)
    for message, hint in agent_warnings(project, workflow, caps):
        yield Diagnostic(Level.WARNING, Area.AGENT, message, f"workflow {workflow.name}", hint)


def check_flows(project: Project) -> Iterator[Diagnostic]:
    """Yield every problem of each flowchart, including nodes that no agent can run.

    Skips files next to the configuration: a README with a chart is not a workflow.
    """
    registry = project.settings.registry
    names = {path.resolve(): name for name, path in registry.flows.items()}
    for path in list_project_flows(project):
        try:
            flow = registry.load(path, name=names.get(path.resolve()))
        except ConfigurationError as error:
            yield from diagnose_error(Area.WORKFLOW, error)
            continue
        yield from _check_graph(project, flow)
    for task_list in registry.lists.values():
        yield from _check_graph(project, task_list)


def _check_worktrees(project: Project) -> Iterator[Diagnostic]:
    try:
        if project.settings.worktree or WORKTREES.get() is not None:
            yield from WORKTREES.require().diagnostics(project)
    except extensions.PluginUnavailable as error:
        yield from diagnose_error(Area.CONFIGURATION, error)


def _check_graph(project: Project, flow: GraphFile) -> Iterator[Diagnostic]:
    """Yield the warnings about *flow*, and the fields that its agents don't support."""
    for warning in flow.warnings:
        yield from diagnose_error(Area.WORKFLOW, warning, Level.WARNING)
    if flow.workflow.tasks:
        yield from check_prompts(project, flow.workflow, Level.ERROR)
        if (provider := WORKTREES.get()) is not None:
            yield from provider.graph_findings(project, flow)
    yield from _check_permissions(project, flow.workflow)
    yield from _check_decisions(flow.workflow)
    yield from _check_costs(project, flow.workflow)
    yield from check_time_limits(project, flow.workflow)
    yield from check_evidence(project, flow.workflow)
    optional_fields = find_optional_fields(flow.workflow)
    unsupported_fields: dict[str, set[str]] = {}
    for step in flow.workflow.steps:
        full_step = with_defaults(step, project.settings.step_defaults)
        try:
            fitting_step, lost_fields = drop_unsupported_fields(
                project.agents, full_step, step.name, optional_fields.get(step.name, ())
            )
            name, executor = project.agents.choose(fitting_step, step.name)
            problems = agent_problems(executor)
        except ConfigurationError as error:
            where = flow.locate_setting(step.name)
            yield from [replace(item, where=where) for item in diagnose_error(Area.AGENT, error)]
            continue
        unsupported_fields.setdefault(name, set()).update(lost_fields)
        for problem in problems:
            yield Diagnostic(Level.WARNING, Area.AGENT, problem, f"agent {executor.kind}")
    for name, fields in unsupported_fields.items():
        if fields:
            message = f"it does not support {', '.join(sorted(fields))}"
            where = f"workflow {flow.workflow.name}, agent {name}"
            hint = "the nodes run without these fields; remove them, or name another agent"
            if flow.workflow.tasks:
                message += ", which roles of its tasks set"
                hint = (
                    "the tasks run without these fields; change them in the role below teams.roles"
                )
            yield Diagnostic(Level.WARNING, Area.AGENT, message, where, hint)


def _list_step_positions(project: Project, workflow: Workflow) -> Iterator[tuple[Step, str]]:
    """Yield each step with its defaults, once for each position where it can run."""
    defaults = project.settings.step_defaults
    is_reviewing = workflow.review is not None and workflow.review_every > 0
    for step in workflow.steps:
        yield with_defaults(step, defaults), step.name
        if step.validation is not None and step.validation.fixer is not None:
            yield with_defaults(step.validation.fixer, defaults), step.name
        if is_reviewing and workflow.review is not None:
            yield with_defaults(workflow.review.step, defaults), step.name


def check_prompts(project: Project, workflow: Workflow, level: Level) -> Iterator[Diagnostic]:
    """Yield the prompts and system prompts of *workflow* that can't be read."""
    review = workflow.review
    for step, name, error in unreadable_prompts(project, workflow):
        is_idle = review is not None and step is review.step and not workflow.review_every
        where = f"workflow {workflow.name}, step {step.name!r}"
        message = error.message if name in error.message else f"{name}: {error.message}"
        yield Diagnostic(
            Level.WARNING if is_idle else level, Area.WORKFLOW, message, where, error.hint
        )
    for step, reason in find_unprompted_steps(project, workflow):
        where = f"workflow {workflow.name}, step {step.name!r}"
        message = f"{reason}, so its program gets nothing on standard input"
        yield Diagnostic(Level.NOTICE, Area.WORKFLOW, message, where)


def _check_router(project: Project, workflow: Workflow) -> Iterator[Diagnostic]:
    router = project.settings.router
    if not router.is_active or router.prompt is None:
        return
    error = find_prompt_error(project, router.prompt)
    if error is not None:
        yield Diagnostic(Level.ERROR, Area.WORKFLOW, error.message, "router.prompt", error.hint)
    if not router.allowlist:
        return
    checked_names = {*(step.prompt_name for step in workflow.steps)}
    for name in sorted(allowed_prompts(workflow, router) - checked_names):
        error = find_prompt_error(project, name)
        if error is not None:
            yield Diagnostic(
                Level.ERROR, Area.WORKFLOW, error.message, "router.allowlist", error.hint
            )


def editors_schema() -> str:
    """Return the JSON schema of the configuration, for editors."""
    path = files("sequencer").joinpath("builtin", "orchestration.schema.json")
    return path.read_text(encoding="utf-8")


def _check_schema(project: Project) -> Iterator[Diagnostic]:
    """Yield a notice if the schema file for editors is from another release."""
    config = project.settings.config_path
    if config is None:
        return
    path, schema = config.with_name(SCHEMA_NAME), editors_schema().encode()
    with suppress(OSError, SequencerError):
        if read_regular(path, max_bytes=len(schema)) != schema:
            text = f"{SCHEMA_NAME} is from another release, so editors may mark the wrong keys"
            hint = f"'sequencer check --schema > {SCHEMA_NAME}' writes the one of this release"
            yield Diagnostic(Level.NOTICE, Area.CONFIGURATION, text, str(path), hint)


def _check_code(project: Project, run: str | None) -> Iterator[Diagnostic]:
    """Yield why the project's hooks can't be loaded, and the problems of its sinks.

    Hooks of an untrusted project are not loaded; a warning says so.
    """
    try:
        refusal = project.trust.refusal()
        if refusal is None:
            _ = project.hooks
        else:
            yield _describe_distrust(refusal, Level.WARNING)
    except (ConfigurationError, NotTrusted) as error:
        yield from diagnose_error(Area.CONFIGURATION, error)
    yield from _check_sinks(project, run)


def _describe_distrust(refusal: NotTrusted, level: Level) -> Diagnostic:
    hint = "'sequencer trust' shows what it can do, and asks you"
    return Diagnostic(level, Area.CONFIGURATION, refusal.message, refusal.project, hint)


def _check_sinks(project: Project, run: str | None) -> Iterator[Diagnostic]:
    if (posting := project.posting) is not None:
        for where, text in posting.problems(run):
            yield Diagnostic(Level.ERROR, Area.CONFIGURATION, text, where)


def check_state(
    state_path: Path, progress: ProgressEvidence = no_progress_evidence
) -> Iterator[Diagnostic]:
    """Yield findings about the files of the run at *state_path*, without changing any.

    *progress* gives the evidence in the step logs.
    """
    try:
        diagnosis = diagnose(state_path, progress)
    except StateRefused as error:
        yield from diagnose_error(Area.STATE, error)
        return
    hint = "'sequencer repair' shows what can be saved"
    if diagnosis.refusal is not None:
        area = (
            Area.JOURNAL if any(report.scan.gaps for report in diagnosis.journals) else Area.STATE
        )
        yield Diagnostic(
            Level.ERROR,
            area,
            diagnosis.refusal.message,
            diagnosis.refusal.where,
            diagnosis.refusal.hint or hint,
        )
    elif diagnosis.action is Action.RESTORE:
        message = f"{diagnosis.state.problem}; the next step restores it from the journal"
        yield Diagnostic(Level.WARNING, Area.STATE, message, str(state_path))
    elif diagnosis.pending is not None:
        yield Diagnostic(Level.NOTICE, Area.STATE, diagnosis.pending, str(state_path))
    for path, reason in diagnosis.documents:
        hint = "'sequencer repair' shows what you can do"
        yield Diagnostic(Level.ERROR, Area.STATE, reason, str(path), hint)
    yield from _check_journals(diagnosis)


def _check_journals(diagnosis: Diagnosis) -> Iterator[Diagnostic]:
    for report in diagnosis.journals:
        where = str(report.path)
        if report.problem is not None:
            yield Diagnostic(Level.ERROR, Area.JOURNAL, report.problem, where)
        for gap in report.scan.gaps:
            refusal = diagnosis.refusal
            if refusal is None or (refusal.where, refusal.message) != (where, str(gap)):
                hint = "'sequencer repair' can continue after the gap"
                yield Diagnostic(Level.ERROR, Area.JOURNAL, str(gap), where, hint)
        for offset, reason in report.misfits[:MAX_BAD_LINES]:
            message = f"the journal does not continue at byte {offset}: {reason}"
            hint = "restore the run's folder as it was before; after a merge, of one branch only"
            yield Diagnostic(Level.ERROR, Area.JOURNAL, message, where, hint)
        for offset, reason in report.scan.skipped[:MAX_BAD_LINES]:
            message = f"the line at byte {offset} does not count: {reason}"
            yield Diagnostic(Level.WARNING, Area.JOURNAL, message, where)
        excess = len(report.scan.skipped) - MAX_BAD_LINES
        if excess > 0:
            message = f"{excess} more lines do not count"
            yield Diagnostic(Level.WARNING, Area.JOURNAL, message, where)
