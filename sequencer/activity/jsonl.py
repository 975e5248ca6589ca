"""The sink that is a file: one JSON document a line.

Not promised: anything about a file that another program rewrites or cuts meanwhile.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path
from typing import ClassVar

from sequencer.activity.protocol import Post, Unreachable


class JsonlSink:
    """Appends each activity as a line; results are on the disk when `post` returns."""

    kind: ClassVar[str] = "jsonl"
    max_chars: ClassVar[int] = 1_000_000
    takes_thoughts: ClassVar[bool] = True

    def __init__(self, name: str, path: Path) -> None:
        """Write to *path*, made with its folder when there is something to write."""
        self.name = name
        self.path = path

    def post(self, post: Post) -> None:
        """See `Sink.post`; never through a link, and never into anything but a plain file."""
        text = json.dumps(post.document(), ensure_ascii=False)
        line = text.encode("utf-8", "replace") + b"\n"
        try:
            self._append(line, is_result=post.key is not None)
        except OSError as error:
            raise Unreachable(f"{self.path}: {error.strerror or error}") from error

    def _append(self, line: bytes, *, is_result: bool) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self.path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                message = "is no plain file"
                raise OSError(message)
            # Several runs may share the file; the lock goes with the descriptor.
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                # A line that a crash tore stays torn, and this one stays whole.
                line = b"\n" + line
            view = memoryview(line)
            while view:
                view = view[os.write(fd, view) :]
            if is_result:
                os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Do nothing: no descriptor stays open."""
