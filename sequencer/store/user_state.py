"""This user's own records: in the user's state folder, outside of every project.

Agents that may only edit the project can't write there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from sequencer.errors import ConfigurationError, StorageFailed, UnsafeFolder
from sequencer.files.textfile import path_at_home
from sequencer.store.folder import Folder, open_folder, overwrite, read_regular, write_atomically

STATE_VARIABLE = "XDG_STATE_HOME"
_OTHERS_WRITE = 0o022
_FULL = (errno.ENOSPC, errno.EDQUOT)


def user_state_path(*parts: str) -> Path:
    """Return the folder *parts* of this user's own records; links in the path are not resolved.

    Raises:
        ConfigurationError: the home folder is unknown.
    """
    variable = os.environ.get(STATE_VARIABLE, "")
    if variable.startswith("/"):
        return Path(variable, "sequencer", *parts)
    try:
        return path_at_home(".local/state", STATE_VARIABLE) / "sequencer" / Path(*parts)
    except ConfigurationError as error:
        message = f"there is no place for your own records: {error.message}"
        raise ConfigurationError(message, hint=error.hint) from None


def make_user_folder(*parts: str) -> Path:
    """Make the folder *parts* of this user's own records, closed to other users; return its path.

    Raises:
        ConfigurationError: see `user_state_path`.
        StorageFailed: it can't be made.
    """
    folder = user_state_path()
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (
            folder,
            *(folder.joinpath(*parts[: count + 1]) for count in range(len(parts))),
        ):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
    except OSError as error:
        raise make_user_folder_error(folder.joinpath(*parts), error) from error
    return folder.joinpath(*parts)


def read_user_record(kind: str, name: str, max_bytes: int) -> bytes | None:
    """Return this user's own record *name* of *kind*; None: there is none.

    Raises:
        CorruptState: it is not a regular file.
        UnsafeFolder: its folder is a link, or other users may write in it.
        ConfigurationError: see `user_state_path`. StorageFailed: the folder can't be used.
    """
    try:
        return read_regular(Path(_open_user_folder(kind).path, name), max_bytes=max_bytes)
    except FileNotFoundError:
        return None


def write_user_record(
    kind: str, name: str, data: bytes, *, durably: bool = True, may_tear: bool = False
) -> None:
    """Write *data* as this user's own record *name* of *kind*; see `write_atomically`.

    With *may_tear*, the old record is overwritten in place if the disk is full.

    Raises:
        UnsafeFolder, ConfigurationError, StorageFailed: see `read_user_record`.
    """
    folder_path, temporary_name = make_user_folder(kind), f"{name}.{os.urandom(8).hex()}.tmp"
    try:
        path = Path(_open_user_folder(kind).path, name)
        try:
            write_atomically(path, data, durably=durably, fresh=temporary_name)
        except OSError as error:
            if not may_tear or error.errno not in _FULL:
                raise
            overwrite(path, data)
    except OSError as error:
        raise make_user_folder_error(folder_path, error) from error


def _open_user_folder(kind: str) -> Folder:
    """Return the folder of this user's own records of *kind*.

    The folders above `sequencer` are the user's own, so links are allowed there.
    """
    folder_path = user_state_path(kind)
    try:
        try:
            folder = open_folder(folder_path)
        except UnsafeFolder:
            folder = open_folder(
                Path(os.path.realpath(folder_path.parent.parent), *folder_path.parts[-2:])
            )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise make_user_folder_error(folder_path, error) from error
    status = os.fstat(folder.fd)
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
        message = "belongs to another user, or other users may write in it"
        raise UnsafeFolder(message, where=str(folder_path), hint="make it yours, with mode 700")
    return folder


def make_user_folder_error(path: Path, error: OSError) -> StorageFailed:
    """Return the error for the folder *path* of this user's own records, because of *error*."""
    hint = f"your own records are kept there; {STATE_VARIABLE} names another folder"
    return StorageFailed(f"can't be used: {error.strerror}", where=str(path), hint=hint)
