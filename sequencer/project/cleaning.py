"""What a project no longer needs: old logs of steps and ticks, and runs that ended long ago.

Of this user's own records, what ticks remember of runs and logs that are gone goes too, of any
project; and the dates of schedules of projects whose folder is gone.

Of a run that may continue only old logs go, and the newest stay: they show how far it came
(`logs.progress_evidence_of`). A run that has ended goes whole. Its folder is renamed first,
under the run's lock, so that a kill in between leaves no half of a run.
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
from typing import NamedTuple

from sequencer.engine.logs import old_logs, run_folders
from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.files.textfile import slug
from sequencer.project.project import Project
from sequencer.project.starts import starts_of
from sequencer.store import folder as folders
from sequencer.store.file import FileStore
from sequencer.store.head import signature
from sequencer.store.highwater import HighWaterMark
from sequencer.store.user_state import own_state

_GOING = re.compile(r"removed-[0-9a-f]{16}")
_TICKS = re.compile(r"tick\.(?P<run>.+)\.log(?:\.told)?")
"""What `tick --log` writes for a named run in a timer's entry."""
_WORKTREES = "worktrees"
RECORDS = ("ticks", "schedules", "posted", "runs")
"""Of this user's own records: what the program writes again where it is needed."""
RECORD_BYTES = 64 * 1024


class Size(NamedTuple):
    """How much there is."""

    files: int = 0
    bytes: int = 0
    newest: float = 0.0
    """Unix time of the last change of any file."""

    def plus(self, other: Size) -> Size:
        """Return both together."""
        newest = max(self.newest, other.newest)
        return Size(self.files + other.files, self.bytes + other.bytes, newest)


class Unneeded(NamedTuple):
    """What can go: a run that has ended, or step logs of one that may continue."""

    run: Run | None
    """None: what an interrupted removal left behind, or records and logs about nothing."""
    folder: Path | None
    """The folder of a run that goes whole."""
    logs: tuple[Path, ...]
    size: Size
    forget: Callable[[], None] | None = None
    """Removes what git has of the run's attempts."""

    def remove(self) -> bool:
        """Remove it; return whether it is gone. A run that has changed since stays."""
        for path in self.logs:
            folders.remove(path)
        if self.folder is None:
            return True
        if self.run is None:
            folders.remove_tree(self.folder)
            return True
        return _remove_run(self.run, self.folder, self.forget)


def unneeded(project: Project, before: float, *, only_logs: bool = False) -> Iterator[Unneeded]:
    """Yield what was last changed *before* a time (Unix).

    What can't be read is left out, `check` speaks of it; so is a run with worktrees, with work
    that nobody has merged, or with results that are still to be posted.

    Raises:
        UnsafeFolder: a folder of the project's state or logs is a link.
    """
    root = project.settings.state_file.parent
    for path in (root / name for name in folders.names(root) if _GOING.fullmatch(name)):
        if not path.is_symlink():
            yield Unneeded(None, path, (), _size_of([path]))
    held = {one.run for one in project.unmerged()}
    for run_name in (None, *project.run_names()):
        run, places = (
            project.run(run_name),
            run_folders(project.settings.logs_dir, run_name, has_links=True),
        )
        folder = run.store.state_path.parent
        if run_name not in {None, *held} and not only_logs and _is_over(project, run):
            logs = [path for place in places for path in old_logs(place, float("inf"), 0)]
            size = _size_of([folder, *logs])
            if size.newest < before:
                # A timer may still call ticks of it, which say in their log that it is over.
                told = [*_told_by_ticks(project, {slug(run_name)})]
                whole = size.plus(_size_of(told))
                has_git = (folder / _WORKTREES).is_dir()
                forget = partial(project.forget_attempts, run_name) if has_git else None
                yield Unneeded(run, folder, (*logs, *told), whole, forget)
                continue
        logs = [path for place in places for path in old_logs(place, before)]
        if logs:
            yield Unneeded(run, None, tuple(logs), _size_of(logs))
    yield from _of_no_run(project, before)


def _of_no_run(project: Project, before: float) -> Iterator[Unneeded]:
    """Yield what ticks have logged of runs that are gone, last changed *before* a time."""
    known = {slug(name) for name in (*project.run_names(), *starts_of(project).workflows(project))}
    paths = _told_by_ticks(project, known, is_other=True)
    old = [path for path in paths if _measured(path).newest < before]
    if old:
        yield Unneeded(None, None, tuple(old), _size_of(old))


def _told_by_ticks(
    project: Project, slugs: Collection[str], *, is_other: bool = False
) -> Iterator[Path]:
    """Yield the logs of timers' ticks of the runs *slugs*; if *is_other*, of all but these."""
    logs_dir = project.settings.logs_dir
    for name in folders.names(logs_dir):
        found = _TICKS.fullmatch(name)
        if found is not None and (found["run"] in slugs) != is_other:
            yield logs_dir / name


def lost_records(before: float) -> Iterator[Unneeded]:
    """Yield this user's own records that are about nothing any more, last changed *before* a time.

    Where they can't be read there are none.
    """
    found: list[Path] = []
    with suppress(SequencerError, OSError):
        for folder in (Path(os.path.realpath(own_state(kind))) for kind in RECORDS):
            paths = [folder / name for name in folders.names(folder)]
            found += [path for path in paths if _measured(path).newest < before and _is_lost(path)]
    if found:
        yield Unneeded(None, None, tuple(found), _size_of(found))


def _is_lost(record: Path) -> bool:
    """Return whether *record* is about files or a folder that are gone, or is half of one."""
    if record.suffix == ".tmp":
        return True  # its writer was killed
    try:
        kept = json.loads(folders.read_regular(record, max_bytes=RECORD_BYTES))
        if "log" in kept:
            # A log that nothing was written to is not there.
            return not Path(kept["log"]).parent.exists()
        if "next" in kept:
            return True  # another run has taken its place
        return not Path(kept["state_file"] if "state_file" in kept else kept["project"]).exists()
    except (SequencerError, OSError, ValueError, TypeError, LookupError):
        return False


def _is_over(project: Project, run: Run) -> bool:
    """Return whether *run* is complete, in files of its own, and nobody waits for it.

    A schedule does: without the run's end, its newest date would start it again.
    """
    if run.name in starts_of(project).workflows(project):
        return False
    try:
        head = run.head
    except SequencerError:
        return False
    if head is None or head.status != "complete" or not isinstance(run.store, FileStore):
        return False
    trees = run.store.state_path.parent / _WORKTREES
    if any((trees / name).is_dir() for name in folders.names(trees)):
        return False
    posting = project.posting
    return posting is None or not any(one.is_behind for one in posting.pending(run, head))


def _size_of(paths: Sequence[Path]) -> Size:
    return reduce(Size.plus, map(_measured, paths), Size())


def _measured(path: Path) -> Size:
    """Return how much there is at *path*, a file or a folder; no link is followed."""
    try:
        found = (about for _, _, about in folders.walked(path) if not stat.S_ISDIR(about.st_mode))
        return reduce(Size.plus, (Size(1, one.st_size, one.st_mtime) for one in found), Size())
    except FileNotFoundError:
        return Size()  # somebody was faster


def _remove_run(run: Run, folder: Path, forget: Callable[[], None] | None) -> bool:
    """Remove the *folder* of *run*, unless the run has changed since it was looked at."""
    store = run.store
    assert isinstance(store, FileStore)  # noqa: S101 - `_is_over` has seen it
    seen, head = signature(store.state_path), store.view().head
    if head is None or head.status != "complete":
        return False
    going = folder.parents[1] / f"removed-{secrets.token_hex(8)}"
    with store.locked():
        # Whoever starts this run over waits for the lock, or has changed the file before.
        if signature(store.state_path) != seen:
            return False
        if forget is not None:
            forget()
        folders.move(folder, going)
    store.close()
    HighWaterMark(store.state_path).forget(head.run_id)
    folders.remove_tree(going)
    return True
