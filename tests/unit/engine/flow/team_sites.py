"""Work trees of a team that are only pretended, and tell what happens there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sequencer.engine.workplaces import Left, Workplace
from sequencer.errors import StorageFailed
from sequencer.model.net.graph import Node
from sequencer.model.net.task import TaskTraits
from tests.unit.engine.flow.team_labs import TeamLab, task


@dataclass
class Place:
    """A workplace of one attempt that writes down what happens in it."""

    site: Site
    task: str
    token: int
    cwd: Path
    notices: tuple[str, ...] = ()

    def close(self, *, is_accepted: bool, wait_for_turn: Callable[[], None]) -> Left:
        self.site.note("close", self.task, is_accepted)
        if (hold := self.site.holds.get(self.task)) is not None:
            hold.wait(10)
        if is_accepted and self.task in self.site.merges:
            self.site.note("asks", self.task)
            wait_for_turn()
            self.site.note("merged", self.task)
        left = self.site.left.get(self.task, Left())
        if isinstance(left, BaseException):
            raise left
        return left


@dataclass
class Site:
    """Workplaces, and what happened in them, in order."""

    folder: Path
    merges: Collection[str] = ()
    """Tasks whose work is merged."""
    left: dict[str, Left | BaseException] = field(default_factory=dict)
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

    def open(self, node: Node, token: int, run_id: str, *, is_first: bool) -> Workplace:
        assert run_id
        task, traits = node.id, node.task
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
    def merged(self) -> list[str]:
        return [name for word, name, *_ in self.said if word == "merged"]


def tree(name: str, *blockers: str, **more: Any) -> Any:
    """Return a task with a work tree of its own."""
    return task(name, *blockers, worktree=True, **more)


def at_site(made: TeamLab, *, merges: str = "", **left: Left | BaseException) -> Site:
    site = Site(made.folder, tuple(merges), dict(left))
    made.workplaces = site
    return site
