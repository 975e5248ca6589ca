"""Warnings about agents and fallback agents that would fail silently when they are needed.

A cost cap counts only reported costs. If an agent reports none, the cap never applies, and a
person notices only with the bill. A fallback agent that does not support a field of a step never
performs that step, and a person notices only on the night when the fallback is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sequencer.engine.supported_fields import drop_unsupported_fields, find_optional_fields
from sequencer.errors import AgentMissing, ConfigurationError
from sequencer.executors.prices import find_price
from sequencer.executors.protocol import Executor, is_free
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.agents import list_agent_steps
from sequencer.project.project import Project
from sequencer.project.schema import AGENT_KINDS
from sequencer.workflows.registry import with_defaults

REPORTS_TOKENS = frozenset({"codex", "gemini"})
"""Kinds whose clients report tokens but no cost."""
MAX_STEPS = 4
"""Maximum number of listed steps that an agent can't perform."""


def agent_warnings(
    project: Project, workflow: Workflow, caps: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield the `fallback_warnings` and, if there are any *caps*, the `cost_warnings`."""
    yield from fallback_warnings(project, workflow)
    if caps := list(caps):
        yield from cost_warnings(project, workflow, caps)


def cost_warnings(
    project: Project, workflow: Workflow, caps: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield (message, hint) for each agent of *workflow* whose cost *caps* may not count.

    An agent that can't be chosen is skipped: another check reports it.
    """
    explanations: dict[str, tuple[str, str]] = {}
    for step, agent, executor in _choose_agents(project, workflow):
        fallbacks = project.agents.fallbacks(step, agent)
        for name, candidate in ((agent, executor), *fallbacks):
            if (explanation := _explain_missing_cost(step, name, candidate)) is not None:
                explanations.setdefault(name, explanation)
    cap_names = ", ".join(dict.fromkeys(caps))
    for name, (reason, hint) in explanations.items():
        yield (
            f"agent {name!r} may never report its cost, so {cap_names} can't count it: {reason}",
            hint,
        )


def fallback_warnings(project: Project, workflow: Workflow) -> Iterator[tuple[str, str]]:
    """Yield (message, hint) for each reason why a fallback agent can't perform some steps."""
    failures: dict[tuple[str, str, str, str], list[str]] = {}
    for step, agent, _ in _choose_agents(project, workflow):
        for name, error in project.agents.list_unfit_fallbacks(step, agent):
            remedy = "install it" if isinstance(error, AgentMissing) else "change that"
            steps = failures.setdefault((name, agent, error.message, remedy), [])
            steps += [] if step.name in steps else [step.name]
    for (name, agent, message, remedy), steps in failures.items():
        excess = len(steps) - MAX_STEPS
        names = ", ".join(steps[:MAX_STEPS]) + (f" and {excess} more" if excess > 0 else "")
        problem = f"fallback {name!r} never performs step{'s' * (len(steps) > 1)} {names}"
        yield (
            f"{problem} in place of {agent!r}: {message}",
            f"{remedy}, or take {name!r} out of agent.fallback",
        )


def _choose_agents(project: Project, workflow: Workflow) -> Iterator[tuple[Step, str, Executor]]:
    """Yield (step as its agent gets it, agent's name, executor) for each step of *workflow*."""
    optional_fields = find_optional_fields(workflow)
    for step in list_agent_steps(project.settings, workflow):
        full_step = with_defaults(step, project.settings.step_defaults)
        try:
            fitting_step, _ = drop_unsupported_fields(
                project.agents, full_step, step.name, optional_fields.get(step.name, ())
            )
            name, executor = project.agents.choose(fitting_step, step.name)
        except ConfigurationError:
            continue
        yield fitting_step, name, executor


def _explain_missing_cost(step: Step, name: str, executor: Executor) -> tuple[str, str] | None:
    """Return (reason, hint) if *executor* may never report the cost of *step*."""
    options = getattr(executor, "options", None)
    if executor.kind not in AGENT_KINDS and not is_free(executor):
        reason = "only its package knows whether it reports one"
        return reason, "if it costs nothing, its package has to say so: is_free = True"
    if executor.kind == "command" and not is_free(executor):
        reason = "a command's cost is known only if it writes it to its result file"
        return reason, f"write agents.{name}.free: true if it costs nothing"
    if executor.kind in REPORTS_TOKENS:
        model = step.model or getattr(options, "model", None)
        if model is None:
            reason = f"{executor.kind} reports tokens but no cost, and the entry names no model"
            return reason, f"name agents.{name}.model and its price in prices"
        if find_price(model, getattr(options, "prices", {})) is None:
            reason = f"{executor.kind} reports tokens but no cost, and {model!r} has no price"
            hint = f"add prices: {{{model}: {{input: USD, output: USD}}}} (per million tokens)"
            return reason, hint
    return None
