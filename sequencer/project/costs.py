"""Warnings about agents and fallback agents that would fail silently when they are needed.

A cost cap counts only reported costs. If an agent reports none, the cap never applies, and a
person notices only with the bill. A fallback agent that does not support a field of a step never
performs that step, and a person notices only on the night when the fallback is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sequencer.engine.supported_fields import drop_unsupported_fields, find_optional_fields
from sequencer.errors import AgentMissing, ConfigurationError
from sequencer.executors.prices import price_of
from sequencer.executors.protocol import Executor, is_free
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.agents import list_agent_steps
from sequencer.project.project import Project
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
    found: dict[str, tuple[str, str]] = {}
    for step, chosen, executor in _choose_agents(project, workflow):
        others = project.agents.fallbacks(step, chosen)
        for name, candidate in ((chosen, executor), *others):
            if (reason := _explain_missing_cost(step, name, candidate)) is not None:
                found.setdefault(name, reason)
    named = ", ".join(dict.fromkeys(caps))
    for name, (why, hint) in found.items():
        yield f"agent {name!r} may never report its cost, so {named} can't count it: {why}", hint


def fallback_warnings(project: Project, workflow: Workflow) -> Iterator[tuple[str, str]]:
    """Yield (message, hint) for each fallback agent that can't perform some steps of *workflow*.

    The message names the field that the agent does not support.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    hints: dict[str, str] = {}
    for step, chosen, _ in _choose_agents(project, workflow):
        for name, error in project.agents.list_unfit_fallbacks(step, chosen):
            steps = found.setdefault((name, chosen, error.message), [])
            steps += [] if step.name in steps else [step.name]
            help_first = "install it" if isinstance(error, AgentMissing) else "change that"
            hints[name] = f"{help_first}, or take {name!r} out of agent.fallback"
    for (name, chosen, why), steps in found.items():
        shown, more = ", ".join(steps[:MAX_STEPS]), len(steps) - MAX_STEPS
        shown = f"step{'s' * (len(steps) > 1)} {shown}{f' and {more} more' if more > 0 else ''}"
        yield f"fallback {name!r} never performs {shown} in place of {chosen!r}: {why}", hints[name]


def _choose_agents(project: Project, workflow: Workflow) -> Iterator[tuple[Step, str, Executor]]:
    """Yield (step as its agent gets it, agent's name, executor) for each step of *workflow*."""
    optional = find_optional_fields(workflow)
    for step in list_agent_steps(project.settings, workflow):
        complete = with_defaults(step, project.settings.step_defaults)
        try:
            fit, _ = drop_unsupported_fields(
                project.agents, complete, step.name, optional.get(step.name, ())
            )
            name, executor = project.agents.choose(fit, step.name)
        except ConfigurationError:
            continue
        yield fit, name, executor


def _explain_missing_cost(step: Step, name: str, executor: Executor) -> tuple[str, str] | None:
    """Return (reason, hint) if *executor* may never report the cost of *step*."""
    options = getattr(executor, "options", None)
    if executor.kind == "command" and not is_free(executor):
        reason = "a command's cost is known only if it writes it to its result file"
        return reason, f"write agents.{name}.free: true if it costs nothing"
    if executor.kind in REPORTS_TOKENS:
        model = step.model or getattr(options, "model", None)
        if model is None:
            reason = f"{executor.kind} reports tokens but no cost, and the entry names no model"
            return reason, f"name agents.{name}.model and its price in prices"
        if price_of(model, getattr(options, "prices", {})) is None:
            reason = f"{executor.kind} reports tokens but no cost, and {model!r} has no price"
            hint = f"add prices: {{{model}: {{input: USD, output: USD}}}} (per million tokens)"
            return reason, hint
    return None
