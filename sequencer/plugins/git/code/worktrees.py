"""One worktree of a task: where it is, which branch it has, how far it has come.

A note beside it says so from before it is made until after it is gone. So whoever finds it
after a kill knows what is half-made, what is somebody's work and what was only being merged.
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
"""In the folder of the run."""
BRANCHES, RUN_BRANCHES = "sequencer-team", "sequencer-run"
"""Of tasks, and of runs that have a worktree of their own."""
TRAILER = "Sequencer-Token:"
SUBJECT_CHARS = 72
"""Of the first line of a commit's message, as git shows it whole in lists."""
_IGNORED = "# Work of agents that run at present: of no commit, and not to be edited.\n*\n"
_MAX_BYTES = 64 * 1024
_OWN_MODE = 0o600
UNPROVEN_S = 600.0
"""So long a process is waited for that may be alive somewhere else."""
_REMOVAL_S = 5.0
_PAUSE_S = 0.05


class Phase(StrEnum):
    """How far a worktree has come."""

    ADDING = "adding"
    """git makes it: what is in it is nobody's work."""
    WORKING = "working"
    """An agent works in it, or has."""
    MERGING = "merging"
    """Its branch has everything, and the folder is only where the merge is made."""
    KEPT = "kept"
    """It holds what can't be committed: a person has to look at it."""
    LEFT = "left"
    """Only its branch is left, with work of a run that was not merged."""


class Worktree(Frozen):
    """What the note says."""

    name: str
    """Of the folder, and the last part of the branch's name."""
    task: str
    """Empty: it is the run's, and all its steps work in it."""
    subject: str = ""
    """What the task is about, for messages; a note from before this was kept has none."""
    token: Counter
    run_id: str
    branch: str
    base: str
    """The commit on which it was begun."""
    checked_out: str | None = None
    """The branch of the checkout then; empty: none was, None: a note from before this was kept."""
    owner: Owner
    phase: Phase = Phase.ADDING
    git_dir: str = ""
    """Where its HEAD and index are; empty while it is added."""
    looked_at: Counter = 0
    """Bytes of the log of its HEAD that were looked through for commits that it has left."""
    why: str = ""
    """Why the work of a complete run was not merged, which is said until it is."""
    hint: str = ""
    """What to do about that."""
    restoring: dict[str, str] = Field(default_factory=dict)
    """What of a failed attempt is being set aside; see `set_aside.Restoring`."""

    @property
    def place(self) -> Path:
        """Return `git_dir` as a path."""
        return Path(self.git_dir)


class Worktrees:
    """The folder of all worktrees of one run, and their notes."""

    def __init__(
        self, run_folder: Path, run: str | None = None, hide: Callable[[str], str] = str
    ) -> None:
        """Look into the folder of *run* (None: the default run), where the state is too.

        *hide* takes the secrets out of what commits say.
        """
        self._run, self._hide = run or "default", hide
        # As git tells it: links in the path would make it another one.
        self.path = Path(os.path.realpath(run_folder)) / FOLDER

    def prepare(self) -> None:
        """Make the folder, with everything in it ignored."""
        folder = folders.made(self.path)
        with contextlib.suppress(FileExistsError):
            fd = folder.open(".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fd, "w") as file:
                file.write(_IGNORED)

    def folder(self, worktree: Worktree) -> Path:
        """Return the top of *worktree*."""
        return self.path / worktree.name

    def is_free(self, name: str) -> bool:
        """Return whether nothing is left of a worktree called *name*."""
        return not os.path.lexists(self.path / name) and not self._note(name).exists()

    def write(self, worktree: Worktree) -> Worktree:
        """Write the note of *worktree*, whole or not at all; return *worktree*."""
        write_note(self._note(worktree.name), worktree, _OWN_MODE)
        return worktree

    def read(self, name: str) -> Worktree | None:
        """Return the note of the worktree called *name*; None: it is gone, or can't be read."""
        note = read_note(self._note(name), Worktree, _MAX_BYTES)
        return note if note is not None and note.name == name else None

    def forget(self, worktree: Worktree) -> None:
        """Remove the note of *worktree*."""
        self._note(worktree.name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of all that have a note."""
        with contextlib.suppress(OSError):
            return sorted(path.stem for path in self.path.glob("*.json"))
        return []

    def is_abandoned(self, worktree: Worktree) -> bool:
        """Return whether the process that has made *worktree* is gone, as far as one can know."""
        if is_proven_dead(worktree.owner):
            return True
        try:
            age_s = time.time() - self._note(worktree.name).stat().st_mtime
        except OSError:
            return False
        # A container's process can't be looked for from another one.
        owner = worktree.owner
        is_out_of_sight = not is_same_boot(owner) or owner.pid_ns != pid_namespace()
        return is_out_of_sight and age_s > UNPROVEN_S

    def _note(self, name: str) -> Path:
        return self.path / f"{name}.json"

    # --- messages of commits -------------------------------------------------------

    def merge_message(self, worktree: Worktree) -> str:
        """Return what the merge of *worktree* says."""
        task = _one_line(worktree.task)
        first = f"Merge task {task}" if task else f"Merge run {self._run}"
        subject = _one_line(worktree.subject)
        return self._message(worktree, f"{first}: {subject}" if subject else first)

    def left_message(self, worktree: Worktree) -> str:
        """Return what a commit of what the agent has left in *worktree* says."""
        task, subject = _one_line(worktree.task), _one_line(worktree.subject)
        if not task:
            body = "What the agents of the run had not committed themselves."
            return self._message(worktree, f"Work of run {self._run}: {subject}", body)
        body = f"What the agent of task {task} had not committed itself."
        return self._message(worktree, subject or f"Work of task {task}", body)

    def _message(self, worktree: Worktree, first: str, *body: str) -> str:
        short = shorten(first, SUBJECT_CHARS, placeholder=" …")
        lines = f"{self.trailers(worktree.run_id, worktree.task)}\n{TRAILER} {worktree.token}"
        return self._hide("\n\n".join((short, *body, lines)) + "\n")

    def trailers(self, run_id: str, task: str) -> str:
        """Return the lines that the merges of all attempts at *task* have."""
        names = {"Run": self._run, "Run-Id": run_id, "Task": task}
        lines = (f"Sequencer-{name}: {_one_line(text)}" for name, text in names.items())
        return self._hide("\n".join(lines))


def name_of(task: str, token: int) -> str:
    """Return the name of the worktree of *task* under the claim *token*."""
    return f"{ref_part(slug(task))}-{token}"


def branch_of(run: str | None, name: str, branches: str = BRANCHES) -> str:
    """Return the branch of the worktree called *name*, below *branches*."""
    return f"{branches}/{ref_part(slug(run or 'default'))}/{name}"


# --- git's two files -----------------------------------------------------------------

_NAMED_BYTES = 4096


def place_in(common_dir: Path, worktree: Worktree) -> Path:
    """Return where the repository with *common_dir* has the HEAD and index of *worktree*."""
    return Path(os.path.realpath(common_dir), "worktrees", worktree.place.name)


def is_linked(place: Path, folder: Path) -> bool:
    """Return whether git gets from the worktree in *folder* to *place*, and back."""
    is_there = _named(folder / ".git") == place and _named(place / "gitdir") == folder / ".git"
    return is_there and not place.is_symlink()


def why_not_mended(place: Path, folder: Path, common_dir: Path) -> str | None:
    """Return why *folder* can't be made a worktree of the repository with *common_dir* again.

    None: it can, by writing git's two files anew. git has absolute paths in them: a project that
    was moved has old ones, and those of a copy lead to the original.
    """
    own = folder / ".git"
    if place.is_symlink() or not (place / "HEAD").is_file():
        return "this repository knows no such worktree (any more)"
    if _named(place / "commondir") != Path(os.path.realpath(common_dir)):
        return "this repository has a part of another one for it"
    if own.is_symlink() or (os.path.lexists(own) and not own.is_file()):
        return "its .git is no file that names a repository"
    other = _named(place / "gitdir")
    if other is not None and other != own and _named(other) == place:
        return f"this repository has that worktree in {other.parent}"
    return None


def mend(place: Path, folder: Path) -> None:
    """Let the worktree in *folder* lead to *place*, and back; see `why_not_mended`."""
    for path, target in ((place / "gitdir", folder / ".git"), (folder / ".git", place)):
        start = b"gitdir: " if path.name == ".git" else b""
        folders.put(path, start + os.fsencode(target) + b"\n")


def _named(path: Path) -> Path | None:
    """Return what the plain file *path*, one of git's, names; None: nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        told = os.read(fd, _NAMED_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(fd)
    named = os.fsdecode(told.removeprefix(b"gitdir: ").strip())
    # The last part stays as it is: a link in place of it is somebody's.
    place = Path(os.path.normpath(path.parent / named)) if named else None
    return None if place is None else Path(os.path.realpath(place.parent), place.name)


def git_dirs(common_dir: Path, folder: Path) -> Iterator[Path]:
    """Yield what git has of a worktree in *folder*, one that it was killed over included."""
    try:
        found = sorted((common_dir / "worktrees").iterdir())
    except OSError:
        return
    for path in found:
        try:
            told = (path / "gitdir").read_bytes().strip()
        except OSError:
            # Nobody else of ours adds one while the repository is locked.
            is_begun = (path / "locked").exists() and path.name.startswith(folder.name)
            if is_begun and not path.name.removeprefix(folder.name).strip("0123456789"):
                yield path
            continue
        if told == os.fsencode(folder / ".git"):
            yield path


def remove(folder: Path) -> bool:
    """Remove *folder* with everything in it; return whether it is gone.

    A git whose parent was killed may still write there for a moment.
    """
    ends = time.monotonic() + _REMOVAL_S
    while os.path.lexists(folder):
        shutil.rmtree(folder, onerror=_unlock)
        if not os.path.lexists(folder):
            break
        if time.monotonic() > ends:
            return False
        time.sleep(_PAUSE_S)
    return True


def _unlock(remover: Callable[..., Any], path: str, _: object) -> None:
    """Try once more where a folder forbids to remove what is in it."""
    with contextlib.suppress(OSError):
        for one in (Path(path).parent, Path(path)):
            if not one.is_symlink():
                one.chmod(one.stat().st_mode | stat.S_IRWXU)
        remover(path)


def token_in(message: str, wanted: str) -> int | None:
    """Return the token of a merge that has the lines *wanted*."""
    pattern = re.escape(f"\n{wanted}\n{TRAILER} ") + r"([0-9]{1,19})$"
    found = re.search(pattern, message, re.MULTILINE)
    return None if found is None else int(found[1])


def _one_line(text: str) -> str:
    return " ".join(text.split())
