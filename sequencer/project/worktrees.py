"""Folders of their own for the agents of a run or of a task, as the core asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from sequencer import extensions
from sequencer.engine.run_place import RunPlace
from sequencer.engine.tree_state import UnmergedWork
from sequencer.engine.workplaces import Workplaces
from sequencer.errors import ConfigurationError
from sequencer.model.head import Head, Status
from sequencer.project.diagnostics import Finding
from sequencer.store import folder as folders

FOLDER = "worktrees"
"""Beside the state of a run: where its worktrees are, that of the whole run as run-RUN_ID."""


class WorktreeProvider(Protocol):
    """Makes such folders, for a `Project`, and knows what became of them."""

    def workplaces_of(
        self, project: Any, run: str | None, *, fails_on_write: bool = False
    ) -> Workplaces:
        """Return where the tasks of the run called *run* work.

        With *fails_on_write* an attempt fails whose task only reads and that has written.
        """
        ...

    def run_place_of(self, project: Any, run: str | None, tell: Callable[[str], None]) -> RunPlace:
        """Return where all steps of the run called *run* work; *tell* hears of it."""
        ...

    def unmerged_in(self, project: Any) -> tuple[UnmergedWork, ...]:
        """Return what the runs of *project* have done that is merged nowhere."""
        ...

    def forget_attempts(self, project: Any, run: str | None) -> None:
        """Remove what was set aside of failed attempts of *run*, which goes."""
        ...

    def findings(self, project: Any) -> Iterator[Finding]:
        """Yield why a run would not get its folder, and what is wrong with those that there are."""
        ...

    def graph_findings(self, project: Any, flow: Any) -> Iterator[Finding]:
        """Yield why tasks of *flow*, a `GraphFile`, would not get theirs."""
        ...


def ensure_its_worktree(is_on: bool, state_path: Path, head: Head | None) -> None:
    """Return unless the run of *head* has a worktree of its own that it would not get now.

    *is_on*: whether it would. Its steps would not see what those before them have done.

    Raises:
        ConfigurationError: it has.
    """
    if is_on or head is None or head.status is Status.COMPLETE:
        return
    folder = state_path.parent / FOLDER
    for name in folders.names(folder):
        if name.startswith(f"run-{head.run_id[:8]}") and "." not in name:
            raise ConfigurationError(
                "the run was started in a worktree, and its next step would not work there",
                where=str(folder / name),
                hint="set 'worktree: true' again; or take over what is in it, and remove it",
            )


def known_worktrees() -> WorktreeProvider | None:
    """Return what makes such folders; None: nothing does."""
    return next(extensions.ours(extensions.WORKTREES), None)


def worktrees() -> WorktreeProvider:
    """Return what makes such folders.

    Raises:
        SwitchedOff: its plug-in is switched off, or not there.
    """
    found: WorktreeProvider = extensions.required(extensions.WORKTREES, "a worktree")
    return found
