"""What an attempt shows of its work: facts that every executor reports alike.

An executor says what it has seen, `engine.evidence` decides what that is worth. Counts and
digests only: no text, no arguments, no paths.
"""

from __future__ import annotations

from enum import StrEnum

from sequencer.model.fields import Field
from sequencer.model.frozen import Frozen


class TurnEnd(StrEnum):
    """How the agent's last turn ended, by the table of its client."""

    CLEAN = "clean"
    """The agent finished what it had to say, and the client says so."""
    CUT_OFF = "cut-off"
    """It was stopped in the middle: a length limit, a paused turn, a tool call without a result."""
    UNKNOWN = "unknown"
    """For a reason that the client's table does not have."""


class Evidence(Frozen, extra="ignore"):
    """The facts of one attempt."""

    turn_end: TurnEnd = TurnEnd.CLEAN
    reason: str | None = Field(default=None, max_length=60)
    """The client's own word for why the turn ended; None: it gave none."""
    has_text: bool = False
    """The agent has said something, be it in its final answer or before."""
    tool_calls: int = Field(default=0, ge=0)
    open_calls: int = Field(default=0, ge=0)
    """Of ``tool_calls``: without a result. What runs in the background counts as answered."""
    repeated_calls: int = Field(default=0, ge=0)
    """Longest row of equal calls with equal results."""
    ended_processes: int = Field(default=0, ge=0)
    """Processes that the agent left running and that were ended with it."""
    has_changed: bool | None = None
    """Whether files of the workspace have changed; None: not measured, or not known."""
    files: int | None = None
    """Files that have changed."""
    commits: int | None = None
    """Commits that the attempt has made."""
    answer: str | None = None
    """Digest of the answer, to compare it with others."""
    tree: str | None = None
    """Digest of the workspace after the attempt, to compare it with others."""
