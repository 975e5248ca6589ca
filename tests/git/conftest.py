"""What the tests of shared runs have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer import Store
from tests.clones import Shared
from tests.contract import store_cases as cases
from tests.git.transports import Deed, Server
from tests.scratch_folders import scratch_folder


@pytest.fixture(scope="session")
def clones_at_rest(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Some clones, to be copied: that is cheaper than git."""
    made = Shared(tmp_path_factory.mktemp("clones") / "shared")
    for name in ("ours", "theirs", "fresh"):
        made.clone(name)
    return made


@pytest.fixture(scope="session")
def two_steps(tmp_path_factory: pytest.TempPathFactory, clones_at_rest: Shared) -> Shared:
    """A run with two accepted steps, which two of three clones know."""
    made = Shared(tmp_path_factory.mktemp("run") / "shared", clones_at_rest)
    ours, theirs = made.store("ours"), made.store("theirs")
    cases.begin(ours)
    for store in (ours, theirs):
        cases.commit(store, cases.claim(store).token)
    ours.pull()
    made.close()
    return made


@pytest.fixture(scope="session")
def one_claim(tmp_path_factory: pytest.TempPathFactory, clones_at_rest: Shared) -> Shared:
    """A run whose first step the clone "ours" has claimed."""
    made = Shared(tmp_path_factory.mktemp("claim") / "shared", clones_at_rest)
    ours = made.store("ours")
    cases.begin(ours)
    cases.claim(ours)
    made.close()
    return made


@pytest.fixture
def shared(tmp_path: Path, clones_at_rest: Shared) -> Iterator[Shared]:
    """A repository with clones, whose stores are closed in the end."""
    made = Shared(tmp_path / "shared", clones_at_rest)
    yield made
    made.close()


@pytest.fixture
def after_two_steps(tmp_path: Path, two_steps: Shared) -> Iterator[Shared]:
    """The same, with a run that has begun."""
    made = Shared(tmp_path / "shared", two_steps)
    yield made
    made.close()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder on a disk: in memory nothing takes long enough for others to come between."""
    with scratch_folder() as made:
        yield made


@pytest.fixture
def held(tmp_path: Path, one_claim: Shared) -> Iterator[tuple[Shared, Store, Server]]:
    """A run with a claim of ours; the next push has no answer, and lands when the test says."""
    shared, server = Shared(tmp_path / "shared", one_claim), Server(tmp_path / "server")
    ours = shared.store("ours")
    ours.pull()
    Server(server.folder, [Deed.HELD]).install(shared.clone("ours"))
    yield shared, ours, server
    shared.close()
