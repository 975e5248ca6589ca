"""Read a file that someone else may have made: it must be regular and not too large."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sequencer.errors import ConfigurationError

MAX_BYTES = 1024 * 1024


def read_bytes(path: Path, limit: int = MAX_BYTES, flags: int = 0) -> bytes:
    """Return the content of a regular file of at most *limit* bytes; *flags* are added for open.

    Raises:
        ConfigurationError: it can't be read, is not a regular file (reading a fifo would
            block), or is too large for a configuration.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", where=str(path)) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigurationError("is not a regular file", where=str(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", where=str(path)) from error
    finally:
        os.close(fd)
    if len(data) > limit:
        raise ConfigurationError(f"has more than {limit} bytes", where=str(path))
    return data
