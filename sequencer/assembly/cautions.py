"""What a person should know of a workflow's agents before they work: costs and permissions.

A cap on costs counts what is known. With an agent that tells nothing it holds nothing back,
and nobody would notice before the bill. A client that is told nothing about files refuses to
edit where nobody is there to be asked, so a loop would be paid for and change nothing. Whoever
says what an agent may do, be it to read only, has decided, and is not warned.

Not promised: what a client's own settings add.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sequencer.engine.fitting import fitted, optional_of
from sequencer.errors import ConfigurationError
from sequencer.executors.prices import price_of
from sequencer.executors.protocol import Executor, Permits, Permitting
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project import Project
from sequencer.workflows.registry import with_defaults

TELLS_TOKENS = frozenset({"codex", "gemini"})
"""Kinds whose clients tell tokens and no cost."""


def caps_of_settings(project: Project, workflow: Workflow) -> Iterator[str]:
    """Yield the keys of the caps on costs that are set for a run of *workflow*."""
    settings = project.settings
    if settings.limits.max_cost_usd is not None:
        yield "limits.max_cost_usd"
    if settings.run.max_cost_usd is not None:
        is_flag = settings.source_of("run", "max_cost_usd").kind == "flag"
        yield "--max-cost" if is_flag else "run.max_cost_usd"
    if not workflow.tasks:
        return
    rules = settings.teams.rules
    if rules.budget.max_cost_usd is not None:
        yield "teams.budget"
    for role, budget in rules.role_budgets.items():
        if budget.max_cost_usd is not None:
            yield f"teams.roles.{role}.budget"
    for node in workflow.tasks:
        if node.task is not None and node.task.budget.max_cost_usd is not None:
            yield f"the budget of task {node.id!r}"


def untold_costs(project: Project, workflow: Workflow) -> Iterator[tuple[str, str, str]]:
    """Yield each agent of *workflow* whose cost may stay unknown, why, and what helps.

    An agent that can't even be chosen is left out; who looks for that says it.
    """
    found: dict[str, tuple[str, str]] = {}
    optional = optional_of(workflow)
    for step in _performed(project, workflow):
        whole = with_defaults(step, project.settings.step_defaults)
        try:
            whole, _ = fitted(project.agents, whole, step.name, optional.get(step.name, ()))
            name, executor = project.agents.choose(whole, step.name)
        except ConfigurationError:
            continue
        if (reason := _why_untold(whole, name, executor)) is not None:
            found.setdefault(name, reason)
    yield from ((name, *reason) for name, reason in found.items())


def _performed(project: Project, workflow: Workflow) -> Iterator[Step]:
    """Yield every step of *workflow*, and what a team's fallback would try once more."""
    yield from workflow.every_step
    if workflow.tasks and (rules := project.settings.teams.rules).has_fallback:
        yield from map(rules.replaced, workflow.steps)


def _why_untold(step: Step, name: str, executor: Executor) -> tuple[str, str] | None:
    options = getattr(executor, "options", None)
    if executor.kind == "command" and not getattr(options, "free", False):
        reason = "a command's cost is known only where it writes one to its result file"
        return reason, f"write agents.{name}.free: true if it costs nothing"
    if executor.kind in TELLS_TOKENS:
        model = step.model or getattr(options, "model", None)
        if model is None:
            reason = f"{executor.kind} tells tokens and no cost, and the entry names no model"
            return reason, f"name agents.{name}.model and its price in prices"
        if price_of(model, getattr(options, "prices", {})) is None:
            reason = f"{executor.kind} tells tokens and no cost, and {model!r} has no price"
            hint = f"add prices: {{{model}: {{input: USD, output: USD}}}} (per million tokens)"
            return reason, hint
    return None


def cost_warnings(project: Project, workflow: Workflow, more: str = "") -> list[tuple[str, str]]:
    """Return for each agent that evades a cap: the message, and what helps.

    *more* names a cap that is not in the settings.
    """
    caps = [*([more] if more else []), *caps_of_settings(project, workflow)]
    if not caps:
        return []
    named = ", ".join(dict.fromkeys(caps))
    return [
        (f"agent {name!r} may never tell what it costs, so {named} can't count it: {why}", hint)
        for name, why, hint in untold_costs(project, workflow)
    ]


class Permission(NamedTuple):
    """What one agent may do."""

    agent: str
    says: str
    idle_steps: tuple[str, ...] = ()
    """Steps in which it could not edit, though nobody said so."""
    hint: str = ""
    """The lines that change that."""


def permissions(project: Project, workflow: Workflow) -> list[Permission]:
    """Return what each agent of *workflow* may do; a program of one's own has no permissions.

    An agent that can't even be chosen is left out; who looks for that says it.
    """
    found: dict[str, tuple[Permits, list[str]]] = {}
    for step in _performed(project, workflow):
        whole = with_defaults(step, project.settings.step_defaults)
        try:
            name, executor = project.agents.choose(whole, step.name)
        except ConfigurationError:
            continue
        if isinstance(executor, Permitting):
            permits, idle = found.setdefault(name, (executor.permits(), []))
            if permits.to_edit and _is_left_to_the_entry(whole):
                idle.append(step.name)
    return [
        Permission(
            name, permits.says, tuple(dict.fromkeys(idle)), _lines(project, name, permits.to_edit)
        )
        for name, (permits, idle) in found.items()
    ]


def _is_left_to_the_entry(step: Step) -> bool:
    """Return whether *step* is to do what its agent may, and says nothing about edits itself."""
    words = step.tools or {}
    has_none = step.single_turn or step.disallow_all_tools
    return not has_none and step.allowed_tools is None and not words.keys() & {"write", "edit"}


def _lines(project: Project, name: str, to_edit: tuple[str, ...]) -> str:
    agents = project.settings.agents
    if name in agents:
        added = "".join(f"\n    {line}" for line in to_edit)
        return f"add to the entry ({agents[name].locate(())}), for example:{added}"
    entry = f"{name}: {{{', '.join(to_edit)}}}"
    if agents:
        return f"add below 'agents:' in orchestration.yaml, for example:\n    {entry}"
    return f"add to orchestration.yaml, for example:\n    agents:\n      {entry}"


def told(permission: Permission) -> str | None:
    """Return the warning that *permission* is worth; None: somebody has decided."""
    if not permission.idle_steps:
        return None
    steps = ", ".join(permission.idle_steps)
    word = "step" if len(permission.idle_steps) == 1 else "steps"
    return f"can't edit files in {word} {steps}: {permission.says}"
