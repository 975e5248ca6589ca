"""The folder in which one attempt at a task works, and what happens to its files afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from sequencer.model.net.graph import Node


class Left(Struct, frozen=True):
    """What an agent has left where it worked, and what became of it."""

    error: str | None = None
    """Why it does not count, what the files are, and where the work is kept."""
    notices: tuple[str, ...] = ()
    """What a person should know."""
    told: tuple[tuple[str, str], ...] = ()
    """For the journal: the commit that was merged, the branch that was kept."""


class Workplace(Protocol):
    """Of one attempt."""

    @property
    def cwd(self) -> Path:
        """Return the agent's folder."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Return what a person should know before the agent begins."""

    def close(self, *, is_accepted: bool, wait_for_turn: Callable[[], None]) -> Left:
        """Bring what the agent has left to where it belongs.

        *wait_for_turn* is called before something is merged; it may raise to give that up.
        """


class Workplaces(Protocol):
    """Of one run."""

    def open(self, node: Node, token: int, run_id: str, *, is_first: bool) -> Workplace:
        """Return where the attempt with *token* at the task *node* works.

        Where it is not the first, its notices say whether an earlier one's work is there.

        Raises:
            SequencerError: there is no such place.
        """

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove what attempts of dead processes have left, and return what to tell of it.

        *live* are the tokens of claims that somebody may hold. Work is never lost by it.
        """


class ProjectFolder(Struct, frozen=True):
    """The project's own folder, as a workplace."""

    cwd: Path
    notices: tuple[str, ...] = ()

    def close(self, *, is_accepted: bool, wait_for_turn: Callable[[], None]) -> Left:
        """Leave everything where it is."""
        del is_accepted, wait_for_turn
        return Left()


class OneWorkplace(Struct, frozen=True):
    """Everybody works in the project's folder."""

    folder: Path

    def open(self, node: Node, token: int, run_id: str, *, is_first: bool) -> Workplace:
        """See `Workplaces.open`."""
        del node, token, run_id, is_first
        return ProjectFolder(self.folder)

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """See `Workplaces.clean`; there is nothing."""
        del live
        return ()
