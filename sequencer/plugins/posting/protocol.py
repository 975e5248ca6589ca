"""The activities of a run, and the protocol of the sinks that they are posted to.

A result (response, error, elicitation; for a team also a thought) is made from the run's journal,
so any later process can post it too. Other thoughts, and actions, are only about the present and
may be dropped. A sink makes one try and reports the result; `sink_queue` decides when to try again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

from msgspec import Struct

from sequencer.plugins.metrics.facts import Metrics

LONGEST_PAUSE_S = 300.0
"""Maximum pause; a sink that asks for more is tried again after this time."""


class ActivityType(StrEnum):
    """The five kinds, with the names that Linear uses."""

    THOUGHT = "thought"
    ACTION = "action"
    RESPONSE = "response"
    ERROR = "error"
    ELICITATION = "elicitation"
    """A question that a person has to answer."""


class Activity(Struct, frozen=True, kw_only=True):
    """One event of a run; text is Markdown, without secrets after `sanitize_activity`."""

    type: ActivityType
    at: str
    step: str
    step_index: int
    attempt: int = 0
    event: str | None = None
    """The journal's event of a result; None: not a result."""
    title: str = ""
    """What happened, in a few words, without the step's name."""
    body: str = ""
    question: str | None = None
    """The question of an elicitation; it is never cut, even if the body is."""
    output_file: str | None = None
    """Path of the body in the run's folder, if it was too large for the journal."""
    action: str | None = None
    """The tool of an action."""
    parameter: str | None = None
    result: str | None = None
    metrics: Metrics | None = None
    """The totals of the run, at its end."""

    @property
    def is_ephemeral(self) -> bool:
        """Return whether it may be dropped: a thought or an action that is not in the journal."""
        return self.event is None and self.type in (ActivityType.THOUGHT, ActivityType.ACTION)


class Post(Struct, frozen=True, kw_only=True):
    """An activity on its way to a sink."""

    activity: Activity
    run_id: str
    run: str | None = None
    """The run's name; None: the default run."""
    revision: int | None = None
    """Revision of the journal's record; None for a thought or an action."""
    index: int = 0
    """Index among the activities of this record."""
    may_be_there: bool = False
    """An earlier try, perhaps by another process, may have arrived."""

    @property
    def key(self) -> str | None:
        """Return the key of a result, the same for every try; None if it is not a result."""
        return None if self.revision is None else f"{self.run_id}:{self.revision}:{self.index}"

    def document(self) -> dict[str, Any]:
        """Return the JSON of ``activity.jsonl`` and of a webhook's body, without empty fields."""
        activity = self.activity
        fields = {
            "schema_version": 1,
            "key": self.key,
            "run_id": self.run_id,
            "run": self.run,
            "revision": self.revision,
            "index": None if self.revision is None else self.index,
            "at": activity.at,
            "type": str(activity.type),
            "event": activity.event,
            "step": activity.step,
            "step_index": activity.step_index,
            "attempt": activity.attempt or None,
            "title": activity.title or None,
            "body": activity.body or None,
            "question": activity.question,
            "output_file": activity.output_file,
            "action": activity.action,
            "parameter": activity.parameter,
            "result": activity.result,
            "metrics": None if activity.metrics is None else activity.metrics.to_data(),
        }
        return {name: value for name, value in fields.items() if value is not None}


class Unreachable(Exception):
    """The sink is not available now; the activity is kept and tried again."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        """Set the reason, one line, and the pause that the sink asked for."""
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """The sink will never accept this activity."""

    def __init__(self, reason: str, *, status: int | None = None, answer: str = "") -> None:
        """Set the reason, one line, and the sink's *answer*."""
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.answer = answer


@runtime_checkable
class Sink(Protocol):
    """A destination for activities; used by one thread at a time."""

    kind: ClassVar[str]
    """The value of ``kind`` in ``activity: {sinks: {NAME: {kind: …}}}``."""
    max_chars: ClassVar[int]
    """Maximum length of a body."""
    takes_thoughts: ClassVar[bool]
    """Whether thoughts and actions are posted to it."""

    @property
    def name(self) -> str:
        """Return the key in ``activity.sinks``."""

    def post(self, post: Post) -> None:
        """Post the activity, with one try.

        Raises:
            Unreachable: the try failed, or had no answer; the activity may have arrived.
            Refused: the sink will never accept it.
        """

    def close(self) -> None:
        """Close connections; the sink may be used again."""
