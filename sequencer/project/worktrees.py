"""The interface between the core and the plug-in that creates worktrees for runs and tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from sequencer import extensions
from sequencer.engine.tree_state import UnmergedWork
from sequencer.engine.workspace import Workspace
from sequencer.errors import ConfigurationError
from sequencer.model.head import Head, Status
from sequencer.project.diagnostics import Diagnostic
from sequencer.store import folder as folders

FOLDER = "worktrees"
"""The folder of worktrees, next to the state of a run."""


def run_worktree_name(run_id: str) -> str:
    """Return the start of the name of a run's worktree."""
    return f"run-{run_id[:8]}"


class WorktreeProvider(Protocol):
    """Creates worktrees for a `Project`, and finds work in them that is not merged."""

    def task_worktrees(
        self, project: Any, run: str | None, outer: Workspace, *, fails_on_write: bool
    ) -> Workspace:
        """Return the workspace for the tasks of *run*; its other steps work in *outer*.

        With *fails_on_write*, an attempt fails if its task may only read and it has written.
        """
        ...

    def run_worktree(
        self, project: Any, run: str | None, outer: Workspace, notify: Callable[[str], None]
    ) -> Workspace:
        """Return the workspace for all steps of *run*, instead of *outer*.

        *notify* gets messages for people about the worktree.
        """
        ...

    def find_unmerged_work(self, project: Any) -> tuple[UnmergedWork, ...]:
        """Return the work of *project*'s runs that is merged nowhere."""
        ...

    def forget_attempts(self, project: Any, run: str | None) -> None:
        """Remove the saved work of failed attempts of *run*, which is being removed."""
        ...

    def diagnostics(self, project: Any) -> Iterator[Diagnostic]:
        """Yield the reasons why a run can't get a worktree, and problems of existing worktrees."""
        ...

    def graph_findings(self, project: Any, flow: Any) -> Iterator[Diagnostic]:
        """Yield the reasons why tasks of *flow*, a `GraphFile`, can't get their worktrees."""
        ...


def ensure_same_worktree(state_path: Path, head: Head | None, *, has_worktree: bool) -> None:
    """Check that the next step of the run at *head* runs where its earlier steps ran.

    *has_worktree*: the next step runs in the worktree of the run.

    Raises:
        ConfigurationError: the run has a worktree, but its next step would not use it, so it
            would not see the work of the steps before it.
    """
    if has_worktree or head is None or head.status is Status.COMPLETE:
        return
    folder = state_path.parent / FOLDER
    for name in folders.list_names(folder):
        if name.startswith(run_worktree_name(head.run_id)) and "." not in name:
            raise ConfigurationError(
                "the run was started in a worktree, and its next step would not run there",
                where=str(folder / name),
                hint="set 'worktree: true' again; or copy what you need from there, and remove it",
            )


WORKTREES = extensions.Single[WorktreeProvider](extensions.WORKTREES, "a worktree")
"""The plug-in that creates worktrees."""
