"""What somebody asks for: the text from which a procedure's run is made.

It comes from outside, so nothing in it is ever taken for an instruction to the program: it
reaches prompts as inserted text, and labels are compared, never run.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_TEXT_CHARS = 1_000_000
MAX_ITEMS = 200

Label = Annotated[
    str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")
]
"""As people write it; compared without regard to case."""
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
Line = Annotated[
    str, StringConstraints(max_length=2_000, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029]*$")
]
"""One line; empty where nobody has said it."""


class Request(BaseModel):
    """One request; frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    """Its first line."""
    text: Text = ""
    """What follows the title; may be empty."""
    labels: Annotated[tuple[Label, ...], Field(max_length=MAX_ITEMS)] = ()
    comments: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS)] = ()
    attachments: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS)] = ()
    """Paths of files inside the project, relative to its folder, and links (``https://…``)."""
    identifier: Line = ""
    """What its tracker calls it: ``ENG-42``, ``acme/app#7``."""
    url: Line = ""
    repository: Line = ""
    """``OWNER/NAME`` where a tracker said it, else the name of the project's folder."""
    base_branch: Line = ""
    """What a change is to be merged into: as a tracker said it, else what was checked out."""
    assignees: Annotated[tuple[Line, ...], Field(max_length=MAX_ITEMS)] = ()
    priority: Line = ""

    def has_label(self, wanted: tuple[str, ...] | frozenset[str]) -> str | None:
        """Return the request's first label that is one of *wanted*, case aside."""
        folded = {name.casefold() for name in wanted}
        return next((label for label in self.labels if label.casefold() in folded), None)
