"""The roles that tasks of a team have: those that come along, and what a project makes of them.

A role's step fields say what an agent may do in words that mean the same for every client.
Which of them a client can honour is known where the clients are; so it is kept with a task
which of its fields came from its role, see `TaskTraits.brought`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from sequencer.model.team import Role

FOLDER = "team"
"""Of the roles' system prompts, below prompts_dir."""
LEAD = "lead"
LEAD_ATTEMPTS = 3
FIXER = "implementer"
"""The role of who mends what a task that judges has refused."""
UNNAMED = "implementer"
"""The role of what a lead adds without one: leaving a role out gets nobody around what the
project's roles may do, where they work and what they may use."""
MAX_FIXES = 3
"""How often a verifier judges before its task has failed."""

_SHARED = "system/shared.md"
_LOOKING = {"read": True, "glob": True, "grep": True, "write": False, "edit": False}
_READ_ONLY = {**_LOOKING, "bash": False}

_ROLES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "researcher": {"tools": _READ_ONLY},
        "implementer": {"writes": True, "worktree": True},
        "verifier": {
            "tools": {"bash": True, "write": False, "edit": False},
            "validation": {
                "fixer": {"name": "validation-fixer", "prompt": "subroutines/validation-fixer.md"},
                "max_attempts": MAX_FIXES,
            },
        },
        # It may write a message into a file of its own; it changes no file of the project.
        "git-handler": {"tools": {"bash": True, "edit": False}, "writes": True},
        "summarizer": {"tools": _READ_ONLY},
        # A list that is refused is made anew, with the reason in the prompt.
        LEAD: {
            "tools": _READ_ONLY,
            "output": {"format": "json"},
            "retry": {"max_attempts": LEAD_ATTEMPTS},
        },
    }
)
"""Role -> what it has beside its system prompt."""


@cache
def builtin_roles() -> Mapping[str, Role]:
    """Return the roles that exist without a line of configuration, by name.

    >>> sorted(name for name, role in builtin_roles().items() if role.writes)
    ['git-handler', 'implementer']
    """
    return MappingProxyType(
        {
            name: Role.model_validate(
                {"append_system_prompt": (f"{FOLDER}/{name}.md", _SHARED), **fields}
            )
            for name, fields in _ROLES.items()
        }
    )


def roles(
    options: Mapping[str, Role] | None = None,
    *,
    teammate_model: str | None = None,
    lead_model: str | None = None,
) -> dict[str, Role]:
    """Return every role of a project: the built-in ones, changed and added to by *options*.

    What an entry writes down takes the place of the built-in role's, field by field, and a
    step field is one; `null` takes a step field away. A role without a model has
    *lead_model* if it is the lead, else *teammate_model*.

    >>> changed = roles({"verifier": Role.model_validate({"max_turns": 9})})["verifier"]
    >>> changed.step["max_turns"], changed.step["tools"]["edit"]
    (9, False)
    """
    found = dict(builtin_roles())
    for name, changes in (options or {}).items():
        found[name] = _changed(found[name], changes) if name in found else changes
    for name, role in found.items():
        model = lead_model if name == LEAD else teammate_model
        if model is not None and "model" not in role.step:
            found[name] = role.model_copy(update={"step": {**role.step, "model": model}})
    return found


def _changed(role: Role, changes: Role) -> Role:
    written = {name: getattr(changes, name) for name in changes.model_fields_set - {"step"}}
    return role.model_copy(update={**written, "step": {**role.step, **changes.step}})
