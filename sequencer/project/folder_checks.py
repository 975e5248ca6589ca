"""Checks that the folders of a project are writable and are not links."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from sequencer.errors import UnsafeFolder
from sequencer.project.diagnostics import Area, Diagnostic, Level, locate_setting
from sequencer.project.project import Project, build_branch_guard
from sequencer.project.runs import get_state_path
from sequencer.store import highwater
from sequencer.store.folder import open_folder
from sequencer.store.lock import filesystem_type, is_network
from sequencer.store.ownership import explain_refusal

_LOG_FOLDERS = 4
"""Maximum depth of logs: BRANCH/runs/NAME/steps."""
_BELOW = ("beats", "results", "runs", "activity")
"""Folders of a run next to its head."""


def check_folders(project: Project, run: str | None) -> Iterator[Diagnostic]:
    """Yield the problems of the folders that a run writes to."""
    settings = project.settings
    folder = get_state_path(settings, run).parent
    kind = filesystem_type(folder)
    if is_network(kind):
        is_allowed = settings.store.allow_network_fs
        message = f"the file system is {kind}, where other machines may miss locks and renames"
        level = Level.WARNING if is_allowed else Level.ERROR
        hint = "use a local folder, or set store.allow_network_fs: true if only one machine uses it"
        yield Diagnostic(level, Area.STATE, message, str(folder), hint)
    guard = build_branch_guard(settings)
    if guard is not None and (problem := guard.problem()) is not None:
        where = locate_setting(settings, "store", "work", "branch")
        yield Diagnostic(Level.ERROR, Area.STATE, problem[0], where, problem[1])
    for path, name in ((folder, "state_file"), (settings.logs_dir, "logs_dir")):
        yield from _check_writable(path, name)
    for path in (folder, *(folder / name for name in _BELOW)):
        yield from _check_link(path)
    yield from _check_links(settings.logs_dir)
    if (reason := highwater.find_problem()) is not None:
        message = "the progress of runs is recorded only inside the project, so older files "
        message += f"(from git stash or a backup) may not be noticed: {reason}"
        hint = "give this user a home folder, or name a folder in XDG_STATE_HOME"
        yield Diagnostic(Level.WARNING, Area.STATE, message, None, hint)


def _check_writable(folder: Path, name: str) -> Iterator[Diagnostic]:
    """Yield an error if *folder*, set by the key *name*, can't be written to or created."""
    ancestor = folder
    while not os.path.lexists(ancestor) and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    if not ancestor.is_dir():
        yield Diagnostic(Level.ERROR, Area.FILES, f"{name}: is not a folder", str(ancestor))
    elif not os.access(ancestor, os.W_OK | os.X_OK):
        # No call has failed yet, so create the error that the system would raise.
        reason, hint = explain_refusal(
            PermissionError(errno.EACCES, "can't be written to"), ancestor, ""
        )
        yield Diagnostic(Level.ERROR, Area.FILES, f"{name}: {reason}", str(ancestor), hint or None)


def _check_link(folder: Path) -> Iterator[Diagnostic]:
    """Yield an error if *folder* or a parent of it is a link."""
    try:
        open_folder(folder)
    except UnsafeFolder as error:
        yield Diagnostic(Level.ERROR, Area.FILES, error.message, str(error.where), error.hint or "")
    except OSError:
        return  # it does not exist yet, or `_check_writable` has reported it


def _check_links(top: Path) -> Iterator[Diagnostic]:
    """Yield an error for each folder of logs that is a link: nothing is written through a link."""
    if errors := list(_check_link(top)):
        # Don't follow the link.
        yield from errors
        return
    for parent, folders, _ in os.walk(top):
        for name in sorted(folders):
            path = Path(parent, name)
            if path.is_symlink():
                yield Diagnostic(Level.ERROR, Area.FILES, "is a link", str(path), "move it away")
        if len(Path(parent).relative_to(top).parts) >= _LOG_FOLDERS - 1:
            folders.clear()  # os.walk descends only into the folders that are left
