"""Owners of a run's files: files that root makes, and hints about files of other users.

A file that root makes in another user's folder gets the owner of the folder. So one command under
sudo, or in a container that works as root in a user's folder, does not lock the user out of a run.
The owner of an existing file is never changed: it may have another name elsewhere.

Not promised: files that agents, hooks or git make as root, and file systems without owners.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
from pathlib import Path

from sequencer.errors import format_other_command, to_machine_busy

IS_ROOT = os.geteuid() == 0
_NEW_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_ONLY = "its file system is read-only; mount it for writing, then start again"


_MAX_CHECKED = 2
"""How many of the nearest existing paths are checked: a file and its folder, or two folders."""


FileOwner = tuple[int, int]
"""The ids of user and group for files that root makes."""


def open_for(owner: FileOwner, name: str, flags: int, mode: int, folder: int) -> int:
    """Open *name* in the folder descriptor *folder* of *owner*; *flags* must have `O_CREAT`."""
    while True:
        try:
            fd = os.open(name, flags | os.O_EXCL, mode, dir_fd=folder)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                return os.open(name, flags & ~os.O_CREAT, dir_fd=folder)
            continue
        with contextlib.suppress(OSError):
            os.fchown(fd, *owner)
        return fd


def make_for(owner: FileOwner, name: str, mode: int, folder: int) -> None:
    """Make the folder *name* in the folder descriptor *folder*, which belongs to *owner*."""
    os.mkdir(name, mode, dir_fd=folder)
    with contextlib.suppress(OSError):
        fd = os.open(name, _NEW_FOLDER, dir_fd=folder)
        try:
            # The owner may have put another folder here. Giving away an empty one is safe.
            if not os.listdir(fd):  # noqa: PTH208 - no path
                os.fchown(fd, *owner)
        finally:
            os.close(fd)


class _Project:
    """The folders to name in a hint when files belong to another user."""

    folders: tuple[str, ...] = ()


def set_project_folders(*folders: Path) -> None:
    """Set the *folders* of this project's runs and logs, for hints."""
    _Project.folders = tuple(map(str, folders))


def explain_refusal(error: OSError, path: str | Path, otherwise: str) -> tuple[str, str]:
    """Return why the system refused *path*, and what to do about it.

    *otherwise* is the hint if the reason is not a lack of resources, a read-only file system or
    another owner.
    """
    reason = error.strerror or str(error)
    shortage = to_machine_busy(error)
    if shortage is not None:
        return reason, shortage.hint or otherwise
    if error.errno == errno.EROFS:
        return reason, _READ_ONLY
    owner = _foreign_owner(str(path)) if error.errno in (errno.EACCES, errno.EPERM) else None
    if owner is None:
        return reason, otherwise
    user, folders = user_name(os.geteuid()), {*filter(os.path.isdir, _Project.folders)}
    if not any(Path(path).is_relative_to(folder) for folder in folders):
        folders = {str(path)}
    command_text = format_other_command("sudo", "chown", "-R", user, *sorted(folders, reverse=True))
    return f"{reason}: {owner}, and you are {user}", f"give it back to you: {command_text}"


def _foreign_owner(path: str) -> str | None:
    """Return a clause about the owner of *path* or its folder, if that is another user."""
    count = 0
    for candidate in (Path(path), *Path(path).parents):
        with contextlib.suppress(OSError):  # missing, or in a folder that can't be entered
            owner, count = candidate.lstat().st_uid, count + 1
            if owner != os.geteuid():
                subject = "it" if candidate == Path(path) else "its folder"
                return f"{subject} belongs to {user_name(owner)}"
            if count == _MAX_CHECKED:
                return None
    return None


def user_name(uid: int) -> str:
    """Return the name of the user *uid*; the number if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)
