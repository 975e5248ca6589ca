"""The folders of a run, opened so that no link can lead out of them.

A folder is opened one name after the other from the top of the file system, and what is no
folder on the way is refused; what is in it is then named relative to its descriptor. Whoever
swaps a folder for a link meanwhile changes nothing for those that hold the descriptor.
A project's own folder is resolved once, when it is found (`settings.location`), so a link
above it is the person's own and allowed.

A user's own records (trust, schedules, what ticks remember) lie in no project: an agent that
may only edit the project can't reach them (`read_own`, `put_own`).
Not promised: anything about who else may write in a folder of a run that is no link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from sequencer.errors import CorruptState, StorageFailed, UnsafeFolder
from sequencer.store.ownership import IS_ROOT, FileOwner, make_for, open_for, refused

FILE_MODE = 0o600
IGNORE_ALL = b"# What a run writes belongs to this machine.\n*\n"
MAX_READ_BYTES = 256 * 1024 * 1024
"""A journal is put aside long before; a file with holes has any size at no cost."""
_HELD = 32
"""Folders that stay open: a run has a handful, and a program may use a thousand runs."""
_THROUGH = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""To pass a folder it need not be readable, where the system knows the difference."""
_OPEN = os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_IS_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)
"""What systems answer for a link, or a file, where a folder has to be."""


class _Modes:
    """What new files and folders of this process's project may be to others."""

    file = FILE_MODE
    folder = 0o700
    ignored: ClassVar[set[tuple[str, ...]]] = set()
    """Folders, by the parts of their paths, that git is to ignore if this process makes them."""


def open_to_others(file_mode: int) -> None:
    """Make new files with *file_mode*, and folders that can be entered by who may read them."""
    _Modes.file = FILE_MODE | file_mode
    _Modes.folder = 0o700 | file_mode | (file_mode & 0o444) >> 2


def keep_from_git(folder: Path) -> None:
    """Have whoever makes *folder* put a `.gitignore` for all of it in; one that is there stays."""
    _Modes.ignored.add(Path(os.path.normpath(folder.absolute())).parts)


class Folder:
    """A folder that was reached without a link; open for as long as somebody refers to it.

    Its methods keep it while they use ``fd``, and so has anybody else: another thread may open
    the same path, and then nobody refers to this one any more.
    """

    __slots__ = ("_heir", "_identity", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        """Own *fd*, which is the folder at *path*."""
        self.path, self.fd = path, fd
        found = os.fstat(fd)
        self._identity = (found.st_dev, found.st_ino)
        self._heir = _owner_of_new(found)

    def __del__(self) -> None:
        """Close it where nobody uses it any more."""
        os.close(self.fd)

    def is_current(self) -> bool:
        """Return whether its path still leads to this very folder."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """Yield what is in it; an entry may be asked for its kind until the next is."""
        # A descriptor of its own: two that read at one would share their place in it.
        fd = os.open(".", _OPEN, dir_fd=self.fd)
        try:
            with os.scandir(fd) as found:
                yield from found
        finally:
            os.close(fd)

    def open(self, name: str, flags: int) -> int:
        """Return a descriptor of the file *name*, which is not opened through a link."""
        if self._heir is not None and flags & os.O_CREAT:
            return open_for(self._heir, name, flags | _FILE, _Modes.file, self.fd)
        return os.open(name, flags | _FILE, _Modes.file, dir_fd=self.fd)

    def create(self, name: str) -> int:
        """Return a descriptor of the new, empty file *name*; one that is there is removed first.

        It is never written into: it may have another name elsewhere.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return self.open(name, flags)
        except FileExistsError:
            self.remove(name)
            return self.open(name, flags)

    def replace(self, fresh: str, name: str) -> None:
        """Put the file *fresh* in place of *name*."""
        os.replace(fresh, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def make(self, name: str) -> None:
        """Make the folder *name*, which must not be there."""
        _make_folder(name, self.fd, self._heir)

    def link(self, name: str, new: str) -> None:
        """Give the file *name* the name *new* as well."""
        os.link(name, new, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove the file *name*, or a link of that name itself."""
        os.unlink(name, dir_fd=self.fd)

    def sync(self) -> None:
        """Make created and renamed entries survive a power loss."""
        synced(self.fd)


_held: dict[str, Folder] = {}


def opened(path: Path | str) -> Folder:
    """Return the folder at *path*.

    Raises:
        FileNotFoundError: it is not there.
        NotADirectoryError: it is something else.
        UnsafeFolder: it or a folder above it is a link; what lies behind that is somebody
            else's.
    """
    key = os.fspath(path)
    folder = _held.get(key)
    # The same folder as when it was reached without a link, however its path leads there.
    if folder is not None and folder.is_current():
        return folder
    return _hold(Folder(key, _walk(key, is_made=False)))


def made(path: Path | str) -> Folder:
    """Return the folder at *path*, made with those above it where they are missing.

    Raises:
        UnsafeFolder: see `opened`.
    """
    try:
        return opened(path)
    except FileNotFoundError:
        key = os.fspath(path)
        return _hold(Folder(key, _walk(key, is_made=True)))


def make_fresh(path: Path) -> None:
    """Make the folder *path*, which must not be there.

    Raises:
        FileExistsError: somebody has made it.
        UnsafeFolder: see `opened`.
    """
    made(path.parent).make(path.name)


def make_another(wanted: Path) -> Path:
    """Make a folder called *wanted*, or so with a number if there is one; return it."""
    for number in range(1, 1_000):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        with contextlib.suppress(FileExistsError):
            make_fresh(path)
            return path
    raise CorruptState("too many were created in one second", where=str(wanted))


def open_file(path: Path | str, flags: int) -> int:
    """Return a descriptor of the file *path*, which is not opened through a link.

    Its folder has to be there.
    """
    folder, name = os.path.split(path)
    try:
        return opened(folder).open(name, flags)
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def open_new(path: Path | str) -> BinaryIO:
    """Open *path* for writing bytes as a new file; see `Folder.create`."""
    folder, name = os.path.split(path)
    return os.fdopen(opened(folder).create(name), "wb")


def write_durably(path: Path, data: bytes) -> None:
    """Write *data* to *path*, never through a link; its folder is still to be synced."""
    with open_new(path) as file:
        file.write(data)
        file.flush()
        synced(file.fileno())


def synced(fd: int) -> None:
    """Make what was written survive a power loss.

    On macOS `fsync` leaves it in the disk's own cache (man 2 fsync).
    """
    try:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        os.fsync(fd)  # another system, or a file system that does not know it


def put(path: Path, data: bytes, *, durably: bool = True, fresh: str = "") -> None:
    """Make *data* what stands at *path*, at once; *durably*: after a power loss too.

    Threads that may write it at the same time need names of their own for what is *fresh*.
    """
    folder, fresh = opened(path.parent), fresh or f"{path.name}.{os.getpid()}.tmp"
    with os.fdopen(folder.create(fresh), "wb") as file:
        file.write(data)
        if durably:
            file.flush()
            synced(file.fileno())
    folder.replace(fresh, path.name)
    if durably:
        folder.sync()


def overwrite(path: Path, data: bytes) -> None:
    """Write *data* over the file at *path*, where no new file can be made; it has to be there.

    A file that has another name too is left alone. Not promised: that what stands there after a
    crash is one of the two.

    Raises:
        OSError: it can't be opened or written, or has another name.
    """
    fd = open_file(path, os.O_WRONLY)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make created and renamed entries of *folder* survive a power loss."""
    opened(folder).sync()


def read_regular(path: Path, offset: int = 0, max_bytes: int | None = None) -> bytes:
    """Return the bytes of *path* from *offset* on, at most *max_bytes* + 1 of them.

    Raises:
        FileNotFoundError: it is not there.
        CorruptState: it is a link, a folder, a pipe or a device; opening one of those
            could hang or reach outside the run's folder.
        UnsafeFolder: its folder is reached through a link.
    """
    try:
        fd = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError as error:
        why, hint = refused(error, path, "it has to be a regular file")
        raise CorruptState(f"can't be read: {why}", where=str(path), hint=hint) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise CorruptState(
                "is not a regular file",
                where=str(path),
                hint="move it away; 'sequencer repair --apply' does it and restores the file",
            )
        # An offset comes from a file that anybody may edit; no file reaches 2**63.
        if offset > found.st_size:
            return b""
        if max_bytes is None and found.st_size - offset > MAX_READ_BYTES:
            raise CorruptState(
                f"has {found.st_size} bytes; the limit is {MAX_READ_BYTES}",
                where=str(path),
                hint="move it away; 'sequencer repair' shows what the rest can be restored from",
            )
        # One byte more than there was: a file that is being written may have grown.
        size = found.st_size - offset + 1
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
    """Put the file *fresh* in place of *path*, in the same folder."""
    folder, name = os.path.split(path)
    opened(folder).replace(os.path.split(fresh)[1], name)


def move(path: Path, target: Path) -> None:
    """Move *path*, whatever it is, to *target*, whose folder is there."""
    source, below = opened(path.parent), opened(target.parent)
    os.rename(path.name, target.name, src_dir_fd=source.fd, dst_dir_fd=below.fd)


def link(path: Path, new: Path) -> None:
    """Give the file *path* the name *new* as well, in the same folder.

    Raises:
        FileExistsError: there is one.
    """
    opened(path.parent).link(path.name, new.name)


def remove(path: Path | str) -> None:
    """Remove the file *path*, if it is there."""
    folder, name = os.path.split(path)
    try:
        opened(folder).remove(name)
    except FileNotFoundError:
        return


def remove_tree(path: Path) -> None:
    """Remove the folder *path* and what is in it, as far as that is possible; no link is followed.

    Raises:
        UnsafeFolder: a folder above it is a link.
    """
    try:
        parent = opened(path.parent)
    except FileNotFoundError:
        return
    try:
        os.rmdir(path.name, dir_fd=parent.fd)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        for fd, name, about in walked(path):
            with contextlib.suppress(OSError):
                (os.rmdir if stat.S_ISDIR(about.st_mode) else os.unlink)(name, dir_fd=fd)


class _Level(NamedTuple):
    """A folder that `walked` is in."""

    name: str
    about: os.stat_result
    left: list[str]
    """What is still to be looked at in it."""


def walked(path: Path) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yield all of *path*, a file or a folder: a descriptor of where it is, its name and `stat`.

    A folder comes behind what is in it. However deep it is, nothing is called within itself and
    one descriptor is open; no link is followed. A folder that can't be read counts as empty.

    Not promised: all of it, if folders of it are moved meanwhile.

    Raises:
        FileNotFoundError: the folder above it is not there.
        UnsafeFolder: a folder above it is a link.
    """
    top = opened(path.parent)
    fd = os.open(".", _OPEN, dir_fd=top.fd)
    levels = [_Level("", os.fstat(fd), [path.name])]
    try:
        while levels:
            level = levels[-1]
            if level.left:
                name = level.left.pop()
                about, below = _looked_at(name, fd)
                if below is not None:
                    os.close(fd)
                    fd = below
                    levels.append(_Level(name, os.fstat(fd), os.listdir(fd)))  # noqa: PTH208 - no path
                elif about is not None:
                    yield fd, name, about
                continue
            levels.pop()
            if levels:
                above = os.open("..", _OPEN, dir_fd=fd)
                os.close(fd)
                fd = above
                if not os.path.samestat(os.fstat(fd), levels[-1].about):
                    return
                yield fd, level.name, level.about
    finally:
        os.close(fd)


def _looked_at(name: str, fd: int) -> tuple[os.stat_result | None, int | None]:
    """Return the `stat` of *name*, unless it is gone, and a descriptor of it if it is a folder."""
    about = below = None
    with contextlib.suppress(OSError):
        about = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode):
            below = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=fd)
    return about, below


def names(path: Path | str) -> list[str]:
    """Return the names of what is in the folder *path*; none if it is not there.

    Raises:
        UnsafeFolder: see `opened`.
        StorageFailed: nobody lets this user look.
    """
    try:
        return [entry.name for entry in opened(path).entries()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        why, hint = refused(error, path, "check the folder's mode")
        raise StorageFailed(f"can't be read: {why}", where=str(path), hint=hint) from error


def sweep(path: Path, is_left: Callable[[str], bool]) -> None:
    """Remove the plain files of *path* whose names *is_left* takes.

    One that can't be removed stays.

    Raises:
        UnsafeFolder: see `opened`.
    """
    try:
        folder = opened(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in folder.entries():
        if is_left(entry.name) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(OSError):
                folder.remove(entry.name)


def _hold(folder: Folder) -> Folder:
    if len(_held) >= _HELD:
        # Each is closed when the last that uses it is done, and opened again when it is needed.
        _held.clear()
    _held[folder.path] = folder
    return folder


def _walk(path: str, *, is_made: bool) -> int:
    """Return a descriptor of the folder *path*; see `opened`."""
    parts = Path(os.path.normpath(Path(path).absolute())).parts
    above, first = _held.get(os.path.split(path)[0]), 2
    if above is not None and above.is_current():
        fd, first = os.dup(above.fd), len(parts)
    else:
        fd = os.open(parts[0], _THROUGH if parts[1:] else _OPEN)
    for place, name in enumerate(parts[first - 1 :], first):
        flags = _OPEN if place == len(parts) else _THROUGH
        # What stands at the top is the system's own: /tmp and /var are links on macOS.
        flags |= 0 if place == 2 else os.O_NOFOLLOW  # noqa: PLR2004 (the first name)
        try:
            below = _step(name, flags, fd, parts[:place] if is_made else None)
        except OSError as error:
            here = str(Path(*parts[:place]))
            if error.errno in _IS_NO_FOLDER and _is_link(name, fd):
                raise UnsafeFolder(
                    "is a link, but it has to be a folder of the run",
                    where=here,
                    hint="nothing behind it was touched; move it away, or name the folder "
                    "that it leads to",
                ) from error
            error.filename = here
            raise
        finally:
            os.close(fd)
        fd = below
    return fd


def _step(name: str, flags: int, fd: int, made: tuple[str, ...] | None) -> int:
    """Return a descriptor of *name* in *fd*, made if its path *made* is given."""
    try:
        return os.open(name, flags, dir_fd=fd)
    except FileNotFoundError:
        if made is None:
            raise
    with contextlib.suppress(FileExistsError):  # another process was first
        owner = _owner_of_new(os.fstat(fd))
        _make_folder(name, fd, owner)
        if made in _Modes.ignored:
            _ignore(name, fd, owner)
    return os.open(name, flags, dir_fd=fd)


def _ignore(name: str, fd: int, owner: FileOwner | None) -> None:
    """Have git ignore the new folder *name* in *fd*, and this file itself: `git clean` takes it."""
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
    """Return who gets what this process makes in *folder*; None: it stays this process's own."""
    return FileOwner(folder.st_uid, folder.st_gid) if IS_ROOT and folder.st_uid else None


def _make_folder(name: str, fd: int, owner: FileOwner | None) -> None:
    if owner is not None:
        make_for(owner, name, _Modes.folder, fd)
    else:
        os.mkdir(name, _Modes.folder, dir_fd=fd)


def _is_link(name: str, fd: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True  # it was one a moment ago, or nobody knows
