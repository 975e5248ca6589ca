"""One worktree of a task or a run: its folder, its branch, and the phase it is in.

A note next to the folder says all that. It is written before git makes the worktree and removed
after the worktree is gone. So after a kill, the next process knows whether a worktree is
half-made, holds an agent's work, or was only used for a merge.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from textwrap import shorten
from typing import Any

from sequencer.files.textfile import ref_part, slug
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.head import Counter, Owner
from sequencer.plugins.git.code.tree import read_note, write_note
from sequencer.store import folder as folders
from sequencer.store.identity import is_proven_dead, is_same_boot, pid_namespace

FOLDER = "worktrees"
"""Name of the folder with all worktrees, inside the folder of the run."""
BRANCHES, RUN_BRANCHES = "sequencer-team", "sequencer-run"
"""First part of the branch names of tasks, and of runs with their own worktree."""
TRAILER = "Sequencer-Token:"
SUBJECT_CHARS = 72
"""Longest first line of a commit message that git shows uncut in lists."""
_IGNORED = "# Work of agents that run at present: of no commit, and not to be edited.\n*\n"
_MAX_BYTES = 64 * 1024
_OWN_MODE = 0o600
UNPROVEN_S = 600.0
"""How long a worktree is left to a process that may be alive on another machine."""
_REMOVAL_S = 5.0
_PAUSE_S = 0.05


class Phase(StrEnum):
    """The phase that a worktree is in."""

    ADDING = "adding"
    """Git is creating it: it holds no one's work yet."""
    WORKING = "working"
    """An agent works in it, or has worked in it."""
    MERGING = "merging"
    """Its branch has all the work; the folder is only used to make the merge."""
    KEPT = "kept"
    """It holds files that can't be committed: a person has to look at it."""
    LEFT = "left"
    """Only its branch remains, with work of a run that was not merged."""


class Worktree(Frozen):
    """The note of one worktree."""

    name: str
    """Name of the folder, and last part of the branch's name."""
    task: str
    """Empty: it is the run's worktree, and all steps of the run work in it."""
    subject: str = ""
    """What the task is about, for messages; empty in notes of older versions."""
    token: Counter
    run_id: str
    branch: str
    base: str
    """The commit that it was created from."""
    checked_out: str | None = None
    """The checkout's branch at that time; empty: none, None: a note of an older version."""
    owner: Owner
    phase: Phase = Phase.ADDING
    git_dir: str = ""
    """Git's folder with its HEAD and index; empty while it is being added."""
    looked_at: Counter = 0
    """How many bytes of its HEAD's log were searched for commits that HEAD has left."""
    why: str = ""
    """Why the work of a complete run was not merged; reported until it is merged."""
    hint: str = ""
    """What a person should do about that."""
    restoring: dict[str, str] = Field(default_factory=dict)
    """The unfinished restoration after a failed attempt; see `set_aside.PendingRestore`."""

    @property
    def admin_dir(self) -> Path:
        """Return `git_dir` as a path."""
        return Path(self.git_dir)


class Worktrees:
    """The folder of all worktrees of one run, and their notes."""

    def __init__(
        self, run_folder: Path, run: str | None = None, hide: Callable[[str], str] = str
    ) -> None:
        """Use the folder of *run* (None: the default run), which also holds its state.

        *hide* removes secrets from commit messages.
        """
        self._run, self._hide = run or "default", hide
        # Git resolves links in paths too, and its paths are compared with this one.
        self.path = Path(os.path.realpath(run_folder)) / FOLDER

    def prepare(self) -> None:
        """Create the folder, with everything in it ignored by git."""
        folder = folders.make_folder(self.path)
        with contextlib.suppress(FileExistsError):
            fd = folder.open(".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fd, "w") as file:
                file.write(_IGNORED)

    def folder(self, worktree: Worktree) -> Path:
        """Return the top folder of *worktree*."""
        return self.path / worktree.name

    def is_free(self, name: str) -> bool:
        """Return whether neither a folder nor a note of a worktree called *name* exists."""
        return not os.path.lexists(self.path / name) and not self._note_path(name).exists()

    def write(self, worktree: Worktree) -> Worktree:
        """Write the note of *worktree* atomically; return *worktree*."""
        write_note(self._note_path(worktree.name), worktree, _OWN_MODE)
        return worktree

    def read(self, name: str) -> Worktree | None:
        """Return the note of the worktree called *name*; None: missing or unreadable."""
        note = read_note(self._note_path(name), Worktree, _MAX_BYTES)
        return note if note is not None and note.name == name else None

    def remove_note(self, worktree: Worktree) -> None:
        """Remove the note of *worktree*."""
        self._note_path(worktree.name).unlink(missing_ok=True)

    def list_names(self) -> list[str]:
        """Return the names of all worktrees with a note, sorted."""
        names = folders.list_names_if_safe(self.path)
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def is_abandoned(self, worktree: Worktree) -> bool:
        """Return whether the process that made *worktree* has ended, as far as can be known."""
        if is_proven_dead(worktree.owner):
            return True
        try:
            age_s = time.time() - self._note_path(worktree.name).stat().st_mtime
        except OSError:
            return False
        # A process in another container, or on another machine, can't be looked up.
        owner = worktree.owner
        is_out_of_sight = not is_same_boot(owner) or owner.pid_ns != pid_namespace()
        return is_out_of_sight and age_s > UNPROVEN_S

    def _note_path(self, name: str) -> Path:
        return self.path / f"{name}.json"

    # --- messages of commits -------------------------------------------------------

    def merge_message(self, worktree: Worktree) -> str:
        """Return the message for the merge commit of *worktree*."""
        task = _one_line(worktree.task)
        title = f"Merge task {task}" if task else f"Merge run {self._run}"
        subject = _one_line(worktree.subject)
        return self._message(worktree, f"{title}: {subject}" if subject else title)

    def left_message(self, worktree: Worktree) -> str:
        """Return the message for the commit of the agent's uncommitted files in *worktree*."""
        task, subject = _one_line(worktree.task), _one_line(worktree.subject)
        if not task:
            body = "What the agents of the run had not committed themselves."
            return self._message(worktree, f"Work of run {self._run}: {subject}", body)
        body = f"What the agent of task {task} had not committed itself."
        return self._message(worktree, subject or f"Work of task {task}", body)

    def _message(self, worktree: Worktree, title: str, *body: str) -> str:
        subject = shorten(title, SUBJECT_CHARS, placeholder=" …")
        lines = f"{self.trailers(worktree.run_id, worktree.task)}\n{TRAILER} {worktree.token}"
        return self._hide("\n\n".join((subject, *body, lines)) + "\n")

    def trailers(self, run_id: str, task: str) -> str:
        """Return the lines that are in the merge message of every attempt at *task*."""
        names = {"Run": self._run, "Run-Id": run_id, "Task": task}
        lines = (f"Sequencer-{name}: {_one_line(text)}" for name, text in names.items())
        return self._hide("\n".join(lines))


def worktree_name(task: str, token: int) -> str:
    """Return the name of the worktree of *task* under the claim *token*."""
    return f"{ref_part(slug(task))}-{token}"


def branch_name(run: str | None, name: str, branches: str = BRANCHES) -> str:
    """Return the branch for the worktree called *name*, below *branches*."""
    return f"{branches}/{ref_part(slug(run or 'default'))}/{name}"


# --- git's two files: each names the other -------------------------------------------

_NAMED_BYTES = 4096


def find_admin_dir(common_dir: Path, worktree: Worktree) -> Path:
    """Return the folder in *common_dir* that holds the HEAD and index of *worktree*."""
    return Path(os.path.realpath(common_dir), "worktrees", worktree.admin_dir.name)


def is_linked(admin_dir: Path, folder: Path) -> bool:
    """Return whether the worktree in *folder* and git's *admin_dir* name each other."""
    git_file = folder / ".git"
    names_both = (
        _read_pointer(git_file) == admin_dir and _read_pointer(admin_dir / "gitdir") == git_file
    )
    return names_both and not admin_dir.is_symlink()


def relink_problem(admin_dir: Path, folder: Path, common_dir: Path) -> str | None:
    """Return why *folder* can't be made a worktree of the repository with *common_dir* again.

    None: it can, if git's two files are written again. They hold absolute paths: in a project that
    was moved the paths are outdated, and in a copy they lead to the original.
    """
    git_file = folder / ".git"
    if admin_dir.is_symlink() or not (admin_dir / "HEAD").is_file():
        return "this repository has no such worktree (anymore)"
    if _read_pointer(admin_dir / "commondir") != Path(os.path.realpath(common_dir)):
        return "this repository has a part of another one for it"
    if git_file.is_symlink() or (os.path.lexists(git_file) and not git_file.is_file()):
        return "its .git is not a file that names a repository"
    other_file = _read_pointer(admin_dir / "gitdir")
    if other_file is not None and other_file != git_file and _read_pointer(other_file) == admin_dir:
        return f"this repository has that worktree in {other_file.parent}"
    return None


def relink(admin_dir: Path, folder: Path) -> None:
    """Make the worktree in *folder* and *admin_dir* name each other; see `relink_problem`."""
    for path, target in ((admin_dir / "gitdir", folder / ".git"), (folder / ".git", admin_dir)):
        start = b"gitdir: " if path.name == ".git" else b""
        folders.write_atomically(path, start + os.fsencode(target) + b"\n")


def _read_pointer(path: Path) -> Path | None:
    """Return the path that git's file *path* names; None: it names none, or isn't a plain file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(fd, _NAMED_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(fd)
    name = os.fsdecode(content.removeprefix(b"gitdir: ").strip())
    target = Path(os.path.normpath(path.parent / name)) if name else None
    # The last part is not resolved: git makes no link there, so a link is someone else's.
    return None if target is None else Path(os.path.realpath(target.parent), target.name)


def find_git_dirs(common_dir: Path, folder: Path) -> Iterator[Path]:
    """Yield git's own folders for a worktree in *folder*, even if git was killed."""
    try:
        paths = sorted((common_dir / "worktrees").iterdir())
    except OSError:
        return
    for path in paths:
        try:
            git_file = (path / "gitdir").read_bytes().strip()
        except OSError:
            # The caller holds the repository's lock, so no other run is adding this one.
            # Git appends a number to the folder's name if another worktree has that name.
            is_unfinished = (path / "locked").exists() and path.name.startswith(folder.name)
            if is_unfinished and not path.name.removeprefix(folder.name).strip("0123456789"):
                yield path
            continue
        if git_file == os.fsencode(folder / ".git"):
            yield path


def remove_folder(folder: Path) -> bool:
    """Remove *folder* with everything in it; return whether that succeeded.

    It tries for a few seconds: a git process whose parent was killed may still write there.
    """
    ends = time.monotonic() + _REMOVAL_S
    while os.path.lexists(folder):
        shutil.rmtree(folder, onerror=_retry_removal)
        if not os.path.lexists(folder):
            break
        if time.monotonic() > ends:
            return False
        time.sleep(_PAUSE_S)
    return True


def _retry_removal(remover: Callable[..., Any], path: str, _: object) -> None:
    """Make *path* and its folder writable, and try again to remove it."""
    with contextlib.suppress(OSError):
        for blocked_path in (Path(path).parent, Path(path)):
            if not blocked_path.is_symlink():
                blocked_path.chmod(blocked_path.stat().st_mode | stat.S_IRWXU)
        remover(path)


def parse_merge_token(message: str, trailers: str) -> int | None:
    """Return the token in the *message* of a merge; None: it is not one with these *trailers*."""
    pattern = re.escape(f"\n{trailers}\n{TRAILER} ") + r"([0-9]{1,19})$"
    match = re.search(pattern, message, re.MULTILINE)
    return None if match is None else int(match[1])


def _one_line(text: str) -> str:
    return " ".join(text.split())
