"""What a new worktree lacks that the project's own work tree has.

In a new worktree, git leaves submodules empty, git-lfs files may be only pointers, and ignored
files (``.env``, installed packages) do not exist. An agent that finds an empty folder assumes that
the data is missing and works without it. So people are warned before the first attempt and by
``sequencer check``.

Not promised: that a setup command brings the right files, only that some files exist.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from sequencer.plugins.git.code.tree import format_paths
from sequencer.plugins.git.process import Git, GitFailed

LIST_TIMEOUT_S = 20.0
"""How long git may take to list ignored files."""
MAX_FILES = 1000
"""How many git-lfs files are looked at."""
SUBMODULE_SETUP = "setup: [[git, submodule, update, --init, --recursive]]"
LFS_HINT = "setup: [[git, lfs, pull]] brings their contents"
SETUP_HINT = "a command in setup can bring or make what the steps need"
TEAM_HINT = "a task's agent has to bring what it needs; its prompt can say how"
"""The hint for a team, whose tasks have no setup."""
_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1024
_GIT_LINK = "160000"
_GENERATED = (
    *("__pycache__", ".*_cache", ".cache", ".DS_Store", "Thumbs.db", ".idea", ".vscode", "*.pyc"),
    *(".coverage*", "htmlcov", "*.egg-info", "*.swp", "*~", "*.log", "*.tmp", ".tox", ".nox"),
)
"""Names of ignored files that are no loss: programs that need them create them."""


class MissingFiles(Struct, frozen=True):
    """Paths that a new worktree lacks, relative to the top of the work tree."""

    submodules: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def messages(self, *, in_team: bool = False) -> Iterator[tuple[bool, str, str]]:
        """Yield (is_sure, message, hint) for each kind of file that is missing."""
        for is_sure, problem, paths, hint in (
            (True, "submodules are empty", self.submodules, f"{SUBMODULE_SETUP} fills them"),
            (True, "files of git-lfs are only pointers", self.pointers, LFS_HINT),
            (False, "files that git ignores are not there", self.ignored, SETUP_HINT),
        ):
            if paths:
                message = f"{problem} in a new worktree: {format_paths(paths)}"
                yield is_sure, message, TEAM_HINT if in_team else hint

    def after_setup(self, setup: Sequence[Sequence[str]]) -> MissingFiles:
        """Return what will still be missing after the commands of *setup*, which have not run.

        Any command may bring git-lfs files and ignored files. Submodules need a command that
        names them.
        """
        if not setup:
            return self
        has_submodule_command = any("submodule" in word for argv in setup for word in argv)
        return MissingFiles(submodules=() if has_submodule_command else self.submodules)


def find_missing_files(
    git: Git, top: Path, is_own: Callable[[str], bool], fresh: Path | None = None
) -> MissingFiles:
    """Return what the work tree *top* has and the new worktree *fresh* does not have.

    Without *fresh*, return what any new worktree would not have. *is_own* is true for files of the
    run, which are left out. If git fails to list a kind of file, none of that kind is missing.
    """
    git = git.with_folder(top, timeout_s=LIST_TIMEOUT_S)

    def is_missing(path: str) -> bool:
        return fresh is None or not os.path.lexists(fresh / path)

    results: list[tuple[str, ...]] = []
    for list_missing in (
        lambda: [p for p in _list_submodules(git, top) if fresh is None or _is_empty(fresh / p)],
        lambda: _list_pointers(git, top, fresh),
        lambda: [p for p in _list_ignored(git) if is_missing(p) and not is_own(p)],
    ):
        try:
            results.append(tuple(list_missing()))
        except (GitFailed, OSError):
            results.append(())
    return MissingFiles(*results)


def _list_submodules(git: Git, top: Path) -> Iterator[str]:
    """Yield the submodules of the commit that are not empty in *top*."""
    if not (top / ".gitmodules").is_file():
        return
    output = git.run(
        *("config", "--file", ".gitmodules", "--null", "--get-regexp", r"^submodule\..*\.path$"),
        accepts=(0, 1),
    ).stdout.decode("utf-8", "surrogateescape")
    paths = [entry.partition("\n")[2] for entry in output.split("\0") if entry]
    for path in paths:
        if (
            not path
            or Path(path).is_absolute()
            or ".." in Path(path).parts
            or _is_empty(top / path)
        ):
            continue
        entry = git.read_output("ls-tree", "HEAD", "--", path.rstrip("/"))
        if entry.startswith(_GIT_LINK):
            yield f"{path.rstrip('/')}/"


def _is_empty(folder: Path) -> bool:
    try:
        return folder.is_symlink() or not any(folder.iterdir())
    except OSError:
        return True


def _list_pointers(git: Git, top: Path, fresh_folder: Path | None) -> Iterator[str]:
    """Yield git-lfs files whose contents are in *top* but would not be in a worktree."""
    pattern = ("-e", "^[^#]*[[:space:]]filter=lfs", "--", ":(top,glob)**/.gitattributes")
    if git.run("grep", "--quiet", "-I", *pattern, accepts=(0, 1)).code:
        return
    names = r"^filter\.lfs\.(smudge|process)$"
    if fresh_folder is None and not git.run("config", "--get-regexp", names, accepts=(0, 1)).code:
        return  # git brings the contents itself
    output = git.run("ls-files", "-z", "--", ":(top,attr:filter=lfs)").stdout
    for path in output.decode("utf-8", "surrogateescape").split("\0")[:MAX_FILES]:
        if (
            path
            and not _is_pointer(top / path)
            and (fresh_folder is None or _is_pointer(fresh_folder / path))
        ):
            yield path


def _is_pointer(path: Path) -> bool:
    """Return whether *path* is a git-lfs pointer, or can't be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        info = os.fstat(fd)
        is_short = stat.S_ISREG(info.st_mode) and info.st_size <= _POINTER_BYTES
        return is_short and os.read(fd, _POINTER_BYTES).startswith(_POINTER)
    finally:
        os.close(fd)


def _list_ignored(git: Git) -> Iterator[str]:
    """Yield the files and whole folders that git ignores, except for generated ones."""
    flags = ("--others", "--ignored", "--exclude-standard", "--directory", "-z")
    output = git.run("ls-files", *flags).stdout.decode("utf-8", "surrogateescape")
    for path in output.split("\0"):
        parts = Path(path).parts
        if parts and not any(fnmatch.fnmatch(part, name) for part in parts for name in _GENERATED):
            yield path
