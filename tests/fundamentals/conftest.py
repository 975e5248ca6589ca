"""The one fixture of the fundamentals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fundamentals.scratch import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a new project: supervisor and main take turns, a script is the agent."""
    return Project(tmp_path)
