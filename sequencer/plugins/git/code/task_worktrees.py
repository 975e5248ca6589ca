"""A worktree for each task of a team that writes, inside the run's workspace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from sequencer.engine.attempt import Attempt
from sequencer.engine.workspace import AttemptFolder, InnerWorkspace, Workspace
from sequencer.plugins.git.code.task_folders import TaskFolders


class TaskWorktrees(InnerWorkspace):
    """Opens folders for attempts at tasks; their work is merged into the outer workspace."""

    def __init__(self, outer: Workspace, make: Callable[[], TaskFolders]) -> None:
        """Merge into *outer*; *make* returns the task folders for the present state of *outer*."""
        super().__init__(outer)
        self._make = make
        self._guard = threading.Lock()
        self._cached: tuple[Path, TaskFolders] | None = None

    def open(self, attempt: Attempt) -> AttemptFolder:
        if (node := attempt.node) is None or node.task is None:
            return super().open(attempt)
        open_shared = partial(super().open, attempt)
        token, run_id = attempt.claim.token, attempt.run_id
        return self._folders.open(node, token, run_id, open_shared, is_first=attempt.is_first)

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        return (*super().clean(live), *self._folders.clean(live))

    @property
    def _folders(self) -> TaskFolders:
        with self._guard:
            folder = self.outer.folder
            # A run's worktree exists only after `begin`, so the outer folder can change.
            if self._cached is None or self._cached[0] != folder:
                self._cached = folder, self._make()
            return self._cached[1]
