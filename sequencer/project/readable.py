"""Which prompts of a workflow can't be read: asked by `check`, and before a run's first step.

Not promised: that they can be read later, when their turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sequencer import extensions
from sequencer.errors import ConfigurationError, UnknownName, raise_all
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.agents import choose_agent
from sequencer.project.project import Project
from sequencer.workflows.registry import with_defaults
from sequencer.workflows.router import RouterMode


def ensure_readable(project: Project, workflow: Workflow) -> None:
    """Return if every step that *workflow* comes to has a prompt.

    Raises:
        ConfigurationError: one has none, which would show only after the steps before it
            were paid.
    """
    router, review = project.settings.router, workflow.review
    if router.is_active and router.mode is RouterMode.ONLY:
        return
    found = []
    for step, name, error in unreadable_prompts(project, workflow):
        if review is None or step is not review.step or workflow.review_every:
            message = error.message if name in error.message else f"{name}: {error.message}"
            where = f"step {step.name!r}"
            found.append(ConfigurationError(message, where=where, hint=error.hint))
    raise_all(found)


def unreadable_prompts(
    project: Project, workflow: Workflow
) -> Iterator[tuple[Step, str, ConfigurationError]]:
    """Yield each prompt and system prompt of *workflow* that can't be read, with its first step."""
    seen: set[str] = set()
    for step in workflow.every_step:
        whole = with_defaults(step, project.settings.step_defaults)
        names = [whole.system_prompt, *whole.added_system_prompts]
        if whole.system_from_labels:
            for _, every in extensions.ours(extensions.SYSTEM_PROMPTS):
                names += every(project.settings)
        is_review = workflow.review is not None and step is workflow.review.step
        positions = [one.name for one in workflow.steps] if is_review else [step.name]
        if whole.text is None and not _needs_no_prompt(project, whole, positions):
            names.append(whole.prompt_name)
        for name in names:
            if name is None or name in seen:
                continue
            seen.add(name)
            if (error := unreadable(project, name)) is not None:
                yield step, name, error


def unprompted(project: Project, workflow: Workflow) -> Iterator[tuple[Step, str]]:
    """Yield the steps of *workflow* whose program gets no prompt, and why.

    A program may need none, so that is no error. Who names it for one step means that.
    """
    for step in workflow.every_step:
        whole = with_defaults(step, project.settings.step_defaults)
        if whole.text is not None or not _needs_no_prompt(project, whole, [step.name]):
            continue
        name = whole.prompt_name
        try:
            if not project.prompts.read(name).strip():
                yield step, f"its prompt {name!r} is empty"
        except UnknownName:
            if whole.agent is None:
                yield step, f"it has no prompt {name!r}"
        except ConfigurationError as error:
            yield step, f"its prompt {name!r} can't be read: {error.message}"


def _needs_no_prompt(project: Project, step: Step, positions: Sequence[str]) -> bool:
    """Return whether *step* is a program that needs no prompt, at one of *positions* at least."""
    if step.prompt is not None:
        return False
    chosen = (
        choose_agent(project.settings, step, position, project.agents.overrides).name
        for position in positions
    )
    agents = (project.settings.agents.get(name) for name in chosen)
    return any(agent is not None and agent.kind == "command" for agent in agents)


def unreadable(project: Project, name: str) -> ConfigurationError | None:
    """Return why the prompt called *name* can't be used; None: it can."""
    try:
        text = project.prompts.read(name)
    except ConfigurationError as error:
        return error
    if text.strip():
        return None
    return ConfigurationError(f"prompt {name!r} is empty", hint="write the agent's task into it")
