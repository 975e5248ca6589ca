"""What moves the code of a project's runs, and what is committed there after a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from sequencer.assembly.stores import state_path_of
from sequencer.checkout.carrier import GitCarrier
from sequencer.checkout.options import NONE
from sequencer.checkout.tenancy import Tenancy
from sequencer.checkout.tree import Folders, WorkTree
from sequencer.engine.carrier import NOTHING_CARRIED, Carrier, Collected, NothingCarried
from sequencer.executors.redaction import Redaction
from sequencer.model.head import Claim, Head
from sequencer.settings.settings import Settings
from sequencer.store.git.objects import Objects
from sequencer.store.git.remote import Remote
from sequencer.store.git.store import GitStore
from sequencer.store.protocol import Store


def make_carrier(
    settings: Settings,
    run: str | None,
    remote: Remote,
    objects: Objects,
    *,
    redaction: Redaction,
    environment: Mapping[str, str] | None = None,
) -> Carrier:
    """Return what moves the code of the run called *run* between the work tree and *remote*."""
    if settings.store.work.branch == NONE:
        return NothingCarried()
    tree = work_tree(settings, objects, environment, remote.git.allowed)
    return GitCarrier(
        tree,
        remote,
        Tenancy(tree, run, state_path_of(settings, run)),
        run=run,
        work=settings.store.work,
        commit=settings.commit,
        redaction=redaction,
    )


def carrier_of(settings: Settings, run: str | None, store: Store, redaction: Redaction) -> Carrier:
    """Return what moves the code of the run that *store* keeps: nothing, where that is no git."""
    if not isinstance(store, GitStore):
        return NOTHING_CARRIED
    branch = store.branch
    carrier = make_carrier(settings, run, branch.remote, branch.objects, redaction=redaction)
    return carrier if isinstance(carrier, NothingCarried) else StoreCarrier(carrier, store)


class StoreCarrier:
    """A carrier whose code is fetched and pushed by the store of its run, with the state."""

    def __init__(self, carrier: Carrier, store: GitStore) -> None:
        """Have *store* move what *carrier* says."""
        self._carrier = carrier
        self._store = store
        store.branch.code_refs = lambda: carrier.refs

    @property
    def refs(self) -> dict[str, str]:
        """See `Carrier.refs`."""
        return self._carrier.refs

    def ready(self, head: Head) -> None:
        """See `Carrier.ready`; on the newest code, somebody may have pushed some."""
        self._store.branch.carried = self._carrier.refs
        self._store.bring()
        with self._told():
            self._carrier.ready(self._store.view().head or head)

    def arrive(self, head: Head) -> None:
        """See `Carrier.arrive`."""
        self._carrier.arrive(head)

    def collect(self, claim: Claim, step: str, head: Head) -> Collected | None:
        """See `Carrier.collect`; what it returns moves with the next state that names it."""
        with self._told():
            found = self._carrier.collect(claim, step, head)
        self._store.branch.cargo = None if found is None else found.move
        return found

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        """See `Carrier.keep`."""
        with self._told():
            return self._carrier.keep(claim, step, head)

    def leave(self, head: Head | None) -> None:
        """See `Carrier.leave`."""
        self._carrier.leave(head)

    def take_notices(self) -> list[str]:
        """See `Carrier.take_notices`; mostly they are among those of the store."""
        return self._carrier.take_notices()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Hand what is found in the block to the store, which is asked for notices more often."""
        try:
            yield
        finally:
            self._store.branch.drafting.notices += self._carrier.take_notices()


def work_tree(
    settings: Settings,
    objects: Objects,
    environment: Mapping[str, str] | None = None,
    allowed: Mapping[str, str] | None = None,
) -> WorkTree:
    """Return the work tree that the project lies in; nothing is started before it is asked.

    *allowed*: see `Git`.
    """
    return WorkTree(folders_of(settings, settings.state_file), objects, environment, allowed)


def folders_of(settings: Settings, state_file: Path) -> Folders:
    """Return where the program itself writes in the project, for a run with *state_file*."""
    return Folders(
        settings.project_dir,
        state_file,
        settings.logs_dir,
        tuple(_posted(settings)),
    )


def _posted(settings: Settings) -> Iterator[Path]:
    """Yield the files of the project that activities are written to."""
    for sink in settings.activity.sinks.values():
        if sink.path is not None:
            yield settings.project_dir / sink.path
