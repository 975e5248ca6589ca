"""A worktree for each task of a team that writes, inside of the run's own workspace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt, Left
from sequencer.engine.workspace import AttemptFolder, InnerWorkspace, Workspace
from sequencer.model.outcome import OutcomeStatus
from sequencer.plugins.git.code.places import OwnPlace, SharedPlace, TaskPlaces


class SharedFolder(AttemptFolder):
    """The folder of the outer workspace, for an attempt at a task."""

    def __init__(self, place: SharedPlace, outer: AttemptFolder) -> None:
        """Work in *place*, which *outer* opened."""
        super().__init__(outer.cwd)
        self._place, self._outer = place, outer
        self.notices = (*place.notices, *outer.notices)
        self.notes = outer.notes

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Left:
        """Close the task's place, then the outer folder.

        The outer folder sees a failed attempt if the place reports an error, or if a task that only
        reads has written.
        """
        left = self._place.close(status, wait_for_turn)
        if left.error is not None or self._place.has_written:
            status = OutcomeStatus.FAILED
        after = self._outer.close(status, wait_for_turn)
        notices = (*left.notices, *after.notices)
        return replace(left, notices=notices, told=(*left.told, *after.told))


class TaskWorktrees(InnerWorkspace):
    """Opens folders for attempts at tasks; their work is merged into the outer workspace."""

    def __init__(self, outer: Workspace, make: Callable[[], TaskPlaces]) -> None:
        """Merge into *outer*; *make* returns the folders of its tasks as *outer* is now."""
        super().__init__(outer)
        self._make = make
        self._guard = threading.Lock()
        self._made: tuple[Path, TaskPlaces] | None = None

    def open(self, attempt: Attempt) -> AttemptFolder:
        if (node := attempt.node) is None or node.task is None:
            return super().open(attempt)
        token, run_id = attempt.claim.token, attempt.run_id
        opened = self._places.open(node, token, run_id, is_first=attempt.is_first)
        return (
            opened if isinstance(opened, OwnPlace) else SharedFolder(opened, super().open(attempt))
        )

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        return (*super().clean(live), *self._places.clean(live))

    @property
    def _places(self) -> TaskPlaces:
        with self._guard:
            folder = self.outer.folder
            if self._made is None or self._made[0] != folder:
                self._made = folder, self._make()
            return self._made[1]
