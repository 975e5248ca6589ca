"""Read a configuration file's bytes: bounded, regular files only, never waiting.

Apart from `reader`, so that a look for one word in a file costs no YAML parser.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sequencer.errors import ConfigurationError

MAX_BYTES = 1024 * 1024


def leads_out(path: Path, folder: Path) -> bool:
    """Return whether *path*, written as one in *folder*, is outside of it by way of a link.

    Whoever copied a project did not choose what its links lead to.
    """
    real = Path(os.path.realpath(path))
    return path.is_relative_to(folder) and not real.is_relative_to(os.path.realpath(folder))


def read_bytes(path: Path, limit: int = MAX_BYTES, flags: int = 0) -> bytes:
    """Return the content of a regular file of at most *limit* bytes, opened with *flags* too.

    Raises:
        ConfigurationError: it can't be read, is no regular file (a fifo would be waited
            for), or is too large to be a configuration.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", where=str(path)) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigurationError("is not a regular file", where=str(path))
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ConfigurationError(f"has more than {limit} bytes", where=str(path))
    return data
