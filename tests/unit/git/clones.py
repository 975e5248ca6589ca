"""A bare remote, clones of it, and what their work trees look like byte by byte."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sequencer.executors.redaction import Redaction
from sequencer.model.head import Claim, Head, Owner, Work
from sequencer.plugins.git.code.tree import Folders, WorkTree
from sequencer.plugins.git.code.workspace import GitWorkspace
from sequencer.plugins.git.process import Git
from sequencer.plugins.git.state.objects import Objects
from sequencer.plugins.git.state.remote import PushVerdict, Remote
from sequencer.project.schema import CommitOptions, WorkOptions
from sequencer.project.store_requests import EVERYTHING
from tests.clones import copy_of, folder_at_rest

ENVIRONMENT = {
    **{name: text for name, text in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}
ME = ("-c", "user.name=A Person", "-c", "user.email=person@example.org")
DOCS = CommitOptions(paths=("docs/",))
SECRET = "sk-" + "a1B2" * 10
OPENED: list[Objects] = []
"""What `conftest` closes when a test has ended."""


def git(folder: Path, *arguments: str, stdin: bytes = b"", **variables: str) -> bytes:
    """Run the user's git in *folder*."""
    return subprocess.run(
        ["git", *ME, *arguments],
        cwd=folder,
        env={**ENVIRONMENT, **variables},
        input=stdin,
        capture_output=True,
        check=True,
    ).stdout


def said(folder: Path, *arguments: str) -> str:
    return git(folder, *arguments).decode("utf-8", "surrogateescape").strip()


Files = Mapping[str, str]


def made_once(make: Callable[[Path, Files], None]) -> Callable[[Path, Files], Path]:
    """Let *make* work once for the same files, and copy what it made: that is cheaper than git."""

    @functools.cache
    def made(files: tuple[tuple[str, str], ...]) -> Path:
        folder = folder_at_rest()
        make(folder, dict(files))
        return folder

    def copy(folder: Path, files: Files) -> Path:
        return copy_of(made(tuple(files.items())), folder)

    return copy


@made_once
def first_commit(folder: Path, files: Files) -> None:
    """Make a repository whose first commit, on ``main``, has *files*."""
    # Without the examples of hooks.
    git(folder, "init", "-q", "-b", "main", "--template=")
    write(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")


def repository(folder: Path, files: Files | None = None) -> Path:
    """Make a repository with one commit on ``main``."""
    return first_commit(
        folder, {"README.md": "read me\n", ".gitignore": "*.tmp\nignored/\n"} | dict(files or {})
    )


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def commit(folder: Path, files: Mapping[str, str], message: str = "by hand") -> str:
    write(folder, files)
    git(folder, "add", "--", *files)
    git(folder, "commit", "-q", "-m", message)
    return said(folder, "rev-parse", "HEAD")


@made_once
def _pair(folder: Path, files: Files) -> None:
    seed = repository(folder / "seed", files)
    bare = folder / "remote.git"
    git(folder, "clone", "-q", "--bare", "--template=", str(seed), str(bare))
    for name in ("here", "there"):
        git(folder, "clone", "-q", "--template=", str(bare), name)


def pair(tmp_path: Path, files: Files | None = None) -> tuple[Path, Path, Path]:
    """Make a bare remote with one commit, and two clones of it."""
    _pair(tmp_path, files or {})
    return tmp_path / "remote.git", tmp_path / "here", tmp_path / "there"


def everything(folder: Path) -> dict[str, str]:
    """Return a digest of each file of the work tree and of what git has of the user's.

    Not of objects, of the program's own refs and notes, and of ORIG_HEAD, which a fast-forward
    that git refuses has written all the same.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        own = (".git/refs/sequencer", ".git/refs/worktree", ".git/sequencer-work.")
        is_left_out = name.startswith((".git/objects", ".git/ORIG_HEAD", *own))
        if is_left_out or (path.is_dir() and not path.is_symlink()):
            continue
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        found[name] = f"{path.lstat().st_mode:o} {hashlib.sha256(content).hexdigest()}"
    return found


def tree_of(folder: Path, commit_name: str = "HEAD") -> dict[str, str]:
    """Return mode and content of each path of a commit."""
    lines = git(folder, "ls-tree", "-r", "-z", commit_name).split(b"\0")[:-1]
    facts = [(*facts.split(), path) for facts, _, path in (line.partition(b"\t") for line in lines)]
    # In one process, however many files there are.
    oids = b"".join(oid + b"\n" for _, kind, oid, _ in facts if kind == b"blob")
    told, found = git(folder, "cat-file", "--batch", stdin=oids), {}
    for mode, kind, _, path in facts:
        content = b""
        if kind == b"blob":
            head, _, rest = told.partition(b"\n")
            size = int(head.split()[2])
            content, told = rest[:size], rest[size + 1 :]
        found[os.fsdecode(path)] = f"{mode.decode()} {os.fsdecode(content)}"
    return found


def porcelain(folder: Path) -> list[str]:
    """Return what git finds dirty: two letters and a path each."""
    told = git(folder, "status", "--porcelain", "--untracked-files=all", "-z")
    return [os.fsdecode(line) for line in told.split(b"\0") if line]


def tree_at(folder: Path, project: str = "", **others: Path) -> WorkTree:
    home = folder / project
    folders = Folders(
        home, others.get("state", home / "sync" / "state.json"), others.get("logs", home / "logs")
    )
    OPENED.append(Objects(Git(home, ENVIRONMENT, allowed=EVERYTHING)))
    return WorkTree(folders, OPENED[-1])


@dataclass
class Clone:
    """A clone with a carrier of its own."""

    folder: Path
    carrier: GitWorkspace
    remote: Remote
    tree: WorkTree
    told: list[str]
    """What a person should know."""

    def taken(self) -> list[str]:
        """Return what was told since the last call."""
        told = [*self.told]
        self.told.clear()
        return told

    @property
    def started(self) -> int:
        """Return how many git processes were started so far, the reader not counted."""
        trees = self.tree.git.started + self.tree.slow_git.started
        return trees + self.remote.git.started

    def push(self, head: Head, token: int = 1, step: str = "main") -> Head:
        """Do what a store does with an accepted step: push what was collected."""
        collected = self.carrier.collect(claim(head.step_index, token), step, head)
        if collected is None:
            return head
        if self.carrier.code_move is not None:
            assert self.remote.push([self.carrier.code_move]).verdict is PushVerdict.ACCEPTED
        return head.replace(work=collected, step_index=head.step_index + 1)


def clone(
    folder: Path,
    *,
    commit: CommitOptions | None = None,
    work: WorkOptions | None = None,
    run: str | None = None,
    project: str = "",
) -> Clone:
    tree = tree_at(folder, project)
    remote = Remote(Git(folder, ENVIRONMENT, allowed=EVERYTHING), "origin")
    told: list[str] = []
    carrier = GitWorkspace(
        tree,
        remote,
        folder / project / "sync" / "runs" / str(run) / "state.json",
        run=run,
        work=work or WorkOptions(),
        commit=commit or CommitOptions(),
        redaction=Redaction(["hunter2-hunter2"]),
        notify=told.append,
    )
    return Clone(folder, carrier, remote, tree, told)


def head(work: Work | None = None, step_index: int = 0) -> Head:
    return Head(
        run_id="r",
        workflow_name="standard",
        workflow_digest="sha256:0",
        expected_step="main",
        last_update="2026-01-01T00:00:00Z",
        step_index=step_index,
        work=work,
    )


def claim(step_index: int = 0, token: int = 1) -> Claim:
    owner = Owner(host="h", boot_id="b", pid_ns="n", pid=1, pid_start=1, nonce="n")
    return Claim(
        token=token,
        step="main",
        step_index=step_index,
        attempt=1,
        owner=owner,
        claimed_at="2026-01-01T00:00:00Z",
        ttl_s=60,
    )
