"""What a run was made from: the request, how it was routed, and the steps as they were then.

Kept with the run, so that a procedure that is changed later, or a label that means
something else by then, changes no run that has begun.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from sequencer.model.request import Request
from sequencer.model.workflow import Workflow

NAME = "definition.json"


class Definition(BaseModel):
    """The content of ``definition.json``; frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    created_at: str
    request: Request
    route: dict[str, Any]
    """How the procedure was chosen; for people."""
    workflow: Workflow
    """The resolved steps, in the order in which they run."""
    substitutions: dict[str, str] = {}
    """Literal texts that are replaced in prompt files."""
    agent: str | None = None
    """Was asked for by name, so it also performs what is added to the run later."""
    team: dict[str, Any] | None = None
    """Whether a team works on it, and why; for people."""
    notes: tuple[str, ...] = ()
    """What was left out or put elsewhere because an agent can't honour it."""

    @field_validator("workflow", mode="before")
    @classmethod
    def _accept_a_mapping(cls, value: object) -> object:
        return Workflow(**value) if isinstance(value, dict) else value

    def to_json(self) -> bytes:
        """Return the file's content, readable and without what is as ever."""
        text = self.model_dump_json(exclude_defaults=True, by_alias=True, indent=1)
        return (text + "\n").encode()
