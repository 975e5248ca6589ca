"""Which agents of a workflow never tell what they cost, where a cap on costs is set.

A cap counts what is known. With an agent that tells nothing it holds nothing back, and
nobody would notice before the bill.
"""

from __future__ import annotations

from collections.abc import Iterator

from sequencer.assembly.project import Project
from sequencer.engine.fitting import fitted, optional_of
from sequencer.errors import ConfigurationError
from sequencer.executors.prices import price_of
from sequencer.executors.protocol import Executor
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.workflows.definitions import with_fields
from sequencer.workflows.registry import with_defaults

TELLS_TOKENS = frozenset({"codex", "gemini"})
"""Kinds whose clients tell tokens and no cost."""


def caps_of_settings(project: Project, workflow: Workflow) -> Iterator[str]:
    """Yield the keys of the caps on costs that are set for a run of *workflow*."""
    settings = project.settings
    if settings.limits.max_cost_usd is not None:
        yield "limits.max_cost_usd"
    if settings.run.max_cost_usd is not None:
        is_flag = settings.sources["run", "max_cost_usd"].kind == "flag"
        yield "--max-cost" if is_flag else "run.max_cost_usd"
    if workflow.graph is None or not workflow.graph.is_team:
        return
    rules = settings.teams.rules
    if rules.budget.max_cost_usd is not None:
        yield "teams.budget"
    for role, budget in rules.role_budgets.items():
        if budget.max_cost_usd is not None:
            yield f"teams.roles.{role}.budget"
    for node in workflow.graph.nodes:
        if node.task is not None and node.task.budget.max_cost_usd is not None:
            yield f"the budget of task {node.id!r}"


def untold_costs(project: Project, workflow: Workflow) -> Iterator[tuple[str, str, str]]:
    """Yield each agent of *workflow* whose cost may stay unknown, why, and what helps.

    An agent that can't even be chosen is left out; who looks for that says it.
    """
    found: dict[str, tuple[str, str]] = {}
    optional = optional_of(workflow)
    for step in with_fields(workflow):
        whole = with_defaults(step, project.settings.step_defaults)
        try:
            whole, _ = fitted(project.agents, whole, step.name, optional.get(step.name, ()))
            name, executor = project.agents.choose(whole, step.name)
        except ConfigurationError:
            continue
        if (reason := _why_untold(whole, name, executor)) is not None:
            found.setdefault(name, reason)
    yield from ((name, *reason) for name, reason in found.items())


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
