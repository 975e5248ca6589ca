"""Ends the processes that read repositories, test by test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.git.clones import OPENED


@pytest.fixture(autouse=True)
def _readers_are_closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()
