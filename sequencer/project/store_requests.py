"""What the parts of a kind of store are made from: one value each, so a new need breaks nobody."""

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
"""As what a repository's own configuration may do: whatever it has, now and later."""


class RepositoryInspector(Struct, frozen=True):
    """How to look at a repository around a project, without running anything of it."""

    acting_settings: Callable[[Path, str | None], Mapping[str, str]]
    """Returns what the configuration of a folder's repository has that runs programs, or sends
    elsewhere; of remotes only what is of the named one. Empty where there is no repository."""
    taken_out: Callable[[Collection[str], Path, Path], Collection[str]]
    """Returns which of some names are missing in a work tree (the first folder) although the
    repository of the project (the second) has brought them there."""


class StoreRequest(Struct, frozen=True):
    """What a store is made from."""

    settings: Settings
    state_path: Path
    """Of the run's head; a store that is elsewhere keeps its results in that folder."""
    run: str | None
    """Name of the run; None: the default one."""
    to_head: Callable[[dict[str, Any]], Head]
    """Makes a head of a state file that an earlier program has written."""
    allowed: Callable[[], Mapping[str, str] | None]
    """Returns which settings of the repository's own git may act on; None: the run is only looked
    at, so that nothing may be reached. It asks for trust, so call it only if you need it."""
    redact: Callable[[str], str] = str
    """Removes secrets from what people write into the files of the run."""


class CodeRequest(Struct, frozen=True):
    """What moves the code of a run is made from."""

    settings: Settings
    run: str | None
    store: Store
    redaction: Redaction
    allowed: Callable[[], Mapping[str, str] | None]
    """As in `StoreRequest`: which settings of the repository git may act on."""
    emit: Emit


class CheckRequest(Struct, frozen=True):
    """What a kind of store is to look at for `check`."""

    settings: Settings
    store: Store
    acts: bool
    """Whether its remote may be reached."""
