"""Which of a workflow's agents may work without telling what they cost.

A cap on costs counts what is known. With an agent that tells nothing it holds nothing back,
and nobody would notice before the bill.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sequencer.engine.fitting import fitted, optional_of
from sequencer.errors import ConfigurationError
from sequencer.executors.prices import price_of
from sequencer.executors.protocol import Executor
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.agents import performed
from sequencer.project.project import Project
from sequencer.workflows.registry import with_defaults

TELLS_TOKENS = frozenset({"codex", "gemini"})
"""Kinds whose clients tell tokens and no cost."""


def cost_warnings(
    project: Project, workflow: Workflow, caps: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield for each agent of *workflow* that may evade one of *caps*: the message, what helps.

    An agent that can't even be chosen is left out; who looks for that says it.
    """
    found: dict[str, tuple[str, str]] = {}
    optional = optional_of(workflow)
    for step in performed(project.settings, workflow):
        whole = with_defaults(step, project.settings.step_defaults)
        try:
            whole, _ = fitted(project.agents, whole, step.name, optional.get(step.name, ()))
            name, executor = project.agents.choose(whole, step.name)
        except ConfigurationError:
            continue
        if (reason := _why_untold(whole, name, executor)) is not None:
            found.setdefault(name, reason)
    named = ", ".join(dict.fromkeys(caps))
    for name, (why, hint) in found.items():
        yield f"agent {name!r} may never report its cost, so {named} can't count it: {why}", hint


def _why_untold(step: Step, name: str, executor: Executor) -> tuple[str, str] | None:
    options = getattr(executor, "options", None)
    if executor.kind == "command" and not getattr(options, "free", False):
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
