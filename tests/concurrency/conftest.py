"""Folders of the tests in which processes race."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder on a disk: in memory nothing takes long enough for others to come between."""
    with tempfile.TemporaryDirectory(prefix="sequencer-test-") as made:
        yield Path(made)
