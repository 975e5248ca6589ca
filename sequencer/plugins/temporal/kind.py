"""Declares Temporal as a kind of store, without importing Temporal's package."""

from __future__ import annotations

import os
import re
import socket
from types import ModuleType

from sequencer.engine.logs import git_folder
from sequencer.errors import ConfigurationError
from sequencer.files.textfile import slug
from sequencer.project.dependencies import extra_hint
from sequencer.project.schema import SHARED
from sequencer.project.store_kinds import StoreKind
from sequencer.project.store_requests import StoreRequest
from sequencer.store.protocol import Store

TEMPORAL = StoreKind(
    "temporal",
    "sequencer.plugins.temporal.kind:open_remote_store",
    has_files=False,
    needs_trust=True,
    code="attempts",
)
_ON_SERVERS = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""A project name that needs no escaping in a server's ids and queries."""


def import_worker_module() -> ModuleType:
    """Return the module that works on runs; it is slow to import, and most commands only read."""
    from sequencer.plugins.temporal import worker  # noqa: PLC0415 - see above

    return worker


def open_remote_store(request: StoreRequest) -> Store:
    """Return the store of a run on a server.

    Raises:
        ConfigurationError: the package that talks to it is not installed.
    """
    try:
        from sequencer.plugins.temporal import client, connection  # noqa: PLC0415 - half a second
    except ImportError as error:
        raise ConfigurationError(
            "runs on Temporal need a package that is not installed",
            where="store.kind",
            hint=extra_hint("fleet"),
        ) from error
    settings, store_options = request.settings, request.settings.store
    tls = None if store_options.tls is None else store_options.tls.model_dump(exclude_none=True)
    key = None if store_options.api_key_env is None else os.environ.get(store_options.api_key_env)
    project, place = store_options.project or settings.project_dir.name, store_options.queue
    if place is None:
        # Without git, nothing brings the files of a project to another machine.
        place = SHARED if git_folder(settings.project_dir) is not None else socket.gethostname()
    options = connection.FleetOptions(
        project=project if _ON_SERVERS.fullmatch(project) else slug(project),
        place="" if place == SHARED else place,
        address=store_options.address,
        namespace=store_options.namespace,
        tls=None if tls is None else tuple(tls.items()),
        api_key=key,
        ttl_s=store_options.ttl_s,
    )
    is_default = request.state_path == settings.state_file
    folder = None if is_default else request.state_path.parent.name
    return client.FleetStore(request.state_path, folder, options, import_worker_module)
