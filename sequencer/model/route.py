"""Which procedure a request goes to, who chose it, and what else was considered."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from sequencer.model.step import Name

Source = Literal["explicit", "label", "classification", "rules", "fallback", "hook"]
"""explicit: a person named it. hook: the project's own code changed what was chosen."""


class Considered(BaseModel):
    """One way of choosing that was tried."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Source
    result: Name | None = None
    """The procedure that it gives; None: none."""
    why: str
    """One line."""


class Route(BaseModel):
    """The choice of a procedure; frozen, kept with the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    procedure: Name
    source: Source
    classification: str | None = None
    """The word that the request was classified as; None where nobody classified it."""
    reason: str
    """One line."""
    considered: tuple[Considered, ...] = ()
    """Everything that was tried, in order, what won included."""
