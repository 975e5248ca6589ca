"""Which tasks a team has for a request: one table for each procedure that can be shared out.

A table names what is done, by which role, and what has to be done before it; the request
itself, and what earlier tasks have found, reach each agent with its prompt. Prompts are those
of the procedure's own steps where it has such a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sequencer.model.team import Task
from sequencer.workflows.builtin import builtin_step
from sequencer.workflows.teams.options import builtin_roles

Builder = Callable[[int], tuple[Task, ...]]
"""From the size of the team to its tasks."""

_ASKS_GIT = {**builtin_roles()["researcher"].step["tools"], "bash": True}
"""A researcher has no shell, and git is asked with one."""
_DEBUGGING = {"append_system_prompt": ("system/debugger.md", "team/researcher.md")}
_DEFAULT_SIZE = 3


def _of_step(name: str) -> dict[str, Any]:
    """Return the prompt of the procedures' step *name* as a task's."""
    return {"prompt": builtin_step(name).prompt_name}


_FULL_DEVELOPMENT: tuple[dict[str, Any], ...] = (
    {
        "id": "research",
        "subject": "Research what the request touches",
        "description": "Find the code that the request is about, the patterns that it follows, "
        "the tests that cover it, and what depends on it. Do not plan the change.",
        "active_form": "Researching",
        "role": "researcher",
    },
    {
        "id": "plan",
        "subject": "Plan the change",
        "description": "Write down what has to be true at the end, as criteria that can be "
        "checked, then the steps of the smallest change that meets them, and its risks.",
        "active_form": "Planning",
        "role": "researcher",
    },
    {
        "id": "implement",
        "subject": "Make the change",
        "description": "Build what the request asks for, with tests, by the research and the "
        "plan below. Where they are wrong, trust the code.",
        "active_form": "Making the change",
        "blocked_by": ("research", "plan"),
        "role": "implementer",
        "weight": 4,
        "step": "coding-activity",
    },
    {
        "id": "verify",
        "subject": "Verify the change",
        "active_form": "Verifying the change",
        "blocked_by": ("implement",),
        "role": "verifier",
        "weight": 2,
        "step": "verifications",
    },
    {
        "id": "changelog",
        "subject": "Write down what has changed",
        "description": "Update the project's changelog, and the documentation that the change "
        "made wrong, in the form that they have. If the project has no changelog, make none.",
        "active_form": "Updating the changelog",
        "blocked_by": ("implement",),
        "role": "implementer",
    },
    {
        "id": "commit",
        "subject": "Commit and push the change",
        "description": "Commit what belongs to the request, on a branch of its own, and push it. "
        "What was done in worktrees is committed and merged already; then only the branch is "
        "left to do. Open no pull request: the next task does.",
        "active_form": "Committing",
        "blocked_by": ("verify", "changelog"),
        "role": "git-handler",
    },
    {
        "id": "pull-request",
        "subject": "Open or update the pull request",
        "description": "Open a pull request for the branch that was pushed, or update the one "
        "that it has: what changes for whom, how it was verified, what a reviewer should look "
        "at, a reference to the request. Without a remote say so; that is no failure.",
        "active_form": "Opening the pull request",
        "blocked_by": ("commit",),
        "role": "git-handler",
    },
    {
        "id": "summary",
        "subject": "Sum up, briefly",
        "active_form": "Summing up",
        "blocked_by": ("pull-request",),
        "role": "summarizer",
        "step": "concise-summary",
    },
)

_HYPOTHESES = (
    "the most likely cause: what the symptom and the newest code point to first",
    "a cause that the obvious one hides: assume that the first idea is wrong",
    "the surroundings: data, configuration, versions, platform, what others depend on",
    "time and order: what runs at once, retries, caches, limits, clocks",
    "the borders: input, units, encodings, empty and very large cases",
)
"""What each of the competing investigations begins with."""

_DEBUGGER: tuple[dict[str, Any], ...] = (
    {
        "id": "history",
        "subject": "Search the history",
        "description": "Find out with git log and git blame what has changed in what the bug "
        "touches, since when it can have been there, and what the authors meant.",
        "active_form": "Searching the history",
        "role": "researcher",
        "tools": _ASKS_GIT,
    },
    {
        "id": "fix",
        "subject": "Weigh the findings and fix the bug",
        "description": "Compare the hypotheses below by their evidence, and decide for the one "
        "that explains everything that was seen. Show it by a test that fails because of it, "
        "then mend the cause with the smallest change, and look for its siblings. If none "
        "explains the facts, say so and change nothing.",
        "active_form": "Fixing the bug",
        "blocked_by": ("history",),
        "role": "implementer",
        "weight": 3,
        "append_system_prompt": ("system/debugger.md", "team/implementer.md", "system/shared.md"),
    },
    {
        "id": "verify",
        "subject": "Verify the fix",
        "active_form": "Verifying the fix",
        "blocked_by": ("fix",),
        "role": "verifier",
        "weight": 2,
        "step": "verifications",
    },
    {
        "id": "commit",
        "subject": "Commit the fix and open a pull request",
        "description": "What was done in worktrees is committed and merged already; put it on a "
        "branch of its own if it is not.",
        "active_form": "Committing",
        "blocked_by": ("verify",),
        "role": "git-handler",
        "step": "git-gh",
    },
    {
        "id": "summary",
        "subject": "Sum up, briefly",
        "active_form": "Summing up",
        "blocked_by": ("commit",),
        "role": "summarizer",
        "step": "concise-summary",
    },
)

_ORCHESTRATOR: tuple[dict[str, Any], ...] = (
    {
        "id": "decompose",
        "subject": "Cut the request into sub-issues",
        "description": "Answer with sub-issues. Each of them becomes two tasks: one that builds "
        "it and one that verifies it; one that depends on another begins when that is verified.",
        "active_form": "Cutting the request into sub-issues",
        "role": "lead",
        "adds": "sub-issues",
    },
    {
        "id": "summary",
        "subject": "Sum up, briefly",
        "active_form": "Summing up",
        "blocked_by": ("decompose",),
        "role": "summarizer",
        "step": "concise-summary",
    },
)


def full_development(_size: int = _DEFAULT_SIZE) -> tuple[Task, ...]:
    """Return the tasks of a change; they are the same for a team of any size.

    >>> [task.id for task in full_development() if not task.blocked_by]
    ['research', 'plan']
    """
    return _tasks(_FULL_DEVELOPMENT)


def debugger(size: int = _DEFAULT_SIZE) -> tuple[Task, ...]:
    """Return the tasks of a search for a bug: as many hypotheses as there are hands.

    One member of the team looks through the history; two hypotheses there are at least.

    >>> [task.id for task in debugger(4) if not task.blocked_by]
    ['hypothesis-a', 'hypothesis-b', 'hypothesis-c', 'history']
    """
    count = min(max(size - 1, 2), len(_HYPOTHESES))
    letters = "abcde"[:count]
    first = tuple(
        {
            "id": f"hypothesis-{letter}",
            "subject": f"Hypothesis {letter.upper()}: {idea.partition(':')[0]}",
            "description": f"Investigate {idea}. Others follow other ideas at the same time. "
            "You read and run nothing: look for what would prove you right and what would prove "
            "you wrong, and name the experiment that would decide it. End with how sure you are, "
            "and why.",
            "active_form": f"Testing hypothesis {letter.upper()}",
            "role": "researcher",
            **_DEBUGGING,
        }
        for letter, idea in zip(letters, _HYPOTHESES, strict=False)
    )
    names = tuple(task["id"] for task in first)
    rest = tuple(
        {**task, "blocked_by": (*names, *task["blocked_by"])} if task["id"] == "fix" else task
        for task in _DEBUGGER
    )
    return _tasks((*first, *rest))


def orchestrator(_size: int = _DEFAULT_SIZE) -> tuple[Task, ...]:
    """Return the tasks of a request that is cut into parts; the rest is added by the first."""
    return _tasks(_ORCHESTRATOR)


def _tasks(table: tuple[dict[str, Any], ...]) -> tuple[Task, ...]:
    return tuple(Task.model_validate({**entry, "step": _step(entry)}) for entry in table)


def _step(entry: Mapping[str, Any]) -> dict[str, Any]:
    # What judges has the fixer and the number of judgements from its role.
    name = entry.get("step")
    return {} if name is None else _of_step(name)


BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "full-development": full_development,
        "debugger-full": debugger,
        "orchestrator-full": orchestrator,
    }
)
"""Procedure -> what makes its tasks."""


def builder_for(procedure: str) -> Builder | None:
    """Return what makes the tasks of *procedure*; None: it can't be shared out."""
    return BUILDERS.get(procedure)
