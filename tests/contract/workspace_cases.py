"""Every kind of workspace, on a project of its own, and how an attempt goes through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sequencer import Cancellation, Claim, Graph, Head, Node, NodeKind, OutcomeStatus, Status
from sequencer.engine.attempt import Attempt, Leftovers
from sequencer.engine.logs import current_branch
from sequencer.engine.workspace import AttemptFolder, BranchGuard, InnerWorkspace, Workspace
from sequencer.executors.redaction import Redaction
from sequencer.model.graph.marking import Marking
from sequencer.model.graph.task import TaskTraits
from sequencer.plugins.git.code.attempt_refs import AttemptWorkspace
from sequencer.plugins.git.code.checkout import Checkout
from sequencer.plugins.git.code.run_worktree import RunWorktree
from sequencer.plugins.git.code.task_folders import TaskFolders
from sequencer.plugins.git.code.task_worktrees import TaskWorktrees
from sequencer.plugins.git.process import Git
from sequencer.plugins.git.state.remote import PushVerdict
from sequencer.project.settings import load
from sequencer.project.store_requests import EVERYTHING
from tests.unit.git.clones import ENVIRONMENT, claim, clone, head, pair, said
from tests.unit.git.teams import folders
from tests.unit.git.teams import project as make_project
from tests.unit.saying import attempt as make_attempt

TASK = Node.model_construct(
    id="main", kind=NodeKind.AGENT, label="Add it", task=TaskTraits(worktree=True)
)


def at_once() -> None:
    """Wait for no turn."""


@dataclass
class Site:
    """One run in a workspace."""

    home: Path
    """The project's folder."""
    make: Callable[[Path], Workspace]
    """Returns the workspace as a new process gets it."""
    bare: Path | None = None
    """The remote to which the code moves."""
    is_task: bool = False
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.head: Head = head()
        self.restart()

    def restart(self) -> None:
        """Begin as a new process does, without a word from the old one."""
        self.workspace = self.make(self.home)
        self.workspace.begin(self.head, Cancellation())

    def claimed(self) -> Attempt:
        """Claim the next step, and return the attempt at it."""
        self.workspace.ensure_ready(self.head)
        token = self.head.token + 1
        held: Claim = claim(self.head.step_index, token)
        self.head = self.head.replace(token=token, claims=(held,))
        self.workspace.enter(self.head)
        made = make_attempt("main", token=token, step_index=held.step_index)
        made.claim, made.head, made.cwd = held, self.head, self.home
        if self.is_task:
            made.marking = Marking(Graph(nodes=(TASK,), edges=(), entries=("main",)))
        return made

    def opened(self) -> AttemptFolder:
        """Claim the next step, and return where its agent works."""
        return self.workspace.open(self.claimed())

    def worked(self, name: str, status: OutcomeStatus = OutcomeStatus.OK) -> Leftovers:
        """Make an attempt that commits a file called *name*, and record that it ended so."""
        folder = self.opened()
        commit(folder.cwd, name)
        left = folder.close(status, at_once)
        self.record(status)
        return left

    def record(self, status: OutcomeStatus) -> None:
        """Do what the engine and the store do with the end of the attempt."""
        [held] = self.head.claims
        if status is not OutcomeStatus.OK:
            self.workspace.keep(held, "main", self.head)
            self.head = self.head.replace(claims=())
        else:
            work = self.workspace.collect(held, "main", self.head)
            mover = innermost(self.workspace)
            code_move = getattr(mover, "code_move", None)
            if code_move is not None and not isinstance(mover, AttemptWorkspace):
                pushed = clone(self.home).remote.push([code_move])
                assert pushed.verdict is PushVerdict.ACCEPTED
            after = self.head.step_index + 1
            self.head = self.head.replace(claims=(), step_index=after, work=work or self.head.work)
        self.workspace.leave(self.head)

    def finish(self) -> None:
        """Complete the run."""
        self.head = self.head.replace(status=Status.COMPLETE)
        self.workspace.end(self.head)
        self.workspace.publish(self.head)

    def arrived(self, name: str) -> bool:
        """Return whether the file called *name* is where people look for accepted work."""
        if self.bare is not None:
            return name in said(self.bare, "ls-tree", "--name-only", "main").splitlines()
        return (self.home / name).is_file()

    def is_somewhere(self, name: str) -> bool:
        """Return whether the file called *name* is in a ref or in a work tree: it is not lost."""
        refs = said(self.home, "for-each-ref", "--format=%(objectname)").splitlines()
        trees = (said(self.home, "ls-tree", "--name-only", one).splitlines() for one in refs)
        return any(name in one for one in trees) or any(self.home.rglob(name))


def innermost(workspace: Workspace) -> Workspace:
    """Return what moves the code."""
    while isinstance(workspace, InnerWorkspace):
        workspace = workspace.outer
    return workspace


def commit(folder: Path, name: str) -> None:
    """Write a file and commit it, as an agent does."""
    (folder / name).write_text(f"{name}\n")
    said(folder, "add", "--", name)
    said(folder, "commit", "-q", "-m", name, "--", name)


def _checkout(home: Path) -> Checkout:
    return Checkout(folders(home), Git(home, ENVIRONMENT, allowed=EVERYTHING))


def _run_worktree(outer: Workspace) -> RunWorktree:
    places = TaskFolders(_checkout(outer.folder), None, Redaction([]))
    return RunWorktree(outer, places, [], 60.0, vet=lambda _: None, notify=lambda _: None)


def _task_worktrees(outer: Workspace, home: Path) -> Workspace:
    def made() -> TaskFolders:
        checkout = outer.checkout if isinstance(outer, RunWorktree) else None
        return TaskFolders(checkout or _checkout(home), None, Redaction([]))

    return TaskWorktrees(outer, made)


def _guard(home: Path) -> Workspace:
    return BranchGuard(home, "main", lambda: current_branch(home))


def _attempts(home: Path) -> Workspace:
    one = Git(home, ENVIRONMENT, allowed=EVERYTHING)
    return AttemptWorkspace(one, load(home, env={}), None, Redaction([]), lambda _: None)


def _shared(home: Path) -> Workspace:
    return clone(home).carrier


def _site(folder: Path, make: Callable[[Path], Workspace], *, is_task: bool = False) -> Site:
    return Site(make_project(folder / "home"), make, is_task=is_task)


def _cloned(folder: Path, make: Callable[[Path], Workspace], *, is_task: bool = False) -> Site:
    bare, here, _ = pair(folder, {".gitignore": "sync/\nlogs/\n"})
    return Site(here, make, bare, is_task)


def _tasks(home: Path) -> Workspace:
    return _task_worktrees(Workspace(home), home)


def _tasks_in_the_runs(home: Path) -> Workspace:
    return _task_worktrees(_run_worktree(Workspace(home)), home)


SITES: dict[str, Callable[[Path], Site]] = {
    "folder": lambda folder: _site(folder, Workspace),
    "guarded folder": lambda folder: _site(folder, _guard),
    "run's worktree": lambda folder: _site(folder, lambda home: _run_worktree(Workspace(home))),
    "run's worktree, guarded": lambda folder: _site(
        folder, lambda home: _run_worktree(_guard(home))
    ),
    "tasks' worktrees": lambda folder: _site(folder, _tasks, is_task=True),
    "tasks' worktrees in the run's": lambda folder: _site(folder, _tasks_in_the_runs, is_task=True),
    "shared checkout": lambda folder: _cloned(folder, _shared),
    "shared checkout, attempts": lambda folder: _cloned(folder, _attempts),
    "tasks' worktrees in a shared checkout": lambda folder: _cloned(
        folder, lambda home: _task_worktrees(_shared(home), home), is_task=True
    ),
}


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the work tree at *folder* that git does not know."""
    for name in said(folder, "ls-files", "--others", "--exclude-standard").splitlines():
        yield name, (folder / name).read_bytes()
