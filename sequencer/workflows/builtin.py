"""The workflows that come with the program: cycles, and procedures for what a request asks.

A procedure is a line of step names in a table; the steps' fields are data beside the prompts.
Nothing is built before it is asked for by name: every command makes a registry,
and hardly one looks at a procedure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from sequencer.errors import UnknownName
from sequencer.model.step import Step
from sequencer.model.workflow import Review, Workflow

FOLDER = "subroutines"
"""Of the steps' prompts, below prompts_dir."""
_FIELDS = Path(__file__).parents[1] / "builtin" / "procedures.json"
"""What the procedures are for, and the fields of their steps besides name and prompt; some
have others in one procedure: whoever sends a request to orchestrator-full wants an architect,
whatever its labels are."""

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


@cache
def builtin_procedure(name: str) -> Workflow:
    """Return the built-in procedure called *name*.

    >>> [step.prompt_name for step in builtin_procedure("plan-mode").steps]
    ['subroutines/preparation.md', 'subroutines/plan-summary.md']

    Raises:
        UnknownName: there is no such procedure.
    """
    if name not in PROCEDURES:
        raise UnknownName("procedure", name, PROCEDURES)
    written = json.loads(_FIELDS.read_bytes())
    here = written["steps_in"].get(name, {})
    steps = tuple(
        Step.model_validate(
            {
                "name": step,
                "prompt": f"{FOLDER}/{step}.md",
                **written["steps"][step],
                **here.get(step, {}),
            }
        )
        for step in PROCEDURES[name]
    )
    return Workflow(name, steps, kind="procedure", description=written["procedures"][name])


class BuiltinPrompts(Struct, frozen=True):
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
