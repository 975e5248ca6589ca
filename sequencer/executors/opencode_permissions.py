"""What opencode's permissions say of one attempt: the entry's rules and the step's tools.

A tool of opencode is there unless a permission denies it, and runs unasked if one allows it.
Three places count, the last that matches wins: the general ones, those of the agent, and
those of a subagent, which knows the general ones only. So what a step takes away is denied
in general, and what it grants is allowed to its agent alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from sequencer.executors.protocol import Objection
from sequencer.executors.tool_words import OPENCODE, granted
from sequencer.model.step import Step

Verdict = Literal["allow", "ask", "deny"]
Rules = dict[str, Verdict | dict[str, Verdict]]
Permission = Mapping[str, Verdict | dict[str, Verdict]]

_CHANGING = ("edit", "write", "patch", "multiedit")
"""The tools behind opencode's one permission to edit."""
_ALLOWED: Mapping[str, dict[str, Verdict]] = {
    "read": {"*": "allow", "*.env": "ask", "*.env.*": "ask", "*.env.example": "allow"}
}
"""Where opencode's own idea of "allow" has exceptions, which stay."""


def permission_of(tool: str) -> str:
    """Return the permission that *tool* needs.

    >>> permission_of("write"), permission_of("bash")
    ('edit', 'bash')
    """
    return "edit" if tool in _CHANGING else tool


def general(permission: Permission, gone: Iterable[str]) -> Rules:
    """Return the permissions for every agent: *permission*, and none for the tools in *gone*."""
    denied: Rules = {permission_of(tool): "deny" for tool in gone}
    return _last(permission, denied)


def of_the_agent(permission: Permission, tools: Mapping[str, bool], step: Step) -> Rules:
    """Return the permissions of the step's own agent, to which *tools* are offered."""
    # A permission of the agent would give a tool back that `tools` takes away.
    left = {key: verdict for key, verdict in permission.items() if _is_left(key, tools)}
    lifted: Rules = {}
    for tool in granted(step, OPENCODE):
        key = permission_of(tool)
        lifted[key] = dict(_ALLOWED[key]) if key in _ALLOWED else "allow"
    return _last(left, lifted)


def _last(permission: Permission, stronger: Permission) -> Rules:
    """Return both with *stronger* behind, also where the other has the key: the last wins."""
    return {**{key: rule for key, rule in permission.items() if key not in stronger}, **stronger}


def permission_objections(permission: Permission, step: Step, name: str) -> list[Objection]:
    """Return where the rules of agent *name* are against the tools of *step*."""
    words = step.tools or {}
    found = []
    if "write" in words and "edit" in words and words["write"] != words["edit"]:
        reason = "tools: write and edit differ, and opencode has one permission for both"
        found.append(Objection(reason, "give write and edit the same value"))
    for word in (word for word, is_on in words.items() if is_on):
        key = permission_of(word)
        rules = permission.get(key, permission.get("*", "ask"))
        if rules in ("allow", "ask"):
            continue
        where = f"agents.{name}.permission"
        says = "denies it" if rules == "deny" else "has rules for it, which a step can't lift"
        reason = f"tools: {word}: true, but {where} {says}"
        found.append(Objection(reason, f"write allow for {key} there, or leave {word} out"))
    return found


def _is_left(permission: str, tools: Mapping[str, bool]) -> bool:
    """Return whether all tools that *permission* is about are offered."""
    names: tuple[str, ...] = _CHANGING if permission == "edit" else (permission,)
    rest = tools.get("*", True)
    return not any(tools.get(name) is False for name in names) and (
        rest or any(tools.get(name, False) for name in names)
    )
