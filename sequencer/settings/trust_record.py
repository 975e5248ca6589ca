"""What a person has trusted on this machine: one record of theirs for each project.

The records are in the state folder of the user (``$XDG_STATE_HOME`` or ``~/.local/state``),
never in a project. One that somebody else could have written is refused. On a machine
without people ``SEQUENCER_TRUST`` names folders, or ``all``; inside of an agent it does not
count.

Not promised: protection from an agent that may write any file of its user. It can write a
record as it can write a shell's start file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import StorageFailed, UnsafePath
from sequencer.settings.location import CONFIG_NAME, is_inside_agent
from sequencer.settings.trust import Acts

VARIABLE = "SEQUENCER_TRUST"
ALL = "all"
_NAME = re.compile(r"[0-9a-f]{32}\.json")
_MAX_BYTES = 4 * 1024 * 1024
_OTHERS = 0o077
_HINT = "remove it, then 'sequencer trust' asks again"


class Trusted(Struct, frozen=True):
    """One record."""

    project: str
    """The folder, or the configuration file where that has a name of its own."""
    at: str
    acts: Acts


def is_vouched_for(folder: Path, env: Mapping[str, str] | None = None) -> bool:
    """Return whether ``SEQUENCER_TRUST`` names *folder*, or one that it is in."""
    given = (os.environ if env is None else env).get(VARIABLE, "").strip()
    if not given or is_inside_agent(env):
        return False
    if given == ALL:
        return True
    real = Path(os.path.realpath(folder))
    named = (Path(entry) for entry in given.split(":") if entry)
    return any(real.is_relative_to(os.path.realpath(one)) for one in named if one.is_absolute())


def project_key(folder: Path, config: Path | None) -> str:
    """Return what a record is about: the real folder, with the file where it is another one."""
    real = os.path.realpath(folder)
    return real if config is None or config.name == CONFIG_NAME else f"{real}/{config.name}"


def read(key: str) -> Trusted | None:
    """Return what was trusted of the project with *key*; None: it was never asked about.

    Raises:
        UnsafePath: the record is a link, or others could have written it.
    """
    with contextlib.suppress(FileNotFoundError), _folder() as folder:
        found = _read(folder, _name(key))
        return found if found is not None and found.project == key else None
    return None


def keep(key: str, acts: Acts) -> None:
    """Record that *acts* of the project with *key* are trusted.

    Raises:
        StorageFailed: it can't be written. UnsafePath: see `read`.
    """
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    caps = {name: None if math.isinf(most) else most for name, most in acts.caps.items()}
    content: dict[str, Any] = {"project": key, "at": at, "digest": acts.digest, "acts": acts.lines}
    content |= {"grants": sorted(acts.grants), "caps": caps}
    temporary = f".{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with _folder(is_made=True) as folder:
            fd = os.open(temporary, flags, 0o600, dir_fd=folder)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
                file.flush()
                os.fsync(fd)
            os.replace(temporary, _name(key), src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise StorageFailed(f"can't be written: {error.strerror}", where=str(place())) from error


def forget(key: str) -> bool:
    """Remove the record of the project with *key*; return whether there was one."""
    with contextlib.suppress(FileNotFoundError), _folder() as folder:
        os.unlink(_name(key), dir_fd=folder)
        return True
    return False


def everything() -> Iterator[Trusted]:
    """Yield every record, by project; see `read` for what it raises."""
    with contextlib.suppress(FileNotFoundError), _folder() as folder:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]  # noqa: PTH208
        found = (_read(folder, name) for name in names)
        yield from sorted(filter(None, found), key=lambda one: one.project)


def place() -> Path:
    """Return the folder of the records."""
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.local/state").expanduser()
    return base / "sequencer" / "trust"


def _name(key: str) -> str:
    return f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.json"


@contextlib.contextmanager
def _folder(*, is_made: bool = False) -> Iterator[int]:
    """Open the folder of the records; nobody but this user may write in it."""
    path = place()
    if is_made:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (path.parent, path):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
    fd = os.open(path.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parts[-2:]:
            below = _opened(part, os.O_DIRECTORY, fd, path)
            os.close(fd)
            fd = below
            _ensure_own(fd, path)
        yield fd
    finally:
        os.close(fd)


def _opened(name: str, flags: int, folder: int, shown: Path) -> int:
    try:
        return os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnsafePath(
            f"can't be trusted: {error.strerror}", where=str(shown), hint=_HINT
        ) from error


def _ensure_own(fd: int, shown: Path) -> None:
    facts = os.fstat(fd)
    if facts.st_uid != os.geteuid():
        raise UnsafePath("belongs to another user", where=str(shown), hint=_HINT)
    is_folder = stat.S_ISDIR(facts.st_mode)
    if not is_folder and not stat.S_ISREG(facts.st_mode):
        raise UnsafePath("is no regular file", where=str(shown), hint=_HINT)
    if stat.S_IMODE(facts.st_mode) & _OTHERS:
        hint = f"'chmod go= {shown}' if nobody else has changed it; or {_HINT}"
        raise UnsafePath("others may read or write it", where=str(shown), hint=hint)


def _read(folder: int, name: str) -> Trusted | None:
    shown = place() / name
    with os.fdopen(_opened(name, 0, folder, shown), "rb") as file:
        _ensure_own(file.fileno(), shown)
        data = file.read(_MAX_BYTES + 1)
    try:
        return _parsed(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # A damaged record is none: the person is asked again.
        return None


def _parsed(content: Any) -> Trusted | None:
    caps = {
        str(name): math.inf if most is None else float(most)
        for name, most in content["caps"].items()
    }
    lines = tuple(str(line) for line in content["acts"])
    acts = Acts(lines, frozenset(str(line) for line in content["grants"]), caps)
    if acts.digest != content["digest"]:
        return None
    return Trusted(str(content["project"]), str(content["at"]), acts)
