"""Folders of the tests in which processes race."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scratch_folders import scratch_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder on a disk: in memory nothing takes long enough for others to come between."""
    with scratch_folder() as made:
        yield made
