"""A project: its settings, and every object that is built from them.

Only the modules in this folder choose concrete classes; the rest of the package sees protocols.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer import extensions
from sequencer.engine.dispatch import find_dispatcher
from sequencer.engine.events import Emit, NoticeGiven
from sequencer.engine.hooking import Hooks, NoHooks
from sequencer.engine.logs import StepLogs, current_branch
from sequencer.engine.performing import Performer
from sequencer.engine.prompts import PromptFolder
from sequencer.engine.run import Run
from sequencer.engine.run_commands import ensure_may_decide
from sequencer.engine.workspace import BranchGuard, Workspace
from sequencer.errors import ConfigurationError, SequencerError, StepsMissing
from sequencer.executors.redaction import Redaction
from sequencer.files.textfile import expand_home
from sequencer.files.yamlfile import KeyPath
from sequencer.model.head import Head, Status
from sequencer.model.request import Definition
from sequencer.model.workflow import Workflow
from sequencer.project.agents import AgentOverrides, ConfiguredAgents
from sequencer.project.live_limits import LiveLimits
from sequencer.project.runs import (
    ensure_covered,
    find_lost_steps,
    find_run_source,
    get_state_path,
    make_store,
    read_definition,
    read_run_name,
    workflow_of_run,
)
from sequencer.project.schema import CURRENT, NONE
from sequencer.project.settings import Settings, load
from sequencer.project.sources import FlagValue
from sequencer.project.store_requests import CodeRequest
from sequencer.project.task_graphs import TASK_GRAPHS
from sequencer.project.trust import Rule, find_rule
from sequencer.project.trusting import Ask, Trust
from sequencer.project.worktrees import WORKTREES, ensure_same_worktree
from sequencer.store import folder as folders
from sequencer.store.ownership import set_project_folders
from sequencer.store.protocol import Store
from sequencer.workflows.finding import GraphFile, flow_files
from sequencer.workflows.registry import with_defaults

if TYPE_CHECKING:
    from sequencer.engine.capacity import CapacityRule
    from sequencer.engine.tasks import TaskExecution
    from sequencer.engine.tree_state import UnmergedWork
    from sequencer.engine.worker import Worker
    from sequencer.model.graph.source import FlowSource
    from sequencer.project.posting import Posting


class Project(Struct, frozen=True, dict=True):
    """The settings and every object that is built from them.

    Modules that only a few commands need are imported where they are used: most commands read
    one run and should start fast.
    """

    settings: Settings
    agents: ConfiguredAgents
    prompts: PromptFolder
    redaction: Redaction
    trust: Trust
    acts: bool = True
    """Whether it may run its code and reach remotes; if not, it is only read."""
    due: set[str | None] = field(default_factory=set)
    """Runs that a schedule starts now, even if an agent calls `tick`; see `Scheduler.start_due`."""

    def __repr__(self) -> str:
        """Return only the folder: the other fields hold secrets."""
        return f"<Project {self.settings.project_dir}>"

    @property
    def rehearses(self) -> bool:
        """Return whether this is a rehearsal: no agent, hook, router or sink runs."""
        return self.agents.rehearses

    def ensure_may_act(self, source: FlowSource | None = None, *, may_ask: bool = True) -> None:
        """Check that the user trusts this project to act on this machine and to run *source*.

        A rehearsal needs no trust, unless its store reaches beyond the project's files.

        Raises:
            NotTrusted: see `Trust.ensure`.
        """
        if not self.rehearses or not self.settings.store_kind.is_local:
            if source is not None and source.file is not None:
                self.trust.add_flow(self.settings.project_dir / source.file)
            self.trust.ensure(may_ask=may_ask)

    def ensure_may_decide(self, verb: str, what: str = "") -> None:
        """Check that the caller is a person, or that agents may use *verb*, a command for people.

        `RunCommands` makes the same check. Commands call this before they do anything else.

        Raises: see `run_commands.ensure_may_decide`.
        """
        ensure_may_decide(verb, self.may_agents_use, what)

    def may_agents_use(self, verb: str) -> bool:
        """Return whether the project lets agents use *verb*, a command for people.

        Raises:
            NotTrusted: no person has trusted the current list of verbs.
        """
        # Only the trusted file counts: an agent controls the environment variables here.
        if verb not in (self.settings.written.get("agents_may_decide") or ()):
            return False
        if self.is_set_by_variables:
            return False
        self.trust.ensure(may_ask=False)
        return True

    @property
    def is_set_by_variables(self) -> bool:
        """Return whether an environment variable sets a key that would need trust in the file.

        Inside an agent, such a variable could point at the run of another project, for example.
        """
        sources = self.settings.sources.items()
        return any(
            source.kind == "environment" and find_rule(path) is not Rule.FREE
            for path, source in sources
        )

    @property
    def home_folder(self) -> Path:
        """Return the home folder of the user."""
        return Path(self.agents.environment.get("HOME") or expand_home("~"))

    def ensure_exists(self) -> None:
        """Check that the folder has any part of a project, even a single flowchart.

        Raises:
            ConfigurationError: there is none, so the default settings would run by accident.
        """
        settings = self.settings
        folders_of_it = settings.prompts_dir, settings.state_file.parent
        if settings.config_path or any(map(Path.exists, folders_of_it)):
            return
        if settings.registry.flows or any(flow_files(settings.project_dir, self.home_folder)):
            return
        raise ConfigurationError(
            "there is no project here: no orchestration.yaml in this folder or above it",
            hint="'sequencer init' makes one here; or 'cd' to yours, or name it with --config",
        )

    @cached_property
    def allowed(self) -> Mapping[str, str] | None:
        """Return the repository settings that git may act on; None: git may only read.

        Raises:
            NotTrusted: git would reach a remote or run filters, and you have not allowed it.
        """
        if not self.acts:
            return None
        self.trust.ensure()
        return self.trust.git_settings

    def run(
        self,
        name: str | None = None,
        definition: Definition | None = None,
        source: FlowSource | None = None,
    ) -> Run:
        """Return the run called *name*, or the default run.

        With *definition* or *source*, the run has not started yet and will start with it.
        """
        store = self.store(name)
        return Run(
            name,
            store,
            self.settings.limits,
            # The workflow may change with the head, so each command resolves it again.
            lambda head: ResolvedRun(self, name, store, head, definition, source),
            partial(LiveLimits, self.settings, self.trust, is_trusted=self.rehearses),
            redact=self._redact,
        )

    def store(self, run: str | None) -> Store:
        """Return the store of the run called *run*; it reaches only what the project may reach."""
        if self.settings.store_kind.needs_trust:
            self.trust.ensure()
        store = make_store(self.settings, run, lambda: self.allowed, self._redact)
        if (dispatch := find_dispatcher(store)) is not None:
            dispatch.build_worker = self._build_worker
        return store

    def _redact(self, text: str) -> str:
        """Return *text* without secrets; the patterns are compiled on the first call."""
        return self.redaction.hide_text(text)

    def with_store_kind(self, kind: str) -> Project:
        """Return a copy of this project that keeps its runs in a store of *kind*."""
        store = self.settings.store.replace(kind=kind)
        return replace(self, settings=replace(self.settings, store=store))

    def _build_worker(self, run: str | None, emit: Emit) -> Worker:
        """Return the worker for attempts at *run*, built from the project's current files."""
        settings = self.settings
        # A worker lives for days: the project may have changed since it started.
        project = open_project(
            settings.project_dir, config=settings.config_path, rehearses=self.rehearses
        )
        ensure_covered(project.settings, run or "default", project.store(run))
        return project.run(run).worker(emit)

    @cached_property
    def hooks(self) -> Hooks:
        """Return the project's hooks, loaded on first use.

        Raises:
            NotTrusted: the project may not run here, or has changed since you trusted it.
            ConfigurationError: see `load_hooks`.
        """
        if self.rehearses:
            return NoHooks()
        files = self.settings.hooks
        if files:
            self.trust.ensure()
        try:
            return load_hooks(
                files, self.settings.project_dir, self.trust.get_trusted_files("hooks")
            )
        except ConfigurationError as error:
            if error.where is not None and error.where.startswith("hooks["):
                error.where = f"{self.settings.get_source('hooks')}: {error.where}"
            raise

    @property
    def posting(self) -> Posting | None:
        """Return the object that posts about the project's runs; None: no sink is set."""
        if self.rehearses:
            return None
        for name in extensions.OURS[extensions.POSTING]:
            if name in self.settings.sections:
                make = extensions.require(extensions.POSTING, name, "posting")
                posting: Posting | None = make(self)
                return posting
        return None

    def performer(
        self,
        workflow: Workflow,
        emit: Emit,
        run: str | None,
        definition: Definition | None = None,
        store: Store | None = None,
    ) -> Performer:
        """Return the performer for the steps of *workflow* in the run called *run*.

        *store* keeps the run; None: no store does, so its code is not synced.

        Raises:
            NotTrusted: you have not allowed the project to act here.
        """
        self.ensure_may_act()
        settings, hooks = self.settings, self.hooks
        tasks = None
        if workflow.tasks:
            tasks = TASK_GRAPHS.require().execution(
                self, None if definition is None else definition.agent
            )
        return Performer(
            workflow=workflow,
            agents=self.agents,
            prompts=self.prompts,
            logs=self.logs(run, lambda text: emit(NoticeGiven(text))),
            emit=emit,
            project=settings.project_dir,
            workspace=_workspace(self, run, store, tasks, emit),
            with_defaults=lambda step: with_defaults(step, settings.step_defaults),
            redact=self.redaction.hide_text,
            router=settings.router if settings.router.enabled and not self.rehearses else None,
            hooks=None if isinstance(hooks, NoHooks) else hooks,
            definition=definition,
            tasks=tasks,
            comment_tools=tuple(
                tool
                for _, make_tools in extensions.load_builtins(extensions.COMMENT_TOOLS)
                for tool in make_tools(settings)
            ),
            own_folders=(settings.state_file.parent, settings.logs_dir),
            max_attempts=settings.limits.attempts,
        )

    def logs(self, run: str | None, warn: Callable[[str], None]) -> StepLogs:
        """Return the step logs of the run called *run*."""
        return StepLogs(
            self.settings.logs_dir,
            self.settings.project_dir,
            run,
            warn=warn,
            redaction=self.redaction,
            max_bytes=self.settings.logs.max_bytes,
        )

    def obstacle(self, run: Run, head: Head, workflow: Workflow | None) -> SequencerError | None:
        """Return why *run* can't continue from *head* with these plug-ins and settings, or None."""
        has_own = self.settings.worktree or self.rehearses
        problem = next(iter(self.settings.unavailable.values()), None)
        if problem is not None and head.status is not Status.COMPLETE:
            return problem
        try:
            if workflow is not None and workflow.tasks and head.status is not Status.COMPLETE:
                TASK_GRAPHS.require()
            ensure_same_worktree(run.store.state_path, head, has_worktree=has_own)
        except SequencerError as error:
            return error
        return None

    def find_lost_steps(self, run: Run, head: Head) -> StepsMissing | None:
        """Return the error if *run*, at *head*, lacks steps that are known to be accepted."""
        folder = self.logs(run.name, lambda _: None).folder
        error = find_lost_steps(self.settings, run.store.state_path, head, [folder])
        if error is None:
            return None
        # A worker may have moved the run since *head* was read; the next look checks the new head.
        newest_head = run.store.view().head
        return error if newest_head is not None and newest_head.revision == head.revision else None

    def find_unmerged_work(self) -> tuple[UnmergedWork, ...]:
        """Return the work of its runs that is merged nowhere.

        Git starts only if a worktree may exist: most projects have none.
        """
        if not (self.settings.worktree or _may_have_worktrees(self.settings.state_file.parent)):
            return ()
        provider = WORKTREES.get()
        return () if provider is None else provider.find_unmerged_work(self)

    def forget_attempts(self, run: str | None) -> None:
        """Remove the saved work of failed attempts in worktrees of *run*, which is removed."""
        if (provider := WORKTREES.get()) is not None:
            provider.forget_attempts(self, run)

    def run_names(self) -> list[str]:
        """Return the names of the existing named runs, for ``--run``."""
        folder = self.settings.state_file.parent / "runs"
        state = self.settings.state_file.name
        if not self.settings.store_kind.has_files:
            dispatch = find_dispatcher(self.store(None))
            return [] if dispatch is None else dispatch.run_names()
        return sorted(
            read_run_name(folder / name / state) or name for name in folders.list_names(folder)
        )


class ResolvedRun(Struct, frozen=True, dict=True):
    """The parts of one run at one head; see `engine.run.Resolution`."""

    project: Project
    name: str | None
    store: Store
    head: Head | None
    given_definition: Definition | None
    given_source: FlowSource | None

    @cached_property
    def definition(self) -> Definition | None:
        # Only a named run is made from a request.
        return self.given_definition or (None if self.name is None else read_definition(self.store))

    @cached_property
    def source(self) -> FlowSource | None:
        return self.given_source or find_run_source(self.project.settings, self.store, self.head)

    def _load_chart(self) -> GraphFile | None:
        """Return the run's chart as it is now; None: it has none, or it can't be read."""
        source, settings = self.source, self.project.settings
        if source is not None and source.file is not None:
            with suppress(ConfigurationError):
                path = settings.project_dir / source.file
                return settings.registry.load(path, name=source.workflow.name)
        return None

    @cached_property
    def _chart(self) -> GraphFile | None:
        return self._load_chart()

    @cached_property
    def workflow(self) -> Workflow:
        # Loaded before the workflow, so that a change in between is noticed.
        _ = self._chart
        return workflow_of_run(self.project.settings, self.head, self.definition, self.source)

    @property
    def capacity_rule(self) -> CapacityRule | None:
        if not self.workflow.tasks or (graphs := TASK_GRAPHS.get()) is None:
            return None
        return graphs.capacity_rule(self.project.settings)

    @property
    def is_current(self) -> bool:
        if self.source is None or self.source.file is None:
            return True
        # The registry reads a changed file once, for whichever run asks first.
        return (chart := self._load_chart()) is not None and chart is self._chart

    def performer(self, emit: Emit) -> Performer:
        """Return the performer for the run's steps.

        Raises:
            NotTrusted: you have not allowed the project to act here.
        """
        self.project.ensure_may_act(self.source)
        settings = self.project.settings
        has_own = settings.worktree or self.project.rehearses
        state_path = get_state_path(settings, self.name)
        ensure_same_worktree(state_path, self.head, has_worktree=has_own)
        return self.project.performer(self.workflow, emit, self.name, self.definition, self.store)

    def may_agents_use(self, verb: str) -> bool:
        """Return whether agents may use *verb* too, in the project as it was trusted.

        Agents may also start a run that is due: its schedule has already decided that.
        """
        is_due = self.name in self.project.due and verb in ("start", "reset")
        return (is_due and not self.project.is_set_by_variables) or self.project.may_agents_use(
            verb
        )


def _may_have_worktrees(state: Path) -> bool:
    """Return whether a run whose files are in *state* has ever had a worktree."""
    runs = folders.list_names_if_safe(state / "runs")
    paths = (state / "worktrees", *(state / "runs" / name / "worktrees" for name in runs))
    return any(map(os.path.lexists, paths))


def load_hooks(
    files: Sequence[str], project: Path, trusted: Mapping[Path, str] | None = None
) -> Hooks:
    """Return the hooks of *files*, relative to the folder *project*, and of installed packages.

    *trusted* has the fingerprints of files that must not have changed.

    Raises:
        NotTrusted: a file has another fingerprint; it was not run.
        ConfigurationError: a file is missing, is outside the project, can't be loaded, or has a
            function that looks like a hook but isn't; with file and line.
    """
    entries = extensions.entries(extensions.HOOKS)
    if not files and not entries:
        return NoHooks()
    from sequencer.hooks.calling import make_hooks  # noqa: PLC0415 - pluggy only if needed

    return make_hooks(files, project, trusted or {}, entries)


def _workspace(
    project: Project, run: str | None, store: Store | None, tasks: TaskExecution | None, emit: Emit
) -> Workspace:
    """Return the workspace for the agents of the run in *store*; *tasks*: those of a team."""
    settings = project.settings
    workspace = _checkout(project, run, store, emit) or build_branch_guard(settings)
    workspace = workspace or Workspace(settings.project_dir)
    if project.rehearses:
        # A rehearsal writes nothing, and creating a worktree could run the repository's filters.
        return workspace
    if settings.worktree:
        hide = project.redaction.hide_text
        notify = lambda text: emit(NoticeGiven(hide(text)))  # noqa: E731
        workspace = WORKTREES.require().run_worktree(project, run, workspace, notify)
    if tasks is not None and (trees := WORKTREES.get()) is not None:
        fails = tasks.fails_on_write
        workspace = trees.task_worktrees(project, run, workspace, fails_on_write=fails)
    return workspace


def _checkout(
    project: Project, run: str | None, store: Store | None, emit: Emit
) -> Workspace | None:
    """Return the checkout whose code is synced with the run in *store*; None: no sync."""
    code_sync = project.settings.store_kind.code
    if store is None or code_sync is None:
        return None
    make = extensions.require(extensions.CODE, code_sync, "way to move code")
    get_allowed = lambda: project.allowed  # noqa: E731
    request = CodeRequest(project.settings, run, store, project.redaction, get_allowed, emit)
    checkout: Workspace | None = make(request)
    return checkout


def build_branch_guard(settings: Settings) -> BranchGuard | None:
    """Return the guard that lets steps start only on one branch; None: no branch was named."""
    branch = settings.store.work.branch
    if settings.store_kind.carries_code or branch in (CURRENT, NONE):
        return None
    folder = settings.project_dir
    return BranchGuard(folder, branch, partial(current_branch, folder))


def _all_variables(settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """Return every variable that an agent may see, so that secret ones can be hidden."""
    variables = dict(env)
    if (key := env.get(settings.store.api_key_env or "")) is not None:
        # People choose the variable's name, so the name may not look like one of a secret.
        variables["STORE_API_KEY"] = key
    for agent in settings.agents.values():
        env_options = agent.options.get("env")
        if isinstance(env_options, dict):
            # Two agents may give the same name different values; both must be hidden.
            variables |= {f"{agent.name}_{name}": str(value) for name, value in env_options.items()}
    return variables


def open_project(
    path: str | Path = ".",
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[KeyPath, FlagValue] | None = None,
    overrides: AgentOverrides | None = None,
    acts: bool = True,
    reads: bool = False,
    rehearses: bool = False,
    trust: Ask | bool = False,
) -> Project:
    """Return the project that contains the folder *path*.

    With *acts* false, none of its code runs and no remote is reached; for *reads* see `load`. With
    *rehearses*, every step is a rehearsal, no matter which agent it names. The user of this machine
    must trust the project before it acts. With *trust*, your program vouches for it: for everything
    (True), or for the list in the error that the function gets.

    Raises:
        ConfigurationError: the configuration is wrong (all problems are listed), or *path* is
            not a folder.
    """
    if not os.path.isdir(path):  # noqa: PTH112 - one check needs no Path
        raise ConfigurationError("there is no such folder", where=str(path))
    env = dict(os.environ) if environment is None else dict(environment)
    settings = load(Path(path), config=config, env=env, flags=flags, reads=reads)
    folders.open_to_others(int(settings.file_mode, 8))
    set_project_folders(settings.state_file.parent, settings.logs_dir)
    project_trust = Trust(settings, trust)
    return Project(
        settings,
        ConfiguredAgents(settings, overrides or AgentOverrides(), env, project_trust, rehearses),
        PromptFolder(settings.prompts_dir),
        Redaction.from_environment(_all_variables(settings, env)),
        project_trust,
        acts,
    )


def open_run(
    path: str | Path = ".",
    name: str | None = None,
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[KeyPath, FlagValue] | None = None,
    overrides: AgentOverrides | None = None,
    acts: bool = True,
    rehearses: bool = False,
    trust: Ask | bool = False,
) -> Run:
    """Return the run called *name* (None: the default run) of the project at *path*.

    Options and errors are the same as for `open_project`. No project at *path* or above it is
    a ConfigurationError too.
    """
    project = open_project(
        path,
        config=config,
        environment=environment,
        flags=flags,
        overrides=overrides,
        acts=acts,
        rehearses=rehearses,
        trust=trust,
    )
    project.ensure_exists()
    return project.run(name)
