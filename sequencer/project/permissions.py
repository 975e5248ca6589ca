"""What each agent of a workflow may do, as people are told of it."""

from __future__ import annotations

from typing import NamedTuple

from sequencer.errors import ConfigurationError
from sequencer.executors.protocol import HasPermissions, Permissions
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.agents import ConfiguredAgents, performed
from sequencer.project.settings import Settings
from sequencer.workflows.registry import with_defaults


class Permission(NamedTuple):
    """What one agent may do."""

    agent: str
    says: str
    idle_steps: tuple[str, ...] = ()
    """Steps in which it can't edit although you never said so."""
    hint: str = ""
    """The lines that would let it edit."""

    @property
    def warning(self) -> str | None:
        """Return the warning about it; None: you decided this."""
        if not self.idle_steps:
            return None
        steps = ", ".join(self.idle_steps)
        word = "step" if len(self.idle_steps) == 1 else "steps"
        return f"can't edit files in {word} {steps}: {self.says}"


def permissions(agents: ConfiguredAgents, workflow: Workflow) -> list[Permission]:
    """Return what each agent of *workflow* may do; your own programs have no permissions.

    A client without file permissions refuses to edit if nobody is there to ask, so a loop would
    cost money and change nothing. If you say what an agent may do, even if it may only read,
    you have decided, and there is no warning. Not promised: what a client's settings add.

    An agent that can't be chosen is left out: another check reports it.
    """
    settings, found = agents.settings, dict[str, tuple[Permissions, list[str]]]()
    for step in performed(settings, workflow):
        whole = with_defaults(step, settings.step_defaults)
        try:
            name, executor = agents.choose(whole, step.name)
        except ConfigurationError:
            continue
        if isinstance(executor, HasPermissions):
            allowed, idle = found.setdefault(name, (executor.permissions(), []))
            if allowed.to_edit and _is_left_to_the_entry(whole):
                idle.append(step.name)
    return [
        Permission(
            name, allowed.says, tuple(dict.fromkeys(idle)), _lines(settings, name, allowed.to_edit)
        )
        for name, (allowed, idle) in found.items()
    ]


def _is_left_to_the_entry(step: Step) -> bool:
    """Return whether *step* uses its agent's permissions and says nothing about edits itself."""
    words = step.tools or {}
    has_none = step.single_turn or step.disallow_all_tools
    return not has_none and step.allowed_tools is None and not words.keys() & {"write", "edit"}


def _lines(settings: Settings, name: str, to_edit: tuple[str, ...]) -> str:
    agents = settings.agents
    if name in agents:
        added = "".join(f"\n    {line}" for line in to_edit)
        return f"add to the entry ({agents[name].locate(())}), for example:{added}"
    entry = f"{name}: {{{', '.join(to_edit)}}}"
    if agents:
        return f"add below 'agents:' in orchestration.yaml, for example:\n    {entry}"
    return f"add to orchestration.yaml, for example:\n    agents:\n      {entry}"
