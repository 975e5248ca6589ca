"""Which prompts of a workflow can't be read: for `check`, and before a run's first step.

Not promised: that a prompt is still readable when its step runs.
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
    """Check that every step that *workflow* can reach has a readable prompt.

    Raises:
        ConfigurationError: a prompt is missing or unreadable. Otherwise the run would fail only
            after the earlier steps were paid for.
    """
    router, review = project.settings.router, workflow.review
    if router.is_active and router.mode is RouterMode.ONLY:
        return
    problems = []
    for step, name, error in unreadable_prompts(project, workflow):
        if review is None or step is not review.step or workflow.review_every:
            message = error.message if name in error.message else f"{name}: {error.message}"
            where = f"step {step.name!r}"
            problems.append(ConfigurationError(message, where=where, hint=error.hint))
    raise_all(problems)


def unreadable_prompts(
    project: Project, workflow: Workflow
) -> Iterator[tuple[Step, str, ConfigurationError]]:
    """Yield (first step, prompt, error) for each unreadable prompt or system prompt.

    A program that needs no prompt may have none, but an existing prompt must be readable.
    """
    seen_names: set[str] = set()
    for step in workflow.every_step:
        full_step = with_defaults(step, project.settings.step_defaults)
        is_review = workflow.review is not None and step is workflow.review.step
        # A review can run in place of any step, and the position may choose its agent.
        positions = [candidate.name for candidate in workflow.steps] if is_review else [step.name]
        for name, is_optional in _list_prompt_names(project, full_step, positions):
            if name in seen_names:
                continue
            error = find_prompt_error(project, name, is_optional=is_optional)
            # A later step may need what this one does not.
            if error is not None or not is_optional:
                seen_names.add(name)
            if error is not None:
                yield step, name, error


def _list_prompt_names(
    project: Project, step: Step, positions: Sequence[str]
) -> Iterator[tuple[str, bool]]:
    """Yield (name, whether it may be missing) for each prompt of *step*."""
    names = [step.system_prompt, *step.added_system_prompts]
    if step.system_from_labels:
        for _, list_prompts in extensions.load_builtins(extensions.SYSTEM_PROMPTS):
            names += list_prompts(project.settings)
    yield from ((name, False) for name in names if name is not None)
    if step.text is None:
        yield step.prompt_name, _needs_no_prompt(project, step, positions)


def find_unprompted_steps(project: Project, workflow: Workflow) -> Iterator[tuple[Step, str]]:
    """Yield (step, reason) for each step of *workflow* whose program gets no prompt.

    This is not an error, because a program may need none. A step that names its agent is skipped
    if the prompt file is missing: the person chose that program on purpose.
    """
    for step in workflow.every_step:
        full_step = with_defaults(step, project.settings.step_defaults)
        if full_step.text is not None or not _needs_no_prompt(project, full_step, [step.name]):
            continue
        name = full_step.prompt_name
        try:
            if not project.prompts.read(name).strip():
                yield step, f"its prompt {name!r} is empty"
        except UnknownName:
            if full_step.agent is None:
                yield step, f"it has no prompt {name!r}"
        except ConfigurationError:
            continue  # `unreadable_prompts` reports it: a run refuses to start with it


def _needs_no_prompt(project: Project, step: Step, positions: Sequence[str]) -> bool:
    """Return whether *step* is a program that needs no prompt at any of *positions*."""
    if step.prompt is not None:
        return False
    names = (
        choose_agent(project.settings, step, position, project.agents.overrides).name
        for position in positions
    )
    agents = (project.settings.agents.get(name) for name in names)
    return any(agent is not None and agent.kind == "command" for agent in agents)


def find_prompt_error(
    project: Project, name: str, *, is_optional: bool = False
) -> ConfigurationError | None:
    """Return the error if the prompt called *name* can't be used, or None.

    If it *is_optional*, it may be missing or empty.
    """
    try:
        text = project.prompts.read(name)
    except ConfigurationError as error:
        return None if is_optional and isinstance(error, UnknownName) else error
    if text.strip() or is_optional:
        return None
    return ConfigurationError(f"prompt {name!r} is empty", hint="write the agent's task into it")
