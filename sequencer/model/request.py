"""What somebody asks for: the text from which a procedure's run is made.

It comes from outside, so nothing in it is ever taken for an instruction to the program: it
reaches prompts as inserted text, and labels are compared, never run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.outcome import Usage, used
from sequencer.model.step import Name
from sequencer.model.workflow import Workflow

MAX_TEXT_CHARS = 1_000_000
MAX_ITEMS = 200

Label = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""As people write it; compared without regard to case."""
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
SequenceKind = Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029]*$")]
"""One line; empty where nobody has said it."""


class Request(Frozen):
    """One request; frozen."""

    title: Annotated[str, Field(min_length=1, max_length=500)]
    """Its first line."""
    text: Text = ""
    """What follows the title; may be empty."""
    labels: Annotated[tuple[Label, ...], Field(max_length=MAX_ITEMS)] = ()
    comments: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS)] = ()
    attachments: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS)] = ()
    """Paths of files inside the project, relative to its folder, and links (``https://…``)."""
    identifier: SequenceKind = ""
    """What its tracker calls it: ``ENG-42``, ``acme/app#7``."""
    url: SequenceKind = ""
    session: SequenceKind = ""
    """Of an agent in Linear, where the request came through one."""
    repository: SequenceKind = ""
    """``OWNER/NAME`` where a tracker said it, else the name of the project's folder."""
    base_branch: SequenceKind = ""
    """What a change is to be merged into: as a tracker said it, else what was checked out."""
    assignees: Annotated[tuple[SequenceKind, ...], Field(max_length=MAX_ITEMS)] = ()
    priority: SequenceKind = ""

    def has_label(self, wanted: tuple[str, ...] | frozenset[str]) -> str | None:
        """Return the request's first label that is one of *wanted*, case aside."""
        folded = {name.casefold() for name in wanted}
        return next((label for label in self.labels if label.casefold() in folded), None)


Source = Literal["explicit", "label", "classification", "rules", "fallback", "hook"]
"""explicit: a person named it. hook: the project's own code changed what was chosen."""


class Considered(Frozen):
    """One way of choosing that was tried."""

    source: Source
    result: Name | None = None
    """The procedure that it gives; None: none."""
    why: str
    """One line."""


class Route(Frozen):
    """The choice of a procedure; frozen, kept with the run."""

    procedure: Name
    source: Source
    classification: str | None = None
    """The word that the request was classified as; None where nobody classified it."""
    reason: str
    """One line."""
    considered: tuple[Considered, ...] = ()
    """Everything that was tried, in order, what won included."""
    asked: Name | None = None
    """The agent that was asked to classify the request; None: nobody was."""
    usage: Usage = Usage()
    """What all questions to it have used, those without an answer included."""


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
    """Literal texts that are replaced in prompt files."""
    agent: str | None = None
    """Was asked for by name, so it also performs what is added to the run later."""
    assignment: dict[str, Any] | None = Field(default=None, alias="team")
    """Whether a team works on it, and why; shown to people."""
    notes: tuple[str, ...] = ()
    """What was left out or put elsewhere because an agent can't honour it."""

    @property
    def usage(self) -> Usage:
        """Return what the choice of the procedure has used; the run counts it as its own."""
        try:
            return used(self.route.get("usage") or {})
        except ValueError:
            # The route is for people, who may have edited it.
            return Usage()

    def to_json(self) -> bytes:
        """Return the file's content, readable and without what is as ever."""
        text = self.model_dump_json(exclude_defaults=True, by_alias=True, indent=1)
        return (text + "\n").encode()
