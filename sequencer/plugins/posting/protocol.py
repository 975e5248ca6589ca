"""What is told about a run, and what is asked of a place that it is told to.

A result (response, error, elicitation; of a team also a thought) is made from the run's
journal, so it can be posted by any later process as well; any other thought, and an action,
is about this moment and may be dropped.
A sink makes one try and says how it went. When to try again is `lane`'s to decide.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

from msgspec import Struct

from sequencer.plugins.metrics.facts import Metrics

LONGEST_PAUSE_S = 300.0
"""A sink that asks for more is tried again after this."""


class ActivityType(StrEnum):
    """The five kinds, in the words that Linear has for them."""

    THOUGHT = "thought"
    ACTION = "action"
    RESPONSE = "response"
    ERROR = "error"
    ELICITATION = "elicitation"
    """A question that a person has to answer."""


class Activity(Struct, frozen=True, kw_only=True):
    """One thing that happened in a run; text is Markdown and holds no secret once polished."""

    type: ActivityType
    at: str
    step: str
    step_index: int
    attempt: int = 0
    event: str | None = None
    """The journal's word for a result."""
    title: str = ""
    """What happened, in a few words, without the step's name."""
    body: str = ""
    question: str | None = None
    """What an elicitation asks; it stays whole where the body is cut."""
    output_file: str | None = None
    """Where the body is in the run's folder, if it was too large for the journal."""
    action: str | None = None
    """Of an action: the tool."""
    parameter: str | None = None
    result: str | None = None
    metrics: Metrics | None = None
    """Of the end of a run: what all of it came to."""

    @property
    def is_ephemeral(self) -> bool:
        """Return whether it may be dropped; what the journal says is a result."""
        return self.event is None and self.type in (ActivityType.THOUGHT, ActivityType.ACTION)


class Post(Struct, frozen=True, kw_only=True):
    """An activity on its way to a sink."""

    activity: Activity
    run_id: str
    run: str | None = None
    """The run's name; None: the default run."""
    revision: int | None = None
    """Of the journal's record; None for a thought or an action."""
    index: int = 0
    """Among the activities of that record."""
    may_be_there: bool = False
    """An earlier try, perhaps of another process, may have arrived."""

    @property
    def key(self) -> str | None:
        """Return what stays the same however often a result is posted; None if it is no result."""
        return None if self.revision is None else f"{self.run_id}:{self.revision}:{self.index}"

    def document(self) -> dict[str, Any]:
        """Return it as ``activity.jsonl`` and a webhook's body have it, without what is empty."""
        told = self.activity
        fields = {
            "schema_version": 1,
            "key": self.key,
            "run_id": self.run_id,
            "run": self.run,
            "revision": self.revision,
            "index": None if self.revision is None else self.index,
            "at": told.at,
            "type": str(told.type),
            "event": told.event,
            "step": told.step,
            "step_index": told.step_index,
            "attempt": told.attempt or None,
            "title": told.title or None,
            "body": told.body or None,
            "question": told.question,
            "output_file": told.output_file,
            "action": told.action,
            "parameter": told.parameter,
            "result": told.result,
            "metrics": None if told.metrics is None else told.metrics.document(),
        }
        return {name: value for name, value in fields.items() if value is not None}


class Unreachable(Exception):
    """The sink could not take anything now; the activity stays and is tried again."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        """Say why in one line, and how long the sink asked to be left alone."""
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """The sink will never take this activity, however often it is posted."""

    def __init__(self, reason: str, *, status: int | None = None, answer: str = "") -> None:
        """Say why in one line; *answer* is what the sink said."""
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.answer = answer


@runtime_checkable
class Sink(Protocol):
    """A place that activities are posted to; used by one thread at a time."""

    kind: ClassVar[str]
    """The word in ``activity: {sinks: {NAME: {kind: …}}}``."""
    max_chars: ClassVar[int]
    """Longest body that it takes."""
    takes_thoughts: ClassVar[bool]
    """Whether thoughts and actions belong there."""

    @property
    def name(self) -> str:
        """Return the key in ``activity.sinks``."""

    def post(self, post: Post) -> None:
        """Post it, with one try.

        Raises:
            Unreachable: not now; it may have arrived all the same.
            Refused: never.
        """

    def close(self) -> None:
        """Free connections; the sink may be used again."""
