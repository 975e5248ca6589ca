"""Linked folders and lying agents, in the amount of every push."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boundary import linked_folders, lying_agent
from tests.long.report import Size


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_link_that_replaces_a_folder_is_not_followed(tmp_path: Path) -> None:
    report = linked_folders.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["cases"] >= 10


@pytest.mark.timeout(600)
def test_a_lying_agent_gains_nothing(tmp_path: Path) -> None:
    report = lying_agent.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["lies"] >= 8
