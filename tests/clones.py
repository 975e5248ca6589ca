"""Repositories for tests: a bare one that is the remote, and clones that share a run by it."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from sequencer import Store
from sequencer.plugins.git.state.store import GitOptions, GitStore
from sequencer.project.store_requests import EVERYTHING

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "LC_ALL": "C",
}


def git(folder: Path, *argv: str, check: bool = True) -> str:
    """Run ``git ARGV`` in *folder*, with nobody's configuration, and return what it prints."""
    done = subprocess.run(
        ["git", *argv],
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not check or done.returncode == 0, f"git {argv}: {done.stderr}"
    return done.stdout.strip()


class SharedStore(Store, Protocol):
    """A store of a run that clones share."""

    def pull(self) -> bool:
        """Bring what the remote has, and return whether the branch has moved."""


class Shared:
    """A bare repository in *folder* with one commit on main, and clones of it."""

    def __init__(
        self, folder: Path, like: Shared | None = None, options: Sequence[str] = ()
    ) -> None:
        """Copy the folder of *like*, or one made with *options* of `git init`."""
        self.folder = folder
        self.bare = folder / "remote.git"
        self._made: list[GitStore] = []
        copy_of(like.folder if like else _one_commit(tuple(options)), folder)

    def clone(self, name: str) -> Path:
        """Return the clone *name*, made when it is first asked for."""
        path = self.folder / name
        if not path.exists():
            git(self.folder, "clone", "-q", str(self.bare), name)
            git(path, "checkout", "-q", "-B", "main")
            _tidy(self.folder)
        return path

    def store(self, name: str, run: str | None = None, **options: Any) -> GitStore:
        """Return a store of *run* in the clone *name*."""
        clone = self.clone(name)
        chosen = GitOptions(**options)
        self._made.append(
            GitStore(clone / "sync" / "state.json", clone, run, chosen, allowed=EVERYTHING)
        )
        return self._made[-1]

    def close(self) -> None:
        """Close every store that was made here."""
        while self._made:
            self._made.pop().close()

    def tip(self, branch: str = "sequencer/default") -> str:
        """Return where *branch* is on the remote; empty if it is not there."""
        ref = f"refs/heads/{branch}"
        return git(self.bare, "rev-parse", "--verify", "-q", ref, check=False)


def copy_of(made: Path, folder: Path) -> Path:
    """Let *folder* have all that *made* has, clones of each other included."""
    shutil.copytree(made, folder, symlinks=True, dirs_exist_ok=True)
    for config in folder.glob("*/.git/config"):
        config.write_text(config.read_text().replace(str(made), str(folder)))
    return folder


def folder_at_rest() -> Path:
    """Return a new folder that goes when the process ends."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _one_commit(options: tuple[str, ...]) -> Path:
    folder = folder_at_rest()
    first, bare = folder / "first", folder / "remote.git"
    git(folder, "init", "-q", "--bare", "-b", "main", *options, str(bare))
    # A clone of what is empty does not know in which format.
    git(folder, "init", "-q", "-b", "main", *options, "first")
    git(first, "remote", "add", "origin", str(bare))
    (first / "README.md").write_text("a project\n")
    (first / ".gitignore").write_text("sync/\nlogs/\n")
    git(first, "add", ".")
    git(first, "commit", "-q", "-m", "begin")
    git(first, "push", "-q", "-u", "origin", "main")
    _tidy(folder)
    return folder


def _tidy(folder: Path) -> None:
    """Remove the examples of hooks, of which each copy would have a dozen files."""
    for hooks in (*folder.glob("*/hooks"), *folder.glob("*/.git/hooks")):
        for example in hooks.glob("*.sample"):
            example.unlink()


def copied(make: Callable[[Path, str], Shared]) -> Callable[..., Shared]:
    """Let *make* work once for each text, and copy what it made: that is cheaper than git."""

    @functools.cache
    def made(text: str) -> Shared:
        return make(folder_at_rest() / "shared", text)

    def copy(folder: Path, text: str = "") -> Shared:
        return Shared(folder, made(text))

    return functools.update_wrapper(copy, make)
