"""The folders of a run, opened so that no link can lead out of them.

A path is opened one name at a time from the root of the file system, and anything on it that is
not a folder is refused. Entries are then opened relative to the folder's descriptor, so swapping
the folder for a link later has no effect on the holder of the descriptor. The project's
folder is resolved once, when it is found (`settings.location`): a link above it is the user's
own and allowed. A user's own records (trust, schedules, what ticks remember) are outside all
projects, so an agent that may only edit the project can't reach them (`read_user_record`).

Not promised: that other users can't write in a folder of a run that is not a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar

from sequencer.errors import CorruptState, StorageFailed, UnsafeFolder
from sequencer.store.ownership import IS_ROOT, FileOwner, explain_refusal, make_for, open_for

FILE_MODE = 0o600
IGNORE_ALL = b"# What a run writes belongs to this machine.\n*\n"
MAX_READ_BYTES = 256 * 1024 * 1024
"""A journal is rotated long before that. A sparse file can claim any size at no cost."""
_MAX_OPEN = 32
"""Folders that stay open: a run has a handful, and a program may use a thousand runs."""
_PASS = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""With O_PATH, where the system has it, a folder on the way need not be readable."""
_OPEN = os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_IS_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)
"""The errors that systems give for a link or a file where a folder is expected."""


class _Modes:
    """The modes of new files and folders of this process's project."""

    file = FILE_MODE
    folder = 0o700
    ignored: ClassVar[set[tuple[str, ...]]] = set()
    """Folders, by the parts of their paths, that git must ignore if this process makes them."""


def open_to_others(file_mode: int) -> None:
    """Make new files with *file_mode*, and new folders that the same users can enter."""
    _Modes.file = FILE_MODE | file_mode
    _Modes.folder = 0o700 | file_mode | (file_mode & 0o444) >> 2


def keep_from_git(folder: Path) -> None:
    """When *folder* is made, write a `.gitignore` for everything into it; an existing one stays."""
    _Modes.ignored.add(Path(os.path.normpath(folder.absolute())).parts)


class Folder:
    """A folder that was reached without following a link; open while something refers to it.

    A caller that uses ``fd`` must keep a reference: another thread may open the same path, and
    the cache then drops this one.
    """

    __slots__ = ("_identity", "_new_owner", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        """Take over *fd*, the descriptor of the folder at *path*."""
        self.path, self.fd = path, fd
        status = os.fstat(fd)
        self._identity = (status.st_dev, status.st_ino)
        self._new_owner = _owner_of_new(status)

    def __del__(self) -> None:
        """Close it with the last reference."""
        os.close(self.fd)

    def is_current(self) -> bool:
        """Return whether its path still leads to this folder."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """Yield its entries; ask an entry for its type before you take the next one."""
        # A separate descriptor: two readers of one descriptor would share its position.
        fd = os.open(".", _OPEN, dir_fd=self.fd)
        try:
            with os.scandir(fd) as entries:
                yield from entries
        finally:
            os.close(fd)

    def open(self, name: str, flags: int) -> int:
        """Return a descriptor of the file *name*; a link is not followed."""
        if self._new_owner is not None and flags & os.O_CREAT:
            return open_for(self._new_owner, name, flags | _FILE, _Modes.file, self.fd)
        return os.open(name, flags | _FILE, _Modes.file, dir_fd=self.fd)

    def create(self, name: str) -> int:
        """Return a descriptor of the new, empty file *name*; an old one is removed first.

        The old file is never written to: it may have another name elsewhere.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return self.open(name, flags)
        except FileExistsError:
            self.remove(name)
            return self.open(name, flags)

    def replace(self, fresh: str, name: str) -> None:
        """Rename the file *fresh* to *name*, replacing it."""
        os.replace(fresh, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def mkdir(self, name: str) -> None:
        """Make the folder *name*, which must not exist."""
        _mkdir_at(name, self.fd, self._new_owner)

    def link(self, name: str, new: str) -> None:
        """Give the file *name* the name *new* as well."""
        os.link(name, new, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove the file *name*; if it is a link, the link and not its target."""
        os.unlink(name, dir_fd=self.fd)

    def sync(self) -> None:
        """Make created and renamed entries survive a power loss."""
        sync_fd(self.fd)


_cache: dict[str, Folder] = {}


def open_folder(path: Path | str) -> Folder:
    """Return the folder at *path*.

    Raises:
        FileNotFoundError: it does not exist.
        NotADirectoryError: it is not a folder.
        UnsafeFolder: it or a folder above it is a link, which may lead to another person's files.
    """
    key = os.fspath(path)
    folder = _cache.get(key)
    # It was reached without a link and is the same folder, so the path to it does not matter.
    if folder is not None and folder.is_current():
        return folder
    return _cache_folder(Folder(key, _open_without_links(key, is_made=False)))


def make_folder(path: Path | str) -> Folder:
    """Return the folder at *path*; it and its parents are made if they are missing.

    Raises:
        UnsafeFolder: see `open_folder`.
    """
    try:
        return open_folder(path)
    except FileNotFoundError:
        key = os.fspath(path)
        return _cache_folder(Folder(key, _open_without_links(key, is_made=True)))


def make_new_folder(path: Path) -> None:
    """Make the folder *path*, which must not exist.

    Raises:
        FileExistsError: another process has made it.
        UnsafeFolder: see `open_folder`.
    """
    make_folder(path.parent).mkdir(path.name)


def make_numbered_folder(wanted: Path) -> Path:
    """Make the folder *wanted*, with a number at the end if that exists; return its path."""
    for number in range(1, 1_000):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        with contextlib.suppress(FileExistsError):
            make_new_folder(path)
            return path
    raise CorruptState("too many were created in one second", where=str(wanted))


def open_file(path: Path | str, flags: int) -> int:
    """Return a descriptor of the file *path*; no link is followed. Its folder must exist."""
    folder, name = os.path.split(path)
    try:
        return open_folder(folder).open(name, flags)
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def open_new_file(path: Path | str) -> BinaryIO:
    """Open *path* for writing bytes as a new file; see `Folder.create`."""
    folder, name = os.path.split(path)
    return os.fdopen(open_folder(folder).create(name), "wb")


def write_durably(path: Path, data: bytes) -> None:
    """Write *data* to *path*, never through a link; the caller must still sync the folder."""
    with open_new_file(path) as file:
        file.write(data)
        file.flush()
        sync_fd(file.fileno())


def sync_fd(fd: int) -> None:
    """Make the written data survive a power loss.

    On macOS, `fsync` alone leaves it in the disk's cache (man 2 fsync).
    """
    try:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        os.fsync(fd)  # another system, or a file system without F_FULLFSYNC


def write_atomically(path: Path, data: bytes, *, durably: bool = True, fresh: str = "") -> None:
    """Replace the file *path* with *data* atomically; *durably*: so that it survives a power loss.

    *fresh* names the temporary file; threads that write *path* at the same time need different
    names.
    """
    folder, fresh = open_folder(path.parent), fresh or f"{path.name}.{os.getpid()}.tmp"
    with os.fdopen(folder.create(fresh), "wb") as file:
        file.write(data)
        if durably:
            file.flush()
            sync_fd(file.fileno())
    folder.replace(fresh, path.name)
    if durably:
        folder.sync()


def overwrite(path: Path, data: bytes) -> None:
    """Overwrite the file *path* with *data*; for a full disk, where no new file can be made.

    The file must exist. A file with a second name is left alone. Not promised: that a crash
    leaves the old or the new content.

    Raises:
        OSError: it can't be opened or written, or has a second name.
    """
    fd = open_file(path, os.O_WRONLY)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make created and renamed entries of *folder* survive a power loss."""
    open_folder(folder).sync()


def read_regular(path: Path, offset: int = 0, max_bytes: int | None = None) -> bytes:
    """Return the bytes of *path* from *offset* on, at most *max_bytes*.

    If the file is longer, one more byte is returned, so that the caller can tell.

    Raises:
        FileNotFoundError: it does not exist.
        CorruptState: it is a link, a folder, a pipe or a device; opening one of those
            could hang, or reach outside the run's folder.
        UnsafeFolder: its folder is reached through a link.
    """
    try:
        fd = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason, hint = explain_refusal(error, path, "it has to be a regular file")
        raise CorruptState(f"can't be read: {reason}", where=str(path), hint=hint) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptState(
                "is not a regular file",
                where=str(path),
                hint="move it away; 'sequencer repair --apply' does that and restores the file",
            )
        # The offset comes from a file that anyone can edit; a huge value makes `pread` fail.
        if offset > status.st_size:
            return b""
        if max_bytes is None and status.st_size - offset > MAX_READ_BYTES:
            raise CorruptState(
                f"has {status.st_size} bytes; the limit is {MAX_READ_BYTES}",
                where=str(path),
                hint="move it away; 'sequencer repair' shows what the rest can be restored from",
            )
        # Ask for one byte more than the size: if the file is being written, it may have grown.
        size = status.st_size - offset + 1
        data = os.pread(fd, size if max_bytes is None else min(size, max_bytes + 1), offset)
        if len(data) < size and (max_bytes is None or len(data) <= max_bytes):
            return data
        with os.fdopen(fd, "rb", closefd=False) as file:
            file.seek(offset)
            return file.read() if max_bytes is None else file.read(max_bytes + 1)
    except OSError as error:
        raise CorruptState(f"can't be read: {error.strerror}", where=str(path)) from error
    finally:
        os.close(fd)


def replace(fresh: Path | str, path: Path | str) -> None:
    """Rename the file *fresh* to *path*, in the same folder, replacing it."""
    folder, name = os.path.split(path)
    open_folder(folder).replace(os.path.split(fresh)[1], name)


def move(path: Path, target: Path) -> None:
    """Move *path*, a file or a folder, to *target*, whose folder must exist."""
    source, destination = open_folder(path.parent), open_folder(target.parent)
    os.rename(path.name, target.name, src_dir_fd=source.fd, dst_dir_fd=destination.fd)


def link(path: Path, new: Path) -> None:
    """Give the file *path* the name *new* as well, in the same folder.

    Raises:
        FileExistsError: *new* exists.
    """
    open_folder(path.parent).link(path.name, new.name)


def remove(path: Path | str) -> None:
    """Remove the file *path*, if it exists."""
    folder, name = os.path.split(path)
    try:
        open_folder(folder).remove(name)
    except FileNotFoundError:
        return


def remove_tree(path: Path) -> None:
    """Remove as much as possible of the folder *path* and its contents; no link is followed.

    Raises:
        UnsafeFolder: a folder above it is a link.
    """
    try:
        parent = open_folder(path.parent)
    except FileNotFoundError:
        return
    try:
        os.rmdir(path.name, dir_fd=parent.fd)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        for fd, name, status in walk_bottom_up(path):
            with contextlib.suppress(OSError):
                (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(name, dir_fd=fd)


def walk_bottom_up(path: Path) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yield (descriptor of the parent, name, `stat`) for *path* and everything in it.

    A folder comes after its contents. There is no recursion and only one open descriptor, at any
    depth; no link is followed. A folder that can't be read counts as empty.

    Not promised: everything, if folders in *path* are moved in the meantime.

    Raises:
        FileNotFoundError: the folder above it does not exist.
        UnsafeFolder: a folder above it is a link.
    """
    top = open_folder(path.parent)
    fd = os.open(".", _OPEN, dir_fd=top.fd)
    # The folders that the walk is in, each with its name, `stat`, and the names not visited yet.
    folders = [("", os.fstat(fd), [path.name])]
    try:
        while folders:
            folder_name, folder_status, names = folders[-1]
            if names:
                name = names.pop()
                status, child_fd = _inspect(name, fd)
                if child_fd is not None:
                    os.close(fd)
                    fd = child_fd
                    folders.append((name, os.fstat(fd), os.listdir(fd)))  # noqa: PTH208 - no path
                elif status is not None:
                    yield fd, name, status
                continue
            folders.pop()
            if folders:
                parent_fd = os.open("..", _OPEN, dir_fd=fd)
                os.close(fd)
                fd = parent_fd
                if not os.path.samestat(os.fstat(fd), folders[-1][1]):
                    return
                yield fd, folder_name, folder_status
    finally:
        os.close(fd)


def _inspect(name: str, fd: int) -> tuple[os.stat_result | None, int | None]:
    """Return the `stat` of *name* (None: it does not exist) and, for a folder, a descriptor."""
    status = child_fd = None
    with contextlib.suppress(OSError):
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            child_fd = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=fd)
    return status, child_fd


def list_names(path: Path | str) -> list[str]:
    """Return the names of the entries of the folder *path*; none if it does not exist.

    Raises:
        UnsafeFolder: see `open_folder`.
        StorageFailed: the folder can't be read.
    """
    try:
        return [entry.name for entry in open_folder(path).entries()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        is_denied = isinstance(error, PermissionError)
        hint = "check the folder's mode" if is_denied else "check the disk, then try again"
        reason, hint = explain_refusal(error, path, hint)
        raise StorageFailed(f"can't be read: {reason}", where=str(path), hint=hint) from error


def list_names_if_safe(path: Path | str) -> list[str]:
    """Return the names of the entries of the folder *path*; none if it is not a safe one.

    For callers that only look at a run: the store reports an unsafe folder.

    Raises:
        StorageFailed: the folder can't be read.
    """
    try:
        return list_names(path)
    except UnsafeFolder:
        return []


def sweep(path: Path, is_left_over: Callable[[str], bool]) -> None:
    """Remove the regular files in *path* whose names *is_left_over* accepts.

    A file that can't be removed stays.

    Raises:
        UnsafeFolder: see `open_folder`.
    """
    try:
        folder = open_folder(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in folder.entries():
        if is_left_over(entry.name) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(OSError):
                folder.remove(entry.name)


def _cache_folder(folder: Folder) -> Folder:
    if len(_cache) >= _MAX_OPEN:
        # Each is closed with its last reference, and opened again when it is needed.
        _cache.clear()
    _cache[folder.path] = folder
    return folder


def _open_without_links(path: str, *, is_made: bool) -> int:
    """Return a descriptor of the folder *path*, reached without a link; see `open_folder`."""
    parts = Path(os.path.normpath(Path(path).absolute())).parts
    parent, first_depth = _cache.get(os.path.split(path)[0]), 2
    if parent is not None and parent.is_current():
        fd, first_depth = os.dup(parent.fd), len(parts)
    else:
        fd = os.open(parts[0], _PASS if parts[1:] else _OPEN)
    for depth, name in enumerate(parts[first_depth - 1 :], first_depth):
        flags = _OPEN if depth == len(parts) else _PASS
        # The first name belongs to the system: /tmp and /var are links on macOS.
        flags |= 0 if depth == 2 else os.O_NOFOLLOW  # noqa: PLR2004 (the first name)
        try:
            child_fd = _open_entry(name, flags, fd, parts[:depth] if is_made else None)
        except OSError as error:
            path_text = str(Path(*parts[:depth]))
            if error.errno in _IS_NO_FOLDER and _is_link(name, fd):
                raise UnsafeFolder(
                    "is a link, but it has to be a folder of the run",
                    where=path_text,
                    hint="nothing behind it was touched; move it away, or name the folder "
                    "that it leads to",
                ) from error
            error.filename = path_text
            raise
        finally:
            os.close(fd)
        fd = child_fd
    return fd


def _open_entry(name: str, flags: int, fd: int, path_parts: tuple[str, ...] | None) -> int:
    """Return a descriptor of *name* in *fd*; with *path_parts*, make it if it is missing."""
    try:
        return os.open(name, flags, dir_fd=fd)
    except FileNotFoundError:
        if path_parts is None:
            raise
    with contextlib.suppress(FileExistsError):  # another process was first
        owner = _owner_of_new(os.fstat(fd))
        _mkdir_at(name, fd, owner)
        if path_parts in _Modes.ignored:
            _write_gitignore(name, fd, owner)
    return os.open(name, flags, dir_fd=fd)


def _write_gitignore(name: str, fd: int, owner: FileOwner | None) -> None:
    """Write a `.gitignore` into the new folder *name* in *fd*; it ignores itself too.

    Otherwise `git clean` would remove it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
    with contextlib.suppress(OSError):
        path = f"{name}/.gitignore"
        if owner is None:
            file = os.open(path, flags, _Modes.file, dir_fd=fd)
        else:
            file = open_for(owner, path, flags, _Modes.file, fd)
        os.write(file, IGNORE_ALL)
        os.close(file)


def _owner_of_new(folder: os.stat_result) -> FileOwner | None:
    """Return the owner for new files in *folder*; None: the user of this process."""
    return (folder.st_uid, folder.st_gid) if IS_ROOT and folder.st_uid else None


def _mkdir_at(name: str, fd: int, owner: FileOwner | None) -> None:
    if owner is not None:
        make_for(owner, name, _Modes.folder, fd)
    else:
        os.mkdir(name, _Modes.folder, dir_fd=fd)


def _is_link(name: str, fd: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True  # it existed a moment ago; a link is the safe guess
