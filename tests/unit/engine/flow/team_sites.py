"""Work trees of a team that are only pretended, and tell what happens there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sequencer.engine.attempt import Attempt, Leftovers
from sequencer.engine.workspace import AttemptFolder, Workspace
from sequencer.errors import StorageFailed
from sequencer.model.graph.task import TaskTraits
from sequencer.model.outcome import OutcomeStatus
from tests.unit.engine.flow.team_labs import TeamLab, task


@dataclass
class Place(AttemptFolder):
    """A folder of one attempt that writes down what happens in it."""

    site: Site
    task: str
    token: int
    cwd: Path
    notices: tuple[str, ...] = ()

    is_own = True

    def close(self, status: OutcomeStatus, wait_for_turn: Callable[[], None]) -> Leftovers:
        is_accepted = status is OutcomeStatus.OK
        self.site.note("close", self.task, is_accepted)
        if (hold := self.site.holds.get(self.task)) is not None:
            hold.wait(10)
        if is_accepted and self.task in self.site.merges:
            self.site.note("asks", self.task)
            wait_for_turn()
            self.site.note("merged", self.task)
        left = self.site.left.get(self.task, Leftovers())
        if isinstance(left, BaseException):
            raise left
        return left


@dataclass
class Site(Workspace):
    """A workspace, and what happened in it, in order."""

    opens = True
    root: Path
    merges: Collection[str] = ()
    """Tasks whose work is merged."""
    left: dict[str, Leftovers | BaseException] = field(default_factory=dict)
    holds: dict[str, threading.Event] = field(default_factory=dict)
    """What the end of a task's place waits for."""
    said: list[tuple[Any, ...]] = field(default_factory=list)
    opened: list[TaskTraits] = field(default_factory=list)
    firsts: list[tuple[str, bool]] = field(default_factory=list)
    """Tasks whose places were opened, and whether it was for their first attempt."""
    refuses: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, *what: Any) -> None:
        with self._lock:
            self.said.append(what)

    def __post_init__(self) -> None:
        super().__init__(self.root)

    def open(self, attempt: Attempt) -> AttemptFolder:
        node, token = attempt.node, attempt.claim.token
        assert attempt.run_id
        assert node is not None
        task, traits, is_first = node.id, node.task, attempt.is_first
        assert node.label
        assert traits is not None
        self.firsts.append((task, is_first))
        self.note("open", task)
        self.opened.append(traits)
        if task == self.refuses:
            raise StorageFailed("no room for a work tree")
        cwd = self.folder / f"{task}-{token}"
        cwd.mkdir()
        return Place(self, task, token, cwd, notices=(f"{task} works alone",))

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        del live
        return ()

    def times(self, *what: Any) -> int:
        return self.said.count(what)

    @property
    def merged_tasks(self) -> list[str]:
        return [name for word, name, *_ in self.said if word == "merged"]


def tree(name: str, *blockers: str, **more: Any) -> Any:
    """Return a task with a work tree of its own."""
    return task(name, *blockers, worktree=True, **more)


def at_site(made: TeamLab, *, merges: str = "", **left: Leftovers | BaseException) -> Site:
    site = Site(made.folder, tuple(merges), dict(left))
    made.workspace = site
    return site
