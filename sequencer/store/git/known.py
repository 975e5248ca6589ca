"""remote.json: what this clone knew last of the branch of a run; for every process in it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from sequencer.errors import CorruptState
from sequencer.store import folder as folders
from sequencer.store.headfile import signature
from sequencer.store.journal_file import read_regular
from sequencer.store.strictjson import parse_object

_OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class Known:
    """The last commit of the branch that was seen, and whose run it holds."""

    remote: str
    branch: str
    tip: str
    revision: int
    at: str
    """When that was, for people."""


class KnownFile:
    """The file with what is known; replaced at once, under the lock of the run's folder."""

    def __init__(self, path: Path) -> None:
        """Keep it at *path*."""
        self.path = path
        self._seen: tuple[tuple[int, int, int], Known | None] | None = None

    def read(self) -> Known | None:
        """Return what is known; None: nothing, or nothing that can be read."""
        mark = signature(self.path)
        if mark is None:
            return None
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, self._parsed())
        return self._seen[1]

    def _parsed(self) -> Known | None:
        with contextlib.suppress(CorruptState, ValueError, TypeError, KeyError, FileNotFoundError):
            data = parse_object(read_regular(self.path, 0, 4096))
            known = Known(**{name: data[name] for name in Known.__slots__})
            if _OID.fullmatch(known.tip) and type(known.revision) is int:
                return known
        return None

    def write(self, known: Known) -> None:
        """Remember *known*; what can't be written is found out again from the remote."""
        fresh = f"{self.path.name}.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):
            folder = folders.made(self.path.parent)
            with os.fdopen(folder.create(fresh), "w", encoding="utf-8") as file:
                file.write(json.dumps(asdict(known), indent=2) + "\n")
            folder.replace(fresh, self.path.name)
