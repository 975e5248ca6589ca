"""Work trees of one repository, each with a run of its own branch or with the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.git.own_settings import EVERYTHING
from sequencer.git.process import UNWRITABLE, GitFailed
from sequencer.git.store import GitOptions, GitStore


def store_of(tree: Path) -> GitStore:
    return GitStore(tree / "sync" / "state.json", tree, None, GitOptions(), allowed=EVERYTHING)


# --- what is in the way in a repository ------------------------------------------------


@pytest.mark.parametrize(
    ("stderr", "is_local"),
    [
        ("fatal: write error: No space left on device\nfatal: fetch-pack: invalid output", True),
        ("error: unable to create temporary file: Permission denied", True),
        ("error: insufficient permission for adding an object to repository database", True),
        ("remote: fatal: write error: No space left on device", False),
        ("remote: error: cannot lock ref 'refs/heads/x'", False),
        ("ssh: connect to host x port 22: Connection refused", False),
        ("fatal: early EOF", False),
    ],
)
def test_whose_fault_it_is_is_told_by_gits_words(stderr: str, *, is_local: bool) -> None:
    assert GitFailed(("fetch",), 128, stderr).says(UNWRITABLE) is is_local
