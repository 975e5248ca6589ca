"""The stores of a project: where a run is kept, by kind.

A new one is one module and one line in `STORES`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sequencer.assembly.workflow_choice import definition_of, place_of, workflow_for
from sequencer.errors import UnknownName
from sequencer.logs import witness_of
from sequencer.model.by_hand import Placed
from sequencer.model.head import Head
from sequencer.model.line.order import place
from sequencer.model.names import slug
from sequencer.model.transitions import Place
from sequencer.plugins import plugin, plugin_names
from sequencer.settings.settings import Settings
from sequencer.store.file import FileStore
from sequencer.store.head import migrate
from sequencer.store.identity import utc_now
from sequencer.store.protocol import Store
from sequencer.store.recovery import Witness, no_witness


def _file_store(
    settings: Settings,
    state_path: Path,
    to_head: Callable[..., Head],
    *,
    placed: Placed = lambda _: None,
) -> Store:
    options = settings.store
    return FileStore(
        state_path,
        ttl_s=options.ttl_s,
        allow_network_fs=options.allow_network_fs,
        rotate_bytes=options.journal.rotate_bytes,
        keep=options.journal.keep,
        migrate=to_head,
        placed=placed,
        witness=witness_for(settings, state_path),
    )


def witness_for(settings: Settings, state_path: Path) -> Witness:
    """Return what asks the step logs of the run whose head is at *state_path*.

    A store that other machines share has the shared copy to compare with.
    """
    if settings.store.kind != "file":
        return no_witness
    is_default = state_path == settings.state_file
    return witness_of(settings.logs_dir, None if is_default else state_path.parent.name)


def _git_store(
    settings: Settings,
    state_path: Path,
    to_head: Callable[..., Head],
    *,
    allowed: Mapping[str, str] | None = None,
    placed: Placed = lambda _: None,
) -> Store:
    from sequencer.git.store import (  # noqa: PLC0415 - most runs are kept in files
        GitOptions,
        GitStore,
    )

    chosen, plain = settings.store, GitOptions()

    def own(value: Any, unset: Any, *path: str) -> Any:
        """Return *value*, or this kind's default where nothing was written."""
        return unset if settings.sources[("store", *path)].kind == "default" else value

    options = GitOptions(
        remote=chosen.remote,
        branch=chosen.branch,
        timeout_s=chosen.timeout_s,
        max_commits=chosen.max_commits,
        fast_s=chosen.poll.fast_s,
        slow_s=chosen.poll.slow_s,
        patience_s=chosen.patience_s,
        ttl_s=own(chosen.ttl_s, plain.ttl_s, "ttl_s"),
        rotate_bytes=own(
            chosen.journal.rotate_bytes, plain.rotate_bytes, "journal", "rotate_bytes"
        ),
        keep=own(chosen.journal.keep, plain.keep, "journal", "keep"),
    )
    is_default = state_path == settings.state_file
    run = None if is_default else state_path.parent.name
    return GitStore(
        state_path, settings.project_dir, run, options, to_head, allowed=allowed, placed=placed
    )


STORES: Mapping[str, Callable[..., Store]] = {
    "file": _file_store,
    "git": _git_store,
}
"""``store.kind`` -> how it is made."""


def state_path_of(settings: Settings, run: str | None) -> Path:
    """Return the path of a run's head; the default run's is ``state_file`` itself."""
    if run is None:
        return settings.state_file
    return settings.state_file.parent / "runs" / slug(run) / settings.state_file.name


def make_store(
    settings: Settings, run: str | None, allowed: Mapping[str, str] | None = None
) -> Store:
    """Return the store of a run.

    *allowed* are settings of the repository's own that git may act on; None: it may not even
    reach a remote, because the run is only looked at.

    Raises:
        UnknownName: there is no store of that kind.
    """
    kind = settings.store.kind
    make = STORES.get(kind) or plugin("sequencer.stores", kind)
    if make is None:
        known = STORES.keys() | plugin_names("sequencer.stores")
        raise UnknownName("store kind", kind, known, where="store.kind")

    def to_head(raw: dict[str, Any]) -> Head:
        workflow = workflow_for(settings, None)
        legacy_name = raw.get("workflow_name")
        if isinstance(legacy_name, str) and legacy_name in settings.registry.names:
            is_default = settings.sources[("workflow", "name")].kind == "default"
            workflow = settings.registry.get(legacy_name) if is_default else workflow
        return migrate(
            raw,
            new_run_id=str(uuid.uuid4()),
            workflow_name=workflow.name,
            digest=workflow.digest(),
            params=workflow.params,
            expected_step_for=lambda index: place(workflow, index).step,
            at=utc_now(),
            cycle_length=len(workflow.steps),
        )

    def placed(head: Head) -> Place | None:
        return place_of(settings, head, None if run is None else definition_of(store))

    more: dict[str, Any] = {"placed": placed} if kind in STORES else {}
    if make is _git_store:
        more["allowed"] = allowed
    store: Store = make(settings, state_path_of(settings, run), to_head, **more)
    return store
