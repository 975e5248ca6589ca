"""What a workflow's agents, and those that stand in for them, can't do once they are needed.

A cap on costs counts what is known. With an agent that tells nothing it holds nothing back,
and nobody would notice before the bill. An agent of ``agent.fallback`` that does not support a
field of a step never performs it, and nobody would notice before the night it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sequencer.engine.supported_fields import fitted, optional_of
from sequencer.errors import AgentMissing, ConfigurationError
from sequencer.executors.prices import price_of
from sequencer.executors.protocol import Executor, is_free
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.agents import performed
from sequencer.project.project import Project
from sequencer.workflows.registry import with_defaults

TELLS_TOKENS = frozenset({"codex", "gemini"})
"""Kinds whose clients tell tokens and no cost."""
MAX_STEPS = 4
"""How many steps that an agent can't perform are named."""


def agent_warnings(
    project: Project, workflow: Workflow, caps: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield what `fallback_warnings` yields and, if there are any *caps*, `cost_warnings`."""
    yield from fallback_warnings(project, workflow)
    if caps := list(caps):
        yield from cost_warnings(project, workflow, caps)


def cost_warnings(
    project: Project, workflow: Workflow, caps: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield for each agent of *workflow* that may evade one of *caps*: the message, what helps.

    An agent that can't even be chosen is left out; who looks for that says it.
    """
    found: dict[str, tuple[str, str]] = {}
    for step, chosen, executor in _chosen(project, workflow):
        others = project.agents.fallbacks(step, chosen)
        for name, each in ((chosen, executor), *others):
            if (reason := _why_untold(step, name, each)) is not None:
                found.setdefault(name, reason)
    named = ", ".join(dict.fromkeys(caps))
    for name, (why, hint) in found.items():
        yield f"agent {name!r} may never report its cost, so {named} can't count it: {why}", hint


def fallback_warnings(project: Project, workflow: Workflow) -> Iterator[tuple[str, str]]:
    """Yield each agent of ``agent.fallback`` that can't perform some steps of *workflow*.

    That is the message, which names the field in the way, and what helps.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    hints: dict[str, str] = {}
    for step, chosen, _ in _chosen(project, workflow):
        for name, error in project.agents.unfit(step, chosen):
            steps = found.setdefault((name, chosen, error.message), [])
            steps += [] if step.name in steps else [step.name]
            help_first = "install it" if isinstance(error, AgentMissing) else "change that"
            hints[name] = f"{help_first}, or take {name!r} out of agent.fallback"
    for (name, chosen, why), steps in found.items():
        shown, more = ", ".join(steps[:MAX_STEPS]), len(steps) - MAX_STEPS
        shown = f"step{'s' * (len(steps) > 1)} {shown}{f' and {more} more' if more > 0 else ''}"
        yield f"fallback {name!r} never performs {shown} in place of {chosen!r}: {why}", hints[name]


def _chosen(project: Project, workflow: Workflow) -> Iterator[tuple[Step, str, Executor]]:
    """Yield each step of *workflow* as its agent gets it, the agent and its executor."""
    optional = optional_of(workflow)
    for step in performed(project.settings, workflow):
        whole = with_defaults(step, project.settings.step_defaults)
        try:
            whole, _ = fitted(project.agents, whole, step.name, optional.get(step.name, ()))
            name, executor = project.agents.choose(whole, step.name)
        except ConfigurationError:
            continue
        yield whole, name, executor


def _why_untold(step: Step, name: str, executor: Executor) -> tuple[str, str] | None:
    options = getattr(executor, "options", None)
    if executor.kind == "command" and not is_free(executor):
        reason = "a command's cost is known only if it writes it to its result file"
        return reason, f"write agents.{name}.free: true if it costs nothing"
    if executor.kind in TELLS_TOKENS:
        model = step.model or getattr(options, "model", None)
        if model is None:
            reason = f"{executor.kind} reports tokens but no cost, and the entry names no model"
            return reason, f"name agents.{name}.model and its price in prices"
        if price_of(model, getattr(options, "prices", {})) is None:
            reason = f"{executor.kind} reports tokens but no cost, and {model!r} has no price"
            hint = f"add prices: {{{model}: {{input: USD, output: USD}}}} (per million tokens)"
            return reason, hint
    return None
