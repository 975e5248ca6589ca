"""The workflows that come with the program: cycles, and procedures for what a request asks.

A procedure is a line of step names in one table, and a step's fields are a line in
another. Nothing is built before it is asked for by name: every command makes a registry,
and hardly one looks at a procedure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from sequencer.errors import UnknownName
from sequencer.model.step import Step
from sequencer.model.workflow import Review, Workflow

FOLDER = "subroutines"
"""Of the steps' prompts, below prompts_dir."""
MAX_JUDGEMENTS = 4
"""How often a change is verified before the step fails."""

_ONE_REPLY = {"single_turn": True, "suppress_thoughts": True, "no_comment": True}
_FROM_LABELS = {"system_from_labels": True}
_DEBUGGING = {"append_system_prompt": ("system/debugger.md", "system/shared.md")}

_FIELDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "primary": _FROM_LABELS,
        "question-investigation": {},
        "question-answer": _ONE_REPLY,
        "coding-activity": _FROM_LABELS,
        "verifications": {
            "validation": {
                "fixer": {
                    "name": "validation-fixer",
                    "description": "Fixes what the verification found",
                    "prompt": f"{FOLDER}/validation-fixer.md",
                },
                "max_attempts": MAX_JUDGEMENTS,
                "on_exhausted": "fail",
            }
        },
        "git-gh": {},
        "concise-summary": _ONE_REPLY,
        "verbose-summary": _ONE_REPLY,
        "debugger-reproduction": _DEBUGGING,
        "get-approval": {
            "single_turn": True,
            "requires_approval": True,
            "approval": {"feedback_to": "debugger-reproduction"},
        },
        "debugger-fix": _DEBUGGING,
        "preparation": {},
        "plan-summary": _ONE_REPLY,
        # What was prepared is looked at before anything of it becomes public.
        "release": {"requires_approval": True, "approval": {"feedback_to": "release"}},
        "release-publish": {},
        "release-summary": _ONE_REPLY,
        "user-testing": {},
        "user-testing-summary": _ONE_REPLY,
    }
)
"""Step name -> its fields besides name and prompt."""

_IN_PROCEDURE: Mapping[tuple[str, str], Mapping[str, Any]] = MappingProxyType(
    {
        # Whoever sent the request here wants an architect, whatever its labels are.
        ("orchestrator-full", "primary"): {"append_system_prompt": ("system/orchestrator.md",)},
    }
)
"""Procedure and step -> fields that the step has there only."""

PROCEDURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "simple-question": ("question-investigation", "question-answer"),
        "documentation-edit": ("primary", "git-gh", "concise-summary"),
        "full-development": ("coding-activity", "verifications", "git-gh", "concise-summary"),
        "debugger-full": (
            "debugger-reproduction",
            "get-approval",
            "debugger-fix",
            "verifications",
            "git-gh",
            "concise-summary",
        ),
        "orchestrator-full": ("primary", "concise-summary"),
        "plan-mode": ("preparation", "plan-summary"),
        "release": ("release", "release-publish", "release-summary"),
        "user-testing": ("user-testing", "user-testing-summary"),
    }
)
"""Procedure -> the names of its steps."""


_ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "simple-question": "Answer a question; nothing is changed",
        "documentation-edit": "Change documentation and publish the change",
        "full-development": "Build something, verify it and publish the change",
        "debugger-full": "Reproduce a bug, ask a person, fix it and publish the fix",
        "orchestrator-full": "Break a large piece of work into sub-issues",
        "plan-mode": "Plan something that is still vague; nothing is changed",
        "release": "Prepare a release, ask a person, publish it",
        "user-testing": "Try something out as a user would",
    }
)
"""Procedure -> what it is for."""

_DOES: Mapping[str, str] = MappingProxyType(
    {
        "primary": "Does what the request asks for",
        "question-investigation": "Looks for what the answer needs",
        "question-answer": "Writes the answer",
        "coding-activity": "Makes the change, with its tests",
        "verifications": "Runs tests, linters and types, and judges the change",
        "git-gh": "Commits, pushes and opens a pull request",
        "concise-summary": "Sums up in a few lines",
        "verbose-summary": "Sums up in full",
        "debugger-reproduction": "Reproduces the bug and finds its cause",
        "get-approval": "Asks a person whether to fix it so",
        "debugger-fix": "Fixes the bug by what was found",
        "preparation": "Asks what is unclear, or plans",
        "plan-summary": "Sums up the plan",
        "release": "Prepares the release for a person to look at",
        "release-publish": "Publishes what was approved",
        "release-summary": "Sums up what was released",
        "user-testing": "Tries it out as a user would",
        "user-testing-summary": "Sums up what was found",
    }
)
"""Step -> what it does."""


def builtin_step_names() -> tuple[str, ...]:
    """Return the names of the steps that `builtin_step` knows."""
    return tuple(_FIELDS)


def builtin_step(name: str) -> Step:
    """Return the step *name* as the built-in procedures have it.

    >>> builtin_step("git-gh").prompt_name
    'subroutines/git-gh.md'

    Raises:
        UnknownName: no built-in procedure has such a step, and none is offered to others.
    """
    if name not in _FIELDS:
        raise UnknownName("step", name, _FIELDS)
    known = {"name": name, "description": _DOES[name], "prompt": f"{FOLDER}/{name}.md"}
    return Step.model_validate({**known, **_FIELDS[name]})


@cache
def builtin_procedure(name: str) -> Workflow:
    """Return the built-in procedure called *name*.

    >>> [step.name for step in builtin_procedure("plan-mode").steps]
    ['preparation', 'plan-summary']

    Raises:
        UnknownName: there is no such procedure.
    """
    if name not in PROCEDURES:
        raise UnknownName("procedure", name, PROCEDURES)
    steps = tuple(
        builtin_step(step).model_copy(update=dict(_IN_PROCEDURE.get((name, step), {})))
        for step in PROCEDURES[name]
    )
    return Workflow(name, steps, kind="procedure", description=_ABOUT[name])


def builtin_procedures() -> dict[str, Workflow]:
    """Return all of them, by name, built."""
    return {name: builtin_procedure(name) for name in PROCEDURES}


@dataclass(frozen=True, slots=True)
class BuiltinPrompts:
    """Prompt files of the built-in workflows' steps."""

    supervisor: str = "supervisor.md"
    main: str = "main.md"
    reviewer: str = "reviewer.md"


class BuiltinWorkflows(Mapping[str, Workflow]):
    """The workflows that exist without a line of configuration; each is built when asked for.

    ``standard2`` and ``review_cadence2`` keep their own supervisor and main prompts; of
    *prompts* only the reviewer's reaches them.

    >>> [step.prompt for step in BuiltinWorkflows(BuiltinPrompts())["standard2"].steps]
    ['supervisor2.md', 'main2.md']
    """

    def __init__(self, prompts: BuiltinPrompts) -> None:
        """Use *prompts* for the steps of the cycles."""
        first, second = (prompts.supervisor, prompts.main), ("supervisor2.md", "main2.md")
        self._cycles = {
            "standard": (*first, None),
            "review_cadence": (*first, prompts.reviewer),
            "standard2": (*second, None),
            "review_cadence2": (*second, prompts.reviewer),
        }
        self._built: dict[str, Workflow] = {}

    def __getitem__(self, name: str) -> Workflow:
        """Return the workflow called *name*."""
        if name in PROCEDURES:
            return builtin_procedure(name)
        if name not in self._built:
            supervisor, main, reviewer = self._cycles[name]
            steps = (
                Step(name="supervisor", prompt=supervisor, description="Chooses what is done next"),
                Step(name="main", prompt=main, description="Does it"),
            )
            looks = "Looks at what the last cycles have done"
            step = Step(name="reviewer", prompt=reviewer, description=looks)
            about = "A supervisor and a worker take turns, without end"
            self._built[name] = Workflow(
                name, steps, Review(step=step) if reviewer else None, description=about
            )
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a workflow called *name*, without building it."""
        return name in self._cycles or name in PROCEDURES

    def __iter__(self) -> Iterator[str]:
        """Yield the names, cycles first."""
        yield from self._cycles
        yield from PROCEDURES

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._cycles) + len(PROCEDURES)
