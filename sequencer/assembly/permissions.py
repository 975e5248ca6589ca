"""What the agents of a workflow may do in files, as each client puts it.

A client that is told nothing refuses to edit where nobody is there to be asked, so a loop
would be paid for and change nothing. Whoever says what an agent may do, be it to read only,
has decided, and is not warned. Not promised: what a client's own settings add.
"""

from __future__ import annotations

from typing import NamedTuple

from sequencer.assembly.project import Project
from sequencer.errors import ConfigurationError
from sequencer.executors.protocol import Permits, Permitting
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.workflows.definitions import with_fields
from sequencer.workflows.registry import with_defaults


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
    for step in with_fields(workflow):
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
