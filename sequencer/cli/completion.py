"""What the shell offers for a name: asked of the project, and silent if that is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from sequencer.cli.context import Invocation
from sequencer.errors import SequencerError

if TYPE_CHECKING:
    from sequencer.assembly import Project
    from sequencer.model.workflow import Workflow


def _offered(
    context: click.Context, incomplete: str, names: Callable[[Project], Iterable[str]]
) -> list[CompletionItem]:
    invocation = context.ensure_object(Invocation)
    invocation.is_quiet, invocation.acts = True, False
    try:
        known = sorted(set(names(invocation.project())))
    except (SequencerError, OSError):
        return []
    # A name is anybody's, and the shell writes it to the terminal as it is.
    shown = [name for name in known if name.startswith(incomplete) and name.isprintable()]
    return [CompletionItem(name) for name in shown]


def runs(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the named runs."""
    return _offered(context, incomplete, lambda project: project.run_names())


def _steps_of(workflow: Workflow) -> list[str]:
    names = [step.name for step in workflow.steps]
    return [*names, workflow.review.step.name] if workflow.review else names


def _workflow(project: Project) -> Workflow:
    return project.settings.chosen_workflow()


def workflows(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the workflows."""
    return _offered(context, incomplete, lambda project: project.settings.registry.names)


def flows(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the flowcharts."""

    def names(project: Project) -> Iterable[str]:
        from sequencer.assembly.flows import all_flows  # noqa: PLC0415 - completion only

        return all_flows(project)

    return _offered(context, incomplete, names)


def positions(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the positions of the configured workflow."""
    return _offered(
        context, incomplete, lambda project: (step.name for step in _workflow(project).steps)
    )


def steps(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the steps of the configured workflow."""
    return _offered(context, incomplete, lambda project: _steps_of(_workflow(project)))


def _agents(project: Project) -> Iterable[str]:
    from sequencer.settings.agents import known_agents  # noqa: PLC0415 - completion only

    return known_agents(project.settings)


def agents(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the agents."""
    return _offered(context, incomplete, _agents)


def agents_for_steps(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return ``STEP=``, and ``STEP=AGENT`` once a step is typed."""
    step, has_step, _rest = incomplete.partition("=")
    if not has_step:
        return _offered(
            context,
            incomplete,
            lambda project: (f"{name}=" for name in _steps_of(_workflow(project))),
        )
    return _offered(
        context, incomplete, lambda project: (f"{step}={name}" for name in _agents(project))
    )
