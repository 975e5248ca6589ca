"""Kinds of stores and their capabilities. The rest of the program never asks for a kind by name.

`store.kind` of orchestration.yaml names one: ``file``, from this module, or an entry of the group
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
    """Creates the store of a run from a `StoreRequest`. Text (``MODULE:NAME``) is loaded on first
    use."""
    is_local: bool = False
    """Whether a run is only its files: there is no server or other copy to compare with."""
    has_files: bool = True
    """Whether head and journal are files in the run's folder."""
    needs_trust: bool = False
    """Whether even reading a run contacts a server that the project names."""
    code: str | None = None
    """Name in `extensions.CODE` of the code sync that moves accepted code to other machines; None:
    code stays on this machine."""
    carries_code: bool = False
    """Whether code travels with the run's record: a step's code may be missing on this machine
    before its claim, and the store itself enforces `store.work.branch`."""
    max_open_journal_bytes: int | None = None
    """Maximum size of the open journal file; None: no limit."""
    checks: str | Callable[..., Any] | None = None
    """Yields each finding for `check`, a `Diagnostic`, from a `CheckRequest`."""

    def __post_init__(self) -> None:
        """Reject wrong types now, so that the traceback points into the package."""
        maker_types, none_type = (str, Callable), type(None)
        ensure_fields(
            self,
            name=str,
            make=maker_types,
            checks=(*maker_types, none_type),
            code=(str, none_type),
        )
        ensure_fields(self, max_open_journal_bytes=(int, none_type))

    def open(self, request: Any) -> Store:
        """Return the store of the run in *request*, a `StoreRequest`.

        Raises:
            ConfigurationError: the package that provides this kind failed, or returned
                something else.
        """
        with extensions.package_code(extensions.STORES, self.name):
            make = extensions.resolve_part(self.make)
        store: Store = extensions.create(extensions.STORES, self.name, Store, make, request)
        return store


FILE = StoreKind("file", "sequencer.project.runs:file_store", is_local=True)
"""Files on this machine."""
STORE_KIND = ("store", "kind")
"""The key that names a kind."""
COPY = StoreKind("copy", "sequencer.project.runs:copy_of_run")
"""Only reads the files in a run's folder, if the run's own kind of store is unavailable."""


NAMES = (FILE.name,)
"""Names of kinds that a package can't use."""


def store_kind(name: str, where: str = "store.kind") -> StoreKind:
    """Return the kind of store called *name*.

    Raises:
        UnknownName: there is no such kind; *where* is the place that names it.
        ConfigurationError: it can't be loaded, or is not a `StoreKind`.
    """
    if name == FILE.name:
        return FILE
    kind: StoreKind = extensions.require(
        extensions.STORES, name, "store kind", known=(FILE.name,), where=where
    )
    if kind.name != name:
        # Errors look up the package by the entry point's name, so use that name.
        return replace(kind, name=name)
    return kind
