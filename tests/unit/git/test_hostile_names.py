"""Names that a shell, an option parser or a pathspec would read as something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.project.schema import CommitOptions
from tests.unit.git.clones import clone, git, head, pair, said, write


@pytest.mark.parametrize("branch", ["feature/x", "ä", "UPPER", "a.b", "x" * 100, "a,b", "$(x)"])
def test_hostile_branch_names_are_pushed_unchanged(tmp_path: Path, branch: str) -> None:
    bare, here, _ = pair(tmp_path)
    git(here, "switch", "-q", "-c", branch)
    one = clone(here, commit=CommitOptions(paths=("a",)))
    one.carrier.ensure_ready(head())
    write(here, {"a": "1"})
    state = one.push(head())
    assert state.work is not None
    assert state.work.branch == branch
    assert said(bare, "rev-parse", f"refs/heads/{branch}") == state.work.commit
    one.carrier.ensure_ready(state)
