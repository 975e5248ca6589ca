"""The checks of a project's agents: missing programs, files that act, and walls."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.executors.attempt_lock import find_left_processes, format_pids
from sequencer.executors.protocol import HasPermissions, HasWall
from sequencer.executors.wall import (
    NEEDS_PRIVILEGES,
    PRIVILEGED,
    WITHOUT_WALL,
    Wall,
    unavailable_reason,
)
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.agents import agent_problems, find_unlimited_clients, list_agent_steps
from sequencer.project.diagnostics import (
    Area,
    Diagnostic,
    Level,
    diagnose_error,
    locate_setting,
)
from sequencer.project.flows import list_project_flows
from sequencer.project.named_files import find_possible_paths
from sequencer.project.project import Project
from sequencer.project.readable import find_prompt_error
from sequencer.project.schema import OLD_ROLES
from sequencer.project.settings import Settings
from sequencer.workflows.prompts import relative_name
from sequencer.workflows.registry import with_defaults

MAX_CLIENT_FILES, MAX_STEPS = 8, 4
"""Maximum number of listed files per client, and of listed steps without a time limit."""
MAX_VARIABLES = 12
"""Maximum number of listed variables per agent."""
_PROGRAM_OPTIONS = ("program", "argv", "extra_args", "allowed_tools")


def check_agents(project: Project, level: Level) -> Iterator[Diagnostic]:
    """Yield the problems of the configured agents, even if no step uses them."""
    for name in project.settings.agents:
        try:
            problems = agent_problems(project.agents.build(name))
        except ConfigurationError as error:
            yield from diagnose_error(Area.AGENT, error)
            continue
        for problem in problems:
            yield Diagnostic(level, Area.AGENT, problem, f"agent {name}")


def check_selection_names(project: Project) -> Iterator[Diagnostic]:
    """Yield the keys of ``agent.roles`` and ``agent.prompts`` that no step or prompt has.

    Nothing else notices a typo there: the step gets the default agent.
    """
    selection, settings = project.settings.agent, project.settings
    if not (selection.roles or selection.prompts):
        return
    own_workflows = list(_list_workflows(project, (settings.workflow.name, *settings.workflows)))
    workflows = [*own_workflows, *_list_workflows(project, settings.registry.names)]
    step_names = {step.name for workflow in workflows for step in workflow.every_step}
    for name in selection.roles:
        if name not in step_names and name not in OLD_ROLES:
            own_names = {step.name for workflow in own_workflows for step in workflow.every_step}
            where = locate_setting(settings, "agent", "roles", name)
            error = UnknownName("step", name, own_names, where=where)
            yield from diagnose_error(Area.CONFIGURATION, error, Level.WARNING)
    prompts = {prompt for workflow in workflows for prompt in _list_prompts(settings, workflow)}
    for name in selection.prompts:
        is_used = relative_name(settings.prompts_dir, name) in prompts
        # The router may choose any prompt that exists.
        if not is_used and find_prompt_error(project, name) is not None:
            own_prompts = {
                name for workflow in own_workflows for name in _list_prompts(settings, workflow)
            }
            where = locate_setting(settings, "agent", "prompts", name)
            error = UnknownName("prompt", name, own_prompts, where=where)
            yield from diagnose_error(Area.CONFIGURATION, error, Level.WARNING)


def _list_workflows(project: Project, names: Iterable[str]) -> Iterator[Workflow]:
    """Yield the readable workflows called *names*, and the flowcharts in the folders for them."""
    registry = project.settings.registry
    for name in names:
        with suppress(ConfigurationError):
            yield registry.get(name)
    for path in list_project_flows(project):
        with suppress(ConfigurationError):
            yield registry.load(path).workflow


def _list_prompts(settings: Settings, workflow: Workflow) -> Iterator[str]:
    """Yield the prompts of the steps and fixers of *workflow*, relative to the prompts folder."""
    for step in workflow.every_step:
        if step.text is None:
            yield relative_name(settings.prompts_dir, step.prompt_name)


def check_time_limits(project: Project, workflow: Workflow) -> Iterator[Diagnostic]:
    """Yield the clients that no time limit stops if they hang in a step of *workflow*."""
    clients = find_unlimited_clients(project.settings, project.agents, workflow)
    for name, names in clients.items():
        text, excess = ", ".join(names[:MAX_STEPS]), len(names) - MAX_STEPS
        text += f" and {excess} more" if excess > 0 else ""
        message = f"no time limit in {text}: if the client hangs, the run hangs with it"
        hint = "for example step_defaults: {timeout_s: 7200, idle_timeout_s: 900}"
        yield Diagnostic(Level.WARNING, Area.AGENT, message, f"agent {name}", hint)


def check_evidence(project: Project, workflow: Workflow) -> Iterator[Diagnostic]:
    """Yield the command steps that set fields for evidence: only a command's exit code counts."""
    for step in list_agent_steps(project.settings, workflow):
        fields = sorted({"expects", "stagnation"} & step.model_fields_set)
        complete = with_defaults(step, project.settings.step_defaults)
        with suppress(ConfigurationError):  # another check reports it
            _, executor = project.agents.choose(complete, step.name)
            if fields and executor.kind == "command":
                message = f"{' and '.join(fields)} of a command says nothing: its exit code counts"
                where = f"workflow {workflow.name}, step {step.name!r}"
                yield Diagnostic(Level.NOTICE, Area.AGENT, message, where, "leave it out")


def check_client_files(project: Project) -> Iterator[Diagnostic]:
    """Yield the files of the project that act because an agent's client reads them."""
    clients: list[tuple[str, list[str], bool]] = []
    with suppress(ConfigurationError):  # `_check_code` reports an unsafe record
        clients += project.trust.client_files()
    for client, files, is_trusted in clients:
        excess = len(files) - MAX_CLIENT_FILES
        names = [*files[:MAX_CLIENT_FILES], *([f"{excess} more"] if excess > 0 else [])]
        state = "trusted" if is_trusted else "not trusted as they are now"
        message = f"reads files of this project that act ({state}): {', '.join(names)}"
        yield Diagnostic(Level.NOTICE, Area.AGENT, message, client)


def _check_privileges(project: Project, name: str) -> Iterator[Diagnostic]:
    """Yield the programs in the entry of agent *name* that don't work inside the wall."""
    entry = project.settings.agents.get(name)
    options = entry.options if entry is not None else {}
    values = [options.get(option) for option in _PROGRAM_OPTIONS]
    lines = [[value] if isinstance(value, str) else value for value in values if value]
    words = {
        Path(word).name
        for line in lines
        if isinstance(line, list)
        for word in find_possible_paths(line)
    }
    for program in sorted(words & PRIVILEGED):
        message = f"{program} doesn't work inside the wall around agents"
        hint = f"if it needs {program}, set agents.{name}.wall: none and trust the project again"
        yield Diagnostic(Level.NOTICE, Area.AGENT, message, f"agent {name}", hint)


def check_variables(project: Project, steps: Iterable[Step] | None = None) -> Iterator[Diagnostic]:
    """Yield the variables that look like a provider's but don't reach the agents of *steps*.

    Without *steps*, all agents of the configuration are checked, even unused ones.
    """
    if steps is None:
        choice = project.settings.agent
        names = {*project.settings.agents, choice.default, *choice.fallback}
        steps = [Step(name="check", agent=name) for name in names]
    executors = dict[str, HasPermissions]()
    for step in steps:
        with suppress(ConfigurationError):
            name, executor = project.agents.choose(step, step.name)
            if isinstance(executor, HasPermissions):
                executors[name] = executor
    for name, client in sorted(executors.items()):
        variables = client.withheld_variables(project.agents.environment)
        excess = len(variables) - MAX_VARIABLES
        listing = [*variables[:MAX_VARIABLES], *([f"{excess} more"] if excess > 0 else [])]
        if listing:
            message = f"does not get what looks like a provider's variable: {', '.join(listing)}"
            hint = f"if it needs one, name it in agents.{name}.pass_env"
            yield Diagnostic(Level.NOTICE, Area.AGENT, message, f"agent {name}", hint)


def check_walls(project: Project) -> Iterator[Diagnostic]:
    """Yield each way in which this project's agents are less isolated than they could be."""
    names = {*project.settings.agents, project.settings.agent.default}
    walls = dict[str, Wall]()
    for name in sorted(names):
        with suppress(ConfigurationError):
            executor = project.agents.build("claude" if name == "auto" else name)
            if isinstance(executor, HasWall):
                walls[name] = executor.wall
    for name, wall in walls.items():
        if wall is Wall.SCOPES and unavailable_reason() is None:
            yield from _check_privileges(project, name)
        if wall is Wall.NONE:
            message = "wall: none: nothing isolates it from the other processes of this user"
            hint = f"leave wall out, unless it needs what the wall ends: {NEEDS_PRIVILEGES}"
            yield Diagnostic(Level.NOTICE, Area.AGENT, message, f"agent {name}", hint)
    if Wall.SCOPES not in walls.values():
        return
    if (reason := unavailable_reason()) is not None:
        hint = "a node whose answer decides the path does not run in parallel with others here"
        message = f"there is no wall around agents on this machine ({reason}): {WITHOUT_WALL}"
        yield Diagnostic(Level.NOTICE, Area.AGENT, message, None, hint)
    elif os.geteuid() == 0:
        message = "agents of root can read the environment of other processes despite the wall"
        hint = "run sequencer as an ordinary user"
        yield Diagnostic(Level.NOTICE, Area.AGENT, message, None, hint)


def check_left_processes(state_path: Path) -> Iterator[Diagnostic]:
    """Yield a finding for each step that can't start beside processes of an earlier attempt."""
    for path, pids in find_left_processes(state_path).items():
        text = f"{format_pids(pids)} of an earlier attempt at a step may still be at work"
        hint = "the next attempt ends what it can; end the rest, or no attempt starts"
        yield Diagnostic(Level.WARNING, Area.AGENT, text, str(path), hint)
