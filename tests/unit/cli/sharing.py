"""A project on a remote, and clones of it that share its runs through git."""

from __future__ import annotations

import gc
import warnings
from contextlib import closing
from pathlib import Path

from sequencer.plugins.git.state.store import GitStore
from sequencer.plugins.git.state.sync_status import SyncStatus, compare_with_remote
from sequencer.project.project import open_project
from tests.clones import Shared, copied, git
from tests.unit.cli.calling import Called, project
from tests.unit.cli.calling import call as call_here

CONFIGURATION = """\
workflow: {name: standard}
agent: {default: rehearsal}
store: {kind: git}
"""


@copied
def shared_project(folder: Path, configuration: str) -> Shared:
    """Make a remote in *folder* whose branch main has a project."""
    shared = Shared(folder)
    first = project(shared.clone("first"), configuration or CONFIGURATION)
    git(first, "add", ".")
    git(first, "commit", "-q", "-m", "the project")
    git(first, "push", "-q", "origin", "HEAD:main")
    return shared


def call(folder: Path, *arguments: str) -> Called:
    """Run ``sequencer ARGUMENTS`` in *folder*, with what it left open freed as at its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        # What thousands of tests before have left is not looked at again.
        gc.freeze()
        called = call_here(folder, *arguments)
        gc.collect()
    return called


def steps(folder: Path, count: int, *options: str) -> Called:
    """Run *count* steps in *folder*; they have to succeed."""
    called = call(folder, *options, "run", "--max-steps", str(count), "--quiet")
    assert called.code == 0, called.err
    return called


def store_of(folder: Path, run: str | None = None) -> GitStore:
    """Return the store of the project in *folder*."""
    store = open_project(folder).run(run).store
    assert isinstance(store, GitStore)
    return store


def compared(folder: Path, run: str | None = None) -> SyncStatus:
    """Return how the project in *folder* stands to its branch."""
    with closing(store_of(folder, run)) as store:
        return compare_with_remote(store)


def put_back(shared: Shared, commit: str, branch: str = "sequencer/default") -> None:
    """Move *branch* of the remote back to *commit*, as somebody with force does."""
    git(shared.bare, "update-ref", f"refs/heads/{branch}", commit)


def diverged(shared: Shared) -> tuple[Path, Path]:
    """Let clone a do two steps, put the branch back by one, and let clone b do others.

    Returns both folders; the branch goes on from the first step, as b has it.
    """
    a, b = shared.clone("a"), shared.clone("b")
    steps(a, 1)
    before = shared.tip()
    steps(a, 2)
    put_back(shared, before)
    steps(b, 1)
    return a, b
