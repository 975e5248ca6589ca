from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.store.file import FileStore
from tests.unit.posting.desk import Desk, Reply, open_desk
from tests.unit.posting.runs import begin, new_store


@pytest.fixture(name="store")
def fixture_store(tmp_path: Path) -> FileStore:
    return begin(new_store(tmp_path))


@pytest.fixture(name="desk")
def fixture_desk() -> Iterator[Desk]:
    """Give a server that says yes; tests of one kind of sink have their own."""
    with open_desk(Reply(200, {"data": {"agentActivityCreate": {"success": True}}})) as desk:
        yield desk
