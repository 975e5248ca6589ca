"""Kinds of stores: what each can do. The rest of the program never asks for one by its name.

`store.kind` of orchestration.yaml names one: ``file``, which is here, or one of the group
`extensions.STORES`. A new kind is one module with a `StoreKind` in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sequencer import extensions
from sequencer.packages import ensure_fields
from sequencer.store.protocol import Store


class StoreKind(Struct, frozen=True):
    """One kind of store."""

    name: str
    make: str | Callable[..., Any]
    """Makes the store of a run from a `StoreRequest`; as text ``MODULE:NAME`` it is loaded when it
    is needed."""
    is_local: bool = False
    """Whether a run is nothing but its files: there is no server or other copy to ask."""
    has_files: bool = True
    """Whether head and journal are files in the run's folder."""
    needs_trust: bool = False
    """Whether just looking at a run contacts a server that the project names."""
    code: str | None = None
    """What moves the code of accepted steps to other machines, by its name in `extensions.CODE`;
    None: nothing does."""
    carries_code: bool = False
    """Whether the code comes and goes with the record of the run: what a step needs may not be
    here before its claim, and the store keeps to `store.work.branch` itself."""
    max_open_journal_bytes: int | None = None
    """How large the open part of the journal may be; None: there is no limit."""
    checks: str | Callable[..., Any] | None = None
    """Yields what `check` has to say about it, each a `Diagnostic`, from a `CheckRequest`."""

    def __post_init__(self) -> None:
        """Reject wrong types of fields where the package creates it."""
        called, nothing = (str, Callable), type(None)
        ensure_fields(self, name=str, make=called, checks=(*called, nothing), code=(str, nothing))
        ensure_fields(self, max_open_journal_bytes=(int, nothing))

    def open(self, request: Any) -> Store:
        """Return the store of the run of *request*, a `StoreRequest`.

        Raises:
            ConfigurationError: the package that provides this kind failed, or returned
                something else.
        """
        with extensions.package_code(extensions.STORES, self.name):
            make = extensions.loaded(self.make)
        made: Store = extensions.create(extensions.STORES, self.name, Store, make, request)
        return made


FILE = StoreKind("file", "sequencer.project.runs:file_store", is_local=True)
"""Files of this machine."""
STORE_KIND = ("store", "kind")
"""The key that names one."""
COPY = StoreKind("copy", "sequencer.project.runs:copy_of_run")
"""The files in a run's folder, for reading, if its own kind of store is unavailable."""


NAMES = (FILE.name,)
"""The kinds that no package can have."""


def store_kind(name: str, where: str = "store.kind") -> StoreKind:
    """Return the kind of store called *name*.

    Raises:
        UnknownName: there is none; *where* says where it was named.
        ConfigurationError: it can't be loaded, or is something else.
    """
    if name == FILE.name:
        return FILE
    found: StoreKind = extensions.needed(
        extensions.STORES, name, "store kind", known=(FILE.name,), where=where
    )
    if found.name != name:
        # Its package is looked up by the name of the entry point.
        return replace(found, name=name)
    return found
