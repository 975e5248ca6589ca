"""Evidence of progress: facts about the work of an attempt that every executor reports alike.

An executor reports what it has seen; `engine.evidence` decides what follows. Evidence has counts
and digests only: no text, no arguments, no paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field, ValidationError


class TurnEnd(StrEnum):
    """How the agent's last turn ended, according to the table of its client."""

    CLEAN = "clean"
    """The client reports that the agent finished its turn."""
    CUT_OFF = "cut-off"
    """It was stopped in the middle: a length limit, a paused turn, a tool call without a result."""
    UNKNOWN = "unknown"
    """It ended for a reason that is not in the client's table."""


class Evidence(Frozen, extra="ignore"):
    """The facts of one attempt."""

    turn_end: TurnEnd = TurnEnd.CLEAN
    reason: str | None = Field(default=None, max_length=60)
    """The client's own word for why the turn ended; None: the client gave no reason."""
    has_text: bool = False
    """The agent has written text, in its final answer or before."""
    tool_calls: int = Field(default=0, ge=0)
    open_calls: int = Field(default=0, ge=0)
    """``tool_calls`` without a result. A call that runs in the background counts as answered."""
    repeated_calls: int = Field(default=0, ge=0)
    """Length of the longest series of equal calls with equal results."""
    is_stated: bool = False
    """The result file says how the attempt ended, or the file of ``complete_when`` exists."""
    is_idle: bool = False
    """The agent says that there was nothing to do, and why."""
    ended_processes: int = Field(default=0, ge=0)
    """Processes that the agent left running and that were stopped when it ended."""
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
    repeats: int = Field(default=0, ge=0)
    """Attempts in a row at this step with this answer and no change of the workspace, including
    this one; 0: not compared."""

    @property
    def answered_calls(self) -> int:
        """Return how many tool calls have a result."""
        return max(self.tool_calls - self.open_calls, 0)

    @property
    def compared(self) -> str | None:
        """Return a value that is equal for equal answers; None: it can't be compared.

        Attempts that call tools and give no answer count as equal, unless a file states the
        result.
        """
        is_silent = self.answer is None and not self.is_stated and self.answered_calls > 0
        return "" if is_silent else self.answer


def format_quantity(number: int | None, noun: str, plural: str = "") -> str:
    """Return *number* of *noun*; empty if it is 0 or not known."""
    if not number:
        return ""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def _format_parts(evidence: Evidence) -> Iterator[str]:
    """Yield the parts of the line for *evidence*; the caller leaves out the empty ones."""
    calls = format_quantity(evidence.tool_calls, "tool call")
    call_details = [f"{evidence.open_calls:,} without a result"] if evidence.open_calls else []
    call_details += (
        [f"{evidence.repeated_calls:,} equal in a row"] if evidence.repeated_calls > 1 else []
    )
    files, commits = (
        format_quantity(evidence.files, "file"),
        format_quantity(evidence.commits, "commit"),
    )
    work_parts = [
        files,
        commits,
        f"{calls} ({', '.join(call_details)})" if calls and call_details else calls,
    ]
    if evidence.has_changed is False:
        work_parts.insert(0, "no change")
    elif evidence.has_changed and not files and not commits:
        work_parts.insert(0, "files changed")
    yield ", ".join(filter(None, work_parts))
    yield "nothing to do" if evidence.is_idle else ""
    process_text = format_quantity(evidence.ended_processes, "process", "processes")
    yield (
        f"{process_text} {'was' if evidence.ended_processes == 1 else 'were'} ended"
        if process_text
        else ""
    )
    yield f"the same answer {evidence.repeats} times in a row" if evidence.repeats > 1 else ""


def format_evidence(evidence: Evidence | None) -> str:
    """Return the evidence of an attempt in one line; what is 0 or unknown is left out.

    >>> format_evidence(Evidence(files=3, commits=2, tool_calls=14, ended_processes=2))
    '3 files, 2 commits, 14 tool calls · 2 processes were ended'
    >>> format_evidence(Evidence(has_changed=False, tool_calls=5, repeated_calls=4, open_calls=1))
    'no change, 5 tool calls (1 without a result, 4 equal in a row)'
    >>> format_evidence(Evidence(has_text=True)), format_evidence(None)
    ('', '')
    """
    return "" if evidence is None else " · ".join(filter(None, _format_parts(evidence)))


def read_evidence(record: Mapping[str, Any]) -> Evidence | None:
    """Return the evidence in a *record* of a journal; None: it is missing or malformed."""
    evidence = record.get("evidence")
    try:
        return Evidence.model_validate(evidence) if isinstance(evidence, dict) else None
    except ValidationError:
        return None
