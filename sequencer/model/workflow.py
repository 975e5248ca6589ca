"""Workflows: named orders of steps.

A workflow is data; which step it has at an index is `resolution.resolver`'s to say. The
digest covers the definition as its author wrote it and nothing that may change while a
run goes on (prompt texts, limits, step defaults).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sequencer.model.step import Name, Step


class Review(BaseModel):
    """Every how many cycles a review takes a whole cycle over, and with which step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Cycles; 0 or less means never."""
    step: Step


class Workflow(BaseModel):
    """A named order of steps; frozen, compared by value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    steps: tuple[Step, ...] = Field(min_length=1, max_length=10_000)
    review: Review | None = None
    kind: Literal["cycle", "procedure"] = "cycle"
    """cycle: endless. procedure: once from the first step to the last, then complete."""

    def __init__(
        self,
        name: str,
        steps: tuple[Step, ...] | list[Step],
        review: Review | None = None,
        kind: str = "cycle",
    ) -> None:
        """Build a workflow; positional, because name and steps are all that most need.

        Raises:
            ValueError: two steps share a name (a position could not be told apart), or a
                procedure has a review (it has no cycles to review).
        """
        super().__init__(name=name, steps=steps, review=review, kind=kind)

    @model_validator(mode="after")
    def _positions_are_unambiguous(self) -> Workflow:
        names = Counter(step.name for step in self.steps)
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            message = f"step names have to differ within a workflow; twice: {', '.join(twice)}"
            raise ValueError(message)
        if self.kind == "procedure" and self.review is not None:
            message = "a procedure has no cycles, so it can't have a review"
            raise ValueError(message)
        return self

    @property
    def review_every(self) -> int:
        """Return N of "a review every N cycles"; 0 means never."""
        return max(self.review.every, 0) if self.review else 0

    @property
    def params(self) -> dict[str, int]:
        """Return the parameters that a run keeps in its head."""
        return {"review_every_n_cycles": self.review_every} if self.review else {}

    def with_review_every(self, every: int) -> Workflow:
        """Return the same workflow with another cadence.

        Raises:
            ValueError: the workflow has no review step that could be run.
        """
        if self.review is None:
            message = f"workflow {self.name!r} has no review step"
            raise ValueError(message)
        return self.model_copy(
            update={"review": self.review.model_copy(update={"every": max(every, 0)})}
        )

    def digest(self) -> str:
        """Return ``sha256:…`` over the definition without its parameters.

        Fields that hold their default are left out, so that a version of the program with
        one more step field gives old definitions the same digest.
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        definition = self.model_dump(
            mode="json", exclude_defaults=True, exclude={"review": {"every"}}
        )
        canonical = json.dumps(definition, sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"
