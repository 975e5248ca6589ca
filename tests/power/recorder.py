"""Write down every call by which a program changes the files below a folder.

The calls of `os` are replaced where they are looked up, in `os` and in modules that have
taken them from there; files that are opened by name go through `os.open` as well. Whether
nothing is missed is shown by comparing with what strace sees.
"""

from __future__ import annotations

import fcntl
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.power.disk import ROOT, Enter, Op, Remove, Rename, Resize, Sync, Tree, Write

CALLS = ("open", "write", "posix_fallocate", "ftruncate", "fsync", "fdatasync", "fdopen")
NAMED = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "truncate")
REMOVING = ("unlink", "remove", "rename", "replace")
_MODES = {
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}


class Plain:
    """A file without a buffer, so that its writes pass through `os.write`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, data: bytes | str) -> int:
        left = memoryview(data.encode() if isinstance(data, str) else data)
        while left:
            left = left[os.write(self.fd, left) :]
        return len(data)

    def writelines(self, lines: Iterable[bytes | str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Nothing is held back."""

    def fileno(self) -> int:
        return self.fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.fd)


@contextmanager
def replaced(calls: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace these functions of `os`, also where a module of the program has bound them."""
    real = {name: getattr(os, name) for name in calls}
    taken = [
        (module, attribute, name)
        for module in [m for n, m in sys.modules.items() if n.startswith("sequencer.")] + [os]
        for attribute, value in vars(module).items()
        for name, function in real.items()
        # remove and unlink are one function, and so may others be.
        if value is function and (module is not os or attribute == name)
    ]
    for module, attribute, name in taken:
        setattr(module, attribute, calls[name])
    try:
        yield
    finally:
        for module, attribute, name in taken:
            setattr(module, attribute, real[name])


class Recorder:
    """The calls below *folder*, as `ops`."""

    def __init__(self, folder: Path, first_node: int = 1) -> None:
        """Give new files and folders numbers from *first_node* on."""
        self.folder = folder
        self.ops: list[Op] = []
        self._base = f"{folder}/"
        self._next = first_node
        self._nodes: dict[tuple[int, int], int] = {}
        self._real: dict[str, Callable[..., Any]] = {}
        self._learn(folder, ROOT)

    def know(self, nodes: dict[str, int]) -> None:
        """Learn which *nodes* stand for the paths that are there already."""
        for name, node in nodes.items():
            self._learn(self.folder / name, node)

    def read(self) -> Tree:
        """Return what is there now, with a new number for each file and folder."""
        tree = Tree()
        for path in sorted(self.folder.rglob("*")):
            found = path.lstat()
            if (found.st_dev, found.st_ino) not in self._nodes:
                self._learn(path, self._number())
            node = self._nodes[found.st_dev, found.st_ino]
            is_folder = path.is_dir()
            tree.enter(Enter(self._node(path.parent), path.name, node, is_folder))
            if not is_folder:
                tree.files[node] = path.read_bytes()
        return tree

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Write down what happens in the block."""
        # Not every system has all of them.
        wrapped = {name: self._wrap(name) for name in CALLS if hasattr(os, name)}
        wrapped |= {name: self._wrap_named(name) for name in NAMED}
        self._real = {name: getattr(os, name) for name in wrapped}
        real_open = io.open
        io.open = self._open_file  # type: ignore[assignment]
        try:
            with replaced(wrapped):
                yield
        finally:
            io.open = real_open

    # --- calls -----------------------------------------------------------------------

    def _wrap(self, name: str) -> Callable[..., Any]:
        before: Callable[..., Any] = getattr(self, f"_{name}")
        return before

    def _wrap_named(self, name: str) -> Callable[..., Any]:
        note: Callable[..., None] = getattr(self, f"_note_{name}")

        def call(path: Any, *args: Any, **options: Any) -> Any:
            full = self._full(path, options.get("dir_fd") or options.get("src_dir_fd"))
            if full is None:
                return self._real[name](path, *args, **options)
            node = self._nodes.get(_identity(full)) if os.path.lexists(full) else None
            if name in ("rename", "replace", "link"):
                args = (self._full(args[0], options.get("dst_dir_fd")) or args[0], *args[1:])
            gone = args[0] if name in ("rename", "replace") else full
            victim = os.lstat(gone) if gone and os.path.lexists(gone) else None
            result = self._real[name](path, *args, **options)
            note(full, node, *args)
            if victim and victim.st_nlink == 1 and name in REMOVING:
                # The file system may give its number to a file that is none of ours.
                self._nodes.pop((victim.st_dev, victim.st_ino), None)
            return result

        return call

    def _open_file(self, path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        flags = _MODES.get(mode.strip("bt"))
        if flags is None or self._full(path, None) is None:
            assert "+" not in mode, f"{path} is opened for reading and writing"
            return open(path, mode, *args, **options)  # noqa: PTH123 (takes its place)
        return Plain(os.open(path, flags | os.O_CLOEXEC, 0o644))

    def _fdopen(self, fd: int, mode: str = "r", *args: Any, **options: Any) -> Any:
        is_plain = mode == "wb" and self._of(fd) is not None
        return Plain(fd) if is_plain else self._real["fdopen"](fd, mode, *args, **options)

    def _open(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        full = self._full(path, options.get("dir_fd"))
        was_there = full is not None and os.path.lexists(full)
        fd: int = self._real["open"](path, flags, *args, **options)
        if full is not None and not was_there and flags & os.O_CREAT:
            self._enter(full)
        elif full is not None and flags & os.O_TRUNC:
            self.ops.append(Resize(self._node(full), 0))
        return fd

    def _write(self, fd: int, data: Any) -> int:
        node = self._of(fd)
        if node is None:
            return int(self._real["write"](fd, data))
        is_append = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
        offset = os.fstat(fd).st_size if is_append else os.lseek(fd, 0, os.SEEK_CUR)
        written = int(self._real["write"](fd, data))
        self.ops.append(Write(node, offset, bytes(data)[:written]))
        return written

    def _posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        self._real["posix_fallocate"](fd, offset, length)
        if (node := self._of(fd)) is not None:
            self.ops.append(Resize(node, os.fstat(fd).st_size))

    def _ftruncate(self, fd: int, length: int) -> None:
        self._real["ftruncate"](fd, length)
        if (node := self._of(fd)) is not None:
            self.ops.append(Resize(node, length))

    def _fsync(self, fd: int) -> None:
        self._real["fsync"](fd)
        if (node := self._of(fd)) is not None:
            self.ops.append(Sync(node))

    def _fdatasync(self, fd: int) -> None:
        self._real["fdatasync"](fd)
        if (node := self._of(fd)) is not None:
            self.ops.append(Sync(node))

    # --- calls that name what they change --------------------------------------------

    def _note_mkdir(self, path: str, _node: int | None, *_: Any) -> None:
        self._enter(path, is_folder=True)

    def _note_rmdir(self, path: str, _node: int | None, *_: Any) -> None:
        self.ops.append(Remove(*self._place(path)))

    _note_unlink = _note_remove = _note_rmdir

    def _note_rename(self, path: str, node: int | None, target: Any, *_: Any) -> None:
        folder, name = self._place(path)
        full = self._full(target, None)
        assert full is not None
        assert node is not None
        to_folder, new = self._place(full)
        assert to_folder == folder, f"{path} is moved to another folder"
        self.ops.append(Rename(folder, name, new, node))

    _note_replace = _note_rename

    def _note_link(self, _path: str, node: int | None, target: Any, *_: Any) -> None:
        full = self._full(target, None)
        assert full is not None
        assert node is not None
        self.ops.append(Enter(*self._place(full), node))

    def _note_symlink(self, path: str, *_: Any) -> None:
        message = f"symbolic links are not recorded: {path}"
        raise AssertionError(message)

    def _note_truncate(self, _path: str, node: int | None, length: int, *_: Any) -> None:
        assert node is not None
        self.ops.append(Resize(node, length))

    # --- names -----------------------------------------------------------------------

    def _full(self, path: Any, dir_fd: int | None) -> str | None:
        """Return the whole path if it is below the folder."""
        if isinstance(path, int):
            return None
        full = os.fsdecode(path)
        if dir_fd is not None and not full.startswith("/"):
            full = f"{Path(f'/proc/self/fd/{dir_fd}').readlink()}/{full}"
        full = os.path.abspath(full)  # noqa: PTH100 (a link must not be followed)
        return full if full.startswith(self._base) else None

    def _enter(self, path: str, *, is_folder: bool = False) -> None:
        node = self._number()
        self._learn(Path(path), node)
        self.ops.append(Enter(*self._place(path), node, is_folder))

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _learn(self, path: Path, node: int) -> None:
        # A number of the file system comes back when a file is gone; the newest is meant.
        self._nodes[_identity(path)] = node

    def _node(self, path: Path | str) -> int:
        identity = _identity(path)
        assert identity in self._nodes, f"how {path} was made was not recorded"
        return self._nodes[identity]

    def _place(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return self._node(folder), name

    def _of(self, fd: int) -> int | None:
        found = os.fstat(fd)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            return None
        return self._nodes.get((found.st_dev, found.st_ino))


def _identity(path: Path | str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
