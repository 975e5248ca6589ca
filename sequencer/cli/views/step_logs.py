"""Finds the step logs of a run, and opens one safely."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from sequencer.engine.run import Run
from sequencer.errors import SequencerError, UnknownName, UnsafePath
from sequencer.files.textfile import slug
from sequencer.model.whole_numbers import parse_whole_number
from sequencer.project.project import Project
from sequencer.store import folder as folders
from sequencer.store.ownership import explain_refusal

LOG_NAME = re.compile(r"iter-(\d{5,})_(.+?)(?:\.(\d+))?\.log")


class FoundLog(Struct, frozen=True, order=True):
    """One step log; ordered by iteration and attempt."""

    iteration: int
    attempt: int
    step: str
    """The step's slug."""
    path: Path


class RequestedLogs(Struct, frozen=True):
    """The logs of a run that a command asks for."""

    project: Project
    run: Run
    steps: tuple[str, ...] = ()
    """Names of steps, or numbers of iterations; none means all."""
    count: int = 1
    lines: int = 0

    @property
    def folders(self) -> list[Path]:
        """Return the folders in which the run's logs may be; the checked-out branch's is first."""
        return self.project.logs(self.run.name, lambda _: None).folders

    def find_logs(self) -> list[FoundLog]:
        """Return the requested logs of all branches, the last written at the end.

        An agent may have checked out another branch during a step.
        """
        logs = [log for log in self._iter_logs() if self.is_about(log.step, log.iteration)]
        # Not by iteration: a rewound run is at an earlier iteration again.
        return sorted(logs, key=lambda log: (read_mtime_ns(log.path), log))

    def _iter_logs(self) -> Iterator[FoundLog]:
        for folder in self.folders:
            yield from _list_logs(folder)

    def is_about(self, step: str, iteration: int) -> bool:
        """Return whether the log of *step* (a slug) in *iteration* is requested."""
        keys = {int(step) if _is_iteration(step) else slug(step) for step in self.steps}
        return not keys or step in keys or iteration in keys

    def ensure_known(self) -> None:
        """Check that every requested step can have a log.

        Raises:
            UnknownName: one is not a step of the workflow and has no log.
        """
        known_slugs = {log.step for log in self._iter_logs()}
        try:
            workflow = self.run.workflow_for(self.run.head)
        except SequencerError:
            names: list[str] = []  # logs stay readable even if the workflow is not
        else:
            names = [step.name for step in workflow.own_steps]
        slugs = {slug(name) for name in names}
        for step in self.steps:
            if not _is_iteration(step) and slug(step) not in known_slugs | slugs:
                raise UnknownName("step", step, {*names, *(known_slugs - slugs)}, where="log")


def _is_iteration(text: str) -> bool:
    return text.isascii() and parse_whole_number(text) is not None


def read_mtime_ns(path: Path) -> int:
    """Return when *path* was last written, in nanoseconds; 0: it does not exist."""
    try:
        return path.stat(follow_symlinks=False).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _list_logs(folder: Path) -> Iterator[FoundLog]:
    try:
        names = folders.list_names(folder)
    except OSError as error:
        raise UnsafePath(f"can't be read: {error.strerror}", where=str(folder)) from error
    for name in names:
        match = LOG_NAME.fullmatch(name)
        if match is not None:
            yield FoundLog(int(match[1]), int(match[3] or 1), match[2], folder / name)


def open_log(path: Path) -> BinaryIO:
    """Open a log. Links are not followed, and a pipe is not waited for.

    Raises:
        UnsafePath: it is a link, or can't be read.
    """
    try:
        fd = folders.open_file(path, os.O_RDONLY)
    except OSError as error:
        reason, hint = explain_refusal(error, path, "a log has to be a regular file")
        raise UnsafePath(
            f"can't be read: {reason}",
            where=str(path),
            hint=hint,
        ) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UnsafePath("is not a regular file", where=str(path), hint="move it away")
    return os.fdopen(fd, "rb")
