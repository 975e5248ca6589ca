"""Requests: the text from which the run of a procedure is created.

A request comes from outside, so the program never treats it as an instruction: its text is only
inserted into prompts, and its labels are only compared, never run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.outcome import Usage, read_usage
from sequencer.model.step import Name
from sequencer.model.workflow import Workflow

MAX_TEXT_CHARS = 1_000_000
MAX_ITEMS = 200

Label = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""As people write it; compared case-insensitively."""
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
OneLine = Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029]*$")]
"""A text of one line; empty if it is not given."""


class Request(Frozen):
    """One request; frozen."""

    title: Annotated[str, Field(min_length=1, max_length=500)]
    """Its first line."""
    text: Text = ""
    """The text after the title; may be empty."""
    labels: Annotated[tuple[Label, ...], Field(max_length=MAX_ITEMS)] = ()
    comments: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS)] = ()
    attachments: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS)] = ()
    """Paths of files inside the project, relative to its folder, and links (``https://…``)."""
    identifier: OneLine = ""
    """Its name in the tracker: ``ENG-42``, ``acme/app#7``."""
    url: OneLine = ""
    session: OneLine = ""
    """The session of an agent in Linear, if the request came through one."""
    repository: OneLine = ""
    """``OWNER/NAME`` if a tracker gave it, else the name of the project's folder."""
    base_branch: OneLine = ""
    """The branch to merge a change into: from the tracker, else the one that was checked out."""
    assignees: Annotated[tuple[OneLine, ...], Field(max_length=MAX_ITEMS)] = ()
    priority: OneLine = ""

    def find_label(self, wanted: tuple[str, ...] | frozenset[str]) -> str | None:
        """Return the request's first label that is one of *wanted*, compared case-insensitively."""
        folded = {name.casefold() for name in wanted}
        return next((label for label in self.labels if label.casefold() in folded), None)


Source = Literal["explicit", "label", "classification", "rules", "fallback", "hook"]
"""explicit: a person named it. hook: code of the project changed the choice."""


class RoutingAttempt(Frozen):
    """One way to choose a procedure that was tried."""

    source: Source
    result: Name | None = None
    """The procedure that it led to; None: it led to none."""
    why: str
    """One line."""


class Route(Frozen):
    """The choice of a procedure; frozen, stored with the run."""

    procedure: Name
    source: Source
    classification: str | None = None
    """The word that the request was classified as; None: it was not classified."""
    reason: str
    """One line."""
    considered: tuple[RoutingAttempt, ...] = ()
    """Everything that was tried, in order, including the way that was chosen."""
    asked: Name | None = None
    """The agent that was asked to classify the request; None: no agent was."""
    usage: Usage = Usage()
    """The usage of all questions to it, including those without an answer."""


DEFINITION_FILE = "definition.json"


class Definition(Frozen):
    """The content of ``definition.json``; frozen."""

    schema_version: Literal[1] = 1
    created_at: str
    request: Request
    route: dict[str, Any]
    """How the procedure was chosen; for people."""
    workflow: Workflow
    """The resolved steps, in the order in which they run."""
    substitutions: dict[str, str] = Field(default_factory=dict)
    """Literal texts to replace in prompt files."""
    agent: str | None = None
    """The agent that was requested by name; it also performs steps that are added later."""
    assignment: dict[str, Any] | None = Field(default=None, alias="team")
    """Whether a team works on it, and why; for people."""
    notes: tuple[str, ...] = ()
    """What was left out or moved because an agent can't support it."""

    @property
    def usage(self) -> Usage:
        """Return the usage of choosing the procedure; the run counts it as its own."""
        try:
            return read_usage(self.route.get("usage") or {})
        except ValueError:
            # The route is for people to read, and a person may have edited it.
            return Usage()

    def to_json(self) -> bytes:
        """Return the content of the file, indented and without default values."""
        text = self.model_dump_json(exclude_defaults=True, by_alias=True, indent=1)
        return (text + "\n").encode()
