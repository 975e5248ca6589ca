"""One real server for all tests of the fleet: on free ports of this machine, its data in a folder
of its own, and ended by its id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fleet.fleet_projects import FleetProject

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from tests.fleet.server import TemporalServer, find_program

TTL_S = 3
EVENTS = 120
"""Of one execution: a long history is the same as a short one, but takes a while to make."""


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server; return where it listens."""
    if find_program() is None:
        pytest.skip("the program of the Temporal server is not installed")
    short = ["--dynamic-config-value", f"limit.historyCount.suggestContinueAsNew={EVENTS}"]
    with TemporalServer(tmp_path_factory.mktemp("server"), short) as server:
        yield server.address


@pytest.fixture
def project(tmp_path: Path, address: str) -> Callable[[str], FleetProject]:
    """Return what makes a project of this configuration on the server."""
    store = f'store: {{kind: temporal, address: "{address}", ttl_s: {TTL_S}, project: {{}}}}'

    def make(configuration: str) -> FleetProject:
        name = tmp_path.name
        named = store.replace("{}", name)
        return FleetProject(tmp_path / name, configuration, named)

    return make


@pytest.fixture
def pair(
    project: Callable[[str], FleetProject], tmp_path: Path
) -> Callable[[str], tuple[FleetProject, FleetProject]]:
    """Return what makes the same project twice: on the server, and in files."""

    def make(configuration: str) -> tuple[FleetProject, FleetProject]:
        files = FleetProject(tmp_path / "files" / tmp_path.name, configuration, "")
        return project(configuration), files

    return make
