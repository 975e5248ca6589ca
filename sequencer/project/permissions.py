"""The permissions of each agent of a workflow, as text for people."""

from __future__ import annotations

from msgspec import Struct

from sequencer.errors import ConfigurationError
from sequencer.executors.protocol import HasPermissions, Permissions
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.agents import ConfiguredAgents, list_agent_steps
from sequencer.project.settings import Settings
from sequencer.workflows.registry import with_defaults


class Permission(Struct, frozen=True):
    """The permissions of one agent."""

    agent: str
    summary: str
    """The permissions in words."""
    idle_steps: tuple[str, ...] = ()
    """Steps in which it can't edit, although the user did not decide that."""
    hint: str = ""
    """The lines that would let it edit."""

    @property
    def warning(self) -> str | None:
        """Return the warning about idle steps; None: the user decided all permissions."""
        if not self.idle_steps:
            return None
        steps = ", ".join(self.idle_steps)
        word = "step" if len(self.idle_steps) == 1 else "steps"
        return f"can't edit files in {word} {steps}: {self.summary}"


def list_permissions(agents: ConfiguredAgents, workflow: Workflow) -> list[Permission]:
    """Return the permissions of each agent of *workflow*; programs have none.

    A client without file permissions can't ask a person in a loop, so it refuses to edit, and the
    loop costs money and changes nothing. If the user sets any permissions, even read-only ones,
    there is no warning. Permissions from the client's own settings are not included.

    An agent that can't be chosen is skipped: another check reports it.
    """
    settings = agents.settings
    agent_permissions: dict[str, tuple[Permissions, list[str]]] = {}
    for step in list_agent_steps(settings, workflow):
        full_step = with_defaults(step, settings.step_defaults)
        try:
            name, executor = agents.choose(full_step, step.name)
        except ConfigurationError:
            continue
        if isinstance(executor, HasPermissions):
            permission, idle_steps = agent_permissions.setdefault(
                name, (executor.permissions(), [])
            )
            if permission.to_edit and _is_left_to_the_entry(full_step):
                idle_steps.append(step.name)
    return [
        Permission(
            name,
            permission.summary,
            tuple(dict.fromkeys(idle_steps)),
            _format_hint(settings, name, permission.to_edit),
        )
        for name, (permission, idle_steps) in agent_permissions.items()
    ]


def _is_left_to_the_entry(step: Step) -> bool:
    """Return whether *step* sets no permission to edit, so that its agent's entry decides."""
    words = step.tools or {}
    has_none = step.single_turn or step.disallow_all_tools
    return not has_none and step.allowed_tools is None and not words.keys() & {"write", "edit"}


def _format_hint(settings: Settings, name: str, lines: tuple[str, ...]) -> str:
    agents = settings.agents
    if name in agents:
        text = "".join(f"\n    {line}" for line in lines)
        return f"add to the entry ({agents[name].locate(())}), for example:{text}"
    entry = f"{name}: {{{', '.join(lines)}}}"
    if agents:
        return f"add below 'agents:' in orchestration.yaml, for example:\n    {entry}"
    return f"add to orchestration.yaml, for example:\n    agents:\n      {entry}"
