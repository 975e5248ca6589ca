"""One more wall before a transition is accepted: somebody else has to agree to it.

A file store asks its peer between deciding and appending, under the lock. The git store is
such a peer: what the remote has accepted is appended here, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sequencer.model.head import Head
from sequencer.model.transitions import Transition


class Agreed(StrEnum):
    """What became of a transition that was asked about."""

    ACCEPTED = "accepted"
    """Append it."""
    LOST = "lost"
    """Somebody was faster; the files here are the newer ones now, and it is decided anew."""
    OVERTAKEN = "overtaken"
    """It was accepted, others have gone on from it, and the files here have both."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A transition that is decided and not yet accepted."""

    before: Head | None
    head: Head
    transition: Transition
    content: bytes
    """What state.json is to hold."""
    line: bytes
    """The record, newline included."""
    closing: bytes
    """What has to stand before the record, if the journal ends in a torn line."""


class Peer(Protocol):
    """Who is asked; all of it is called under the lock of the run's folder."""

    def before(self) -> None:
        """Bring the folder up to what this process knows to be newer."""

    def agree(self, draft: Draft) -> Agreed:
        """Have *draft* accepted, or find out that it can't be.

        Raises:
            StateRefused: it is not accepted, or nobody can say whether it is.
        """

    def appended(self) -> None:
        """Note that what was agreed to stands in the journal here."""
