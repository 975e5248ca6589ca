"""The arguments for the parts of a store kind: structs, so that a new field breaks no package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from sequencer.engine.events import Emit
from sequencer.executors.redaction import Redaction
from sequencer.model.head import Head
from sequencer.project.settings import Settings
from sequencer.store.protocol import Store

EVERYTHING: Mapping[str, str] = MappingProxyType({"": "everything"})
"""Allows every setting of a repository, including later ones."""


class RepositoryInspector(Struct, frozen=True):
    """Reads the repository around a project without running any of its code."""

    acting_settings: Callable[[Path, str | None], Mapping[str, str]]
    """Returns the settings of a folder's repository that run programs or contact other machines;
    of the remotes, only those of the named one. Empty if there is no repository."""
    taken_out: Callable[[Collection[str], Path, Path], Collection[str]]
    """Returns the names that are missing in a work tree (the first folder) although the project's
    repository (the second) checked them out there."""


class StoreRequest(Struct, frozen=True):
    """The arguments for creating a store."""

    settings: Settings
    state_path: Path
    """Path of the run's head file; a store on a server still keeps results in that folder."""
    run: str | None
    """Name of the run; None: the default run."""
    to_head: Callable[[dict[str, Any]], Head]
    """Converts a state file of an earlier program to a head."""
    allowed: Callable[[], Mapping[str, str] | None]
    """Returns the repository settings that git may act on; None: the command only reads, so git
    may contact no machine. It asks for trust, so call it only if you need it."""
    redact: Callable[[str], str] = str
    """Removes secrets from text that people write into the run's files."""


class CodeRequest(Struct, frozen=True):
    """The arguments for creating the code sync of a run."""

    settings: Settings
    run: str | None
    store: Store
    redaction: Redaction
    allowed: Callable[[], Mapping[str, str] | None]
    """Returns the repository settings that git may act on, as in `StoreRequest`."""
    emit: Emit


class CheckRequest(Struct, frozen=True):
    """The arguments for a store kind's part of `check`."""

    settings: Settings
    store: Store
    acts: bool
    """Whether its remote may be reached."""
