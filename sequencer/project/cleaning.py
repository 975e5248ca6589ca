"""What a project no longer needs: old logs of steps and ticks, and runs that ended long ago.

This user's records of any project are covered too: those of ticks whose runs or logs are gone,
and the dates of schedules of projects whose folder is gone.

A run that may continue loses only its old logs. The newest logs stay: they show how far the run
came (`logs.build_progress_evidence`). A run that has ended is removed completely. Its folder is
renamed first, under the run's lock, so that a kill never leaves half of a run.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path

from msgspec import Struct

from sequencer.engine.logs import find_old_logs, list_run_folders
from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.files.textfile import slug
from sequencer.project.project import Project
from sequencer.project.scheduler import load_scheduler
from sequencer.store import folder as folders
from sequencer.store.file import FileStore
from sequencer.store.head import signature
from sequencer.store.highwater import HighWaterMark
from sequencer.store.user_state import user_state_path

_GOING = re.compile(r"removed-[0-9a-f]{16}")
_TICKS = re.compile(r"tick\.(?P<run>.+)\.log(?:\.told)?")
"""The files that ``tick --log`` writes for a named run that a timer starts."""
_WORKTREES = "worktrees"
RECORDS = ("ticks", "schedules", "posted", "runs")
"""Folders of this user's records that the program writes again if it needs them."""
RECORD_BYTES = 64 * 1024


class Size(Struct, frozen=True):
    """The number and the size of some files."""

    files: int = 0
    bytes: int = 0
    newest: float = 0.0
    """Unix time of the last change of any file."""

    def plus(self, other: Size) -> Size:
        """Return the sum of both."""
        newest = max(self.newest, other.newest)
        return Size(self.files + other.files, self.bytes + other.bytes, newest)


class Removable(Struct, frozen=True):
    """Something to remove: a run that has ended, or step logs of a run that may continue."""

    run: Run | None
    """None: the rest of an interrupted removal, or records and logs of runs that are gone."""
    folder: Path | None
    """The folder of a run that is removed completely."""
    logs: tuple[Path, ...]
    size: Size
    forget: Callable[[], None] | None = None
    """Removes the git refs of the run's attempts."""

    def remove(self) -> bool:
        """Remove it and return True; return False for a run that has changed meanwhile."""
        for path in self.logs:
            folders.remove(path)
        if self.folder is None:
            return True
        if self.run is None:
            folders.remove_tree(self.folder)
            return True
        return _remove_run(self.run, self.folder, self.forget)


def find_removable(
    project: Project, before: float, *, only_logs: bool = False
) -> Iterator[Removable]:
    """Yield each removable part that was last changed *before* a time (Unix).

    Unreadable runs are skipped: `check` reports them. A run is also skipped if it has worktrees,
    unmerged work, or results that are not posted yet.

    Raises:
        UnsafeFolder: a folder of the project's state or logs is a link.
    """
    root = project.settings.state_file.parent
    for path in (root / name for name in folders.list_names(root) if _GOING.fullmatch(name)):
        if not path.is_symlink():
            yield Removable(None, path, (), _compute_size([path]))
    unmerged_runs = {work.run for work in project.find_unmerged_work()}
    for run_name in (None, *project.run_names()):
        run = project.run(run_name)
        log_folders = list_run_folders(project.settings.logs_dir, run_name, include_links=True)
        folder = run.store.state_path.parent
        if run_name not in {None, *unmerged_runs} and not only_logs and _is_removable(project, run):
            logs = [
                path
                for log_folder in log_folders
                for path in find_old_logs(log_folder, float("inf"), 0)
            ]
            size = _compute_size([folder, *logs])
            if size.newest < before:
                # A timer may still tick for this run; each tick logs that the run is complete.
                tick_logs = [*_tick_logs(project, {slug(run_name)})]
                total = size.plus(_compute_size(tick_logs))
                has_git = (folder / _WORKTREES).is_dir()
                forget = partial(project.forget_attempts, run_name) if has_git else None
                yield Removable(run, folder, (*logs, *tick_logs), total, forget)
                continue
        logs = [path for log_folder in log_folders for path in find_old_logs(log_folder, before)]
        if logs:
            yield Removable(run, None, tuple(logs), _compute_size(logs))
    yield from _find_orphaned_logs(project, before)


def _find_orphaned_logs(project: Project, before: float) -> Iterator[Removable]:
    """Yield the logs of ticks for runs that are gone, last changed *before* a time."""
    slugs = {
        slug(name) for name in (*project.run_names(), *load_scheduler(project).workflows(project))
    }
    paths = _tick_logs(project, slugs, is_other=True)
    old_paths = [path for path in paths if _measure_size(path).newest < before]
    if old_paths:
        yield Removable(None, None, tuple(old_paths), _compute_size(old_paths))


def _tick_logs(
    project: Project, slugs: Collection[str], *, is_other: bool = False
) -> Iterator[Path]:
    """Yield the tick logs of the runs *slugs*; with *is_other*, those of all other runs."""
    logs_dir = project.settings.logs_dir
    for name in folders.list_names(logs_dir):
        match = _TICKS.fullmatch(name)
        if match is not None and (match["run"] in slugs) != is_other:
            yield logs_dir / name


def lost_records(before: float) -> Iterator[Removable]:
    """Yield this user's records about files that are gone, last changed *before* a time.

    Yields nothing if the records can't be read.
    """
    lost_paths: list[Path] = []
    with suppress(SequencerError, OSError):
        for folder in (Path(os.path.realpath(user_state_path(kind))) for kind in RECORDS):
            paths = [folder / name for name in folders.list_names(folder)]
            lost_paths += [
                path for path in paths if _measure_size(path).newest < before and _is_lost(path)
            ]
    if lost_paths:
        yield Removable(None, None, tuple(lost_paths), _compute_size(lost_paths))


def _is_lost(record: Path) -> bool:
    """Return whether *record* is about files that are gone, or was never completed."""
    if record.suffix == ".tmp":
        return True  # its writer was killed
    try:
        content = json.loads(folders.read_regular(record, max_bytes=RECORD_BYTES))
        if "log" in content:
            # Check the folder: a log file exists only after the first line.
            return not Path(content["log"]).parent.exists()
        if "next" in content:
            return True  # another run has replaced this one
        subject = content["state_file"] if "state_file" in content else content["project"]
        return not Path(subject).exists()
    except (SequencerError, OSError, ValueError, TypeError, LookupError):
        return False


def _is_removable(project: Project, run: Run) -> bool:
    """Return whether `clean` may remove *run*: a complete run in files that nothing waits for.

    Worktrees and results that are not posted yet still need the run.
    """
    # Without the completed run, the newest date of its schedule would start it again.
    if run.name in load_scheduler(project).workflows(project):
        return False
    try:
        head = run.head
    except SequencerError:
        return False
    if head is None or head.status != "complete" or not isinstance(run.store, FileStore):
        return False
    trees = run.store.state_path.parent / _WORKTREES
    if any((trees / name).is_dir() for name in folders.list_names(trees)):
        return False
    posting = project.posting
    return posting is None or not any(sink.is_behind for sink in posting.find_pending(run, head))


def _compute_size(paths: Sequence[Path]) -> Size:
    return reduce(Size.plus, map(_measure_size, paths), Size())


def _measure_size(path: Path) -> Size:
    """Return the size of the file or folder *path*; no link is followed."""
    try:
        stats = (
            file_stat
            for _, _, file_stat in folders.walk_bottom_up(path)
            if not stat.S_ISDIR(file_stat.st_mode)
        )
        sizes = (Size(1, file_stat.st_size, file_stat.st_mtime) for file_stat in stats)
        return reduce(Size.plus, sizes, Size())
    except FileNotFoundError:
        return Size()  # another process has removed it


def _remove_run(run: Run, folder: Path, forget: Callable[[], None] | None) -> bool:
    """Remove the *folder* of *run*, unless the run has changed since it was checked."""
    store = run.store
    assert isinstance(store, FileStore)  # noqa: S101 - `_is_removable` has checked it
    first_signature, head = signature(store.state_path), store.view().head
    if head is None or head.status != "complete":
        return False
    removed_folder = folder.parents[1] / f"removed-{secrets.token_hex(8)}"
    with store.hold_lock():
        # A process that restarts this run waits for the lock, or has already changed the file.
        if signature(store.state_path) != first_signature:
            return False
        if forget is not None:
            forget()
        folders.move(folder, removed_folder)
    store.close()
    HighWaterMark(store.state_path).remove_record(head.run_id)
    folders.remove_tree(removed_folder)
    return True
