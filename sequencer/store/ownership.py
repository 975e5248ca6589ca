"""Whose a run's files are: what root makes, and what is said about another user's.

What root makes in somebody else's folder gets that folder's owner. So one command under sudo,
or in a container that works as root in a user's folder, takes no run away from its user.
Nothing that was there before is given to anybody: it may have another name elsewhere.

Not promised: files that agents, hooks or git make as root, and file systems without owners.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
from pathlib import Path
from typing import NamedTuple

from sequencer.errors import out_of_resources, typed_command

IS_ROOT = os.geteuid() == 0
_NEW_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_ONLY = "its file system takes no writes; mount it for writing, then start again"


_DECIDE = 2
"""The nearest that can be looked at: a file and its folder, or two folders above it."""


class FileOwner(NamedTuple):
    """Who gets what root makes."""

    uid: int
    gid: int


def open_for(owner: FileOwner, name: str, flags: int, mode: int, folder: int) -> int:
    """Open *name* in the descriptor *folder*, which is *owner*'s, with flags that create it."""
    while True:
        try:
            fd = os.open(name, flags | os.O_EXCL, mode, dir_fd=folder)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            with contextlib.suppress(FileNotFoundError):  # it has been removed meanwhile
                return os.open(name, flags & ~os.O_CREAT, dir_fd=folder)
            continue
        with contextlib.suppress(OSError):
            os.fchown(fd, *owner)
        return fd


def make_for(owner: FileOwner, name: str, mode: int, folder: int) -> None:
    """Make the folder *name* in the descriptor *folder*, which is *owner*'s."""
    os.mkdir(name, mode, dir_fd=folder)
    with contextlib.suppress(OSError):
        made = os.open(name, _NEW_FOLDER, dir_fd=folder)
        try:
            # The owner may have put another folder there. An empty one gives nothing away.
            if not os.listdir(made):  # noqa: PTH208 - no path
                os.fchown(made, *owner)
        finally:
            os.close(made)


class _Project:
    """What is named where a person has to get files back from another user."""

    folders: tuple[str, ...] = ()


def set_project_folders(*folders: Path) -> None:
    """Name *folders*, where this process's project keeps its runs and logs, in hints."""
    _Project.folders = tuple(map(str, folders))


def refused(error: OSError, path: str | Path, otherwise: str) -> tuple[str, str]:
    """Return why the system refused *path*, and what to do about it.

    *otherwise* is what to do where neither lack of room, nor a read-only file system, nor
    another owner is the reason.
    """
    why = error.strerror or str(error)
    lack = out_of_resources(error)
    if lack is not None:
        return why, lack.hint or otherwise
    if error.errno == errno.EROFS:
        return why, _READ_ONLY
    owner = _foreign_owner(str(path)) if error.errno in (errno.EACCES, errno.EPERM) else None
    if owner is None:
        return why, otherwise
    me, folders = user_name(os.geteuid()), {*filter(os.path.isdir, _Project.folders)}
    if not any(Path(path).is_relative_to(folder) for folder in folders):
        folders = {str(path)}
    shown = typed_command("sudo", "chown", "-R", me, *sorted(folders, reverse=True))
    return f"{why}: {owner}, and you are {me}", f"give it back to you: {shown}"


def _foreign_owner(path: str) -> str | None:
    """Return who owns *path*, or the folder around it, if that is another user."""
    seen = 0
    for place in (Path(path), *Path(path).parents):
        with contextlib.suppress(OSError):  # missing, or in a folder that can't be entered
            owner, seen = place.lstat().st_uid, seen + 1
            if owner != os.geteuid():
                what = "it" if place == Path(path) else "its folder"
                return f"{what} belongs to {user_name(owner)}"
            if seen == _DECIDE:
                return None
    return None


def user_name(uid: int) -> str:
    """Return the name of the user *uid*; the number, where nobody knows one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)
