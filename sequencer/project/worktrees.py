"""The interface between the core and the plug-in that makes worktrees for runs and tasks."""

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
"""The folder of worktrees, beside the state of a run."""


def run_worktree_name(run_id: str) -> str:
    """Return what the name of the worktree of a whole run begins with."""
    return f"run-{run_id[:8]}"


class WorktreeProvider(Protocol):
    """Makes such folders, for a `Project`, and knows what became of them."""

    def task_worktrees(
        self, project: Any, run: str | None, outer: Workspace, *, fails_on_write: bool
    ) -> Workspace:
        """Return where the tasks of the run called *run* work, whose other steps work in *outer*.

        With *fails_on_write* an attempt fails whose task only reads and that has written.
        """
        ...

    def run_worktree(
        self, project: Any, run: str | None, outer: Workspace, tell: Callable[[str], None]
    ) -> Workspace:
        """Return where all steps of the run called *run* work, instead of in *outer*.

        *tell* hears of it.
        """
        ...

    def unmerged_in(self, project: Any) -> tuple[UnmergedWork, ...]:
        """Return what the runs of *project* have done that is merged nowhere."""
        ...

    def forget_attempts(self, project: Any, run: str | None) -> None:
        """Remove what was set aside of failed attempts of *run*, which goes."""
        ...

    def diagnostics(self, project: Any) -> Iterator[Diagnostic]:
        """Yield why a run would not get its folder, and what is wrong with those that there are."""
        ...

    def graph_findings(self, project: Any, flow: Any) -> Iterator[Diagnostic]:
        """Yield why tasks of *flow*, a `GraphFile`, would not get theirs."""
        ...


def ensure_same_worktree(state_path: Path, head: Head | None, *, has_worktree: bool) -> None:
    """Return if the next step of the run at *head* runs where its earlier steps ran.

    *has_worktree*: the next step runs in the worktree of the run.

    Raises:
        ConfigurationError: the run has a worktree, but its next step would not use it, and would
            not see the work of the steps before it.
    """
    if has_worktree or head is None or head.status is Status.COMPLETE:
        return
    folder = state_path.parent / FOLDER
    for name in folders.names(folder):
        if name.startswith(run_worktree_name(head.run_id)) and "." not in name:
            raise ConfigurationError(
                "the run was started in a worktree, and its next step would not run there",
                where=str(folder / name),
                hint="set 'worktree: true' again; or copy what you need from there, and remove it",
            )


WORKTREES = extensions.Single[WorktreeProvider](extensions.WORKTREES, "a worktree")
"""The plug-in that makes worktrees."""
