"""Code of which a killed fetch has brought a part: never half checked out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sequencer.errors import StateRefused
from sequencer.model.head import Head, Work
from tests.unit.git.clones import (
    Clone,
    clone,
    commit,
    everything,
    git,
    head,
    pair,
    porcelain,
    said,
)

FILES = {"code/a": "1\n", "code/b": "2\n"}


def object_path(repository: Path, oid: str) -> Path:
    objects = repository if (repository / "objects").is_dir() else repository / ".git"
    return objects / "objects" / oid[:2] / oid[2:]


def two_commits(tmp_path: Path) -> tuple[Path, Clone, Head, list[str]]:
    """Return the remote, the clone that is behind, its state, and what it needs of objects."""
    bare, here, there = pair(tmp_path)
    first = commit(there, FILES)
    tip = commit(there, {"code/c": "3\n"})
    git(there, "push", "-q", "origin", "main")
    told = said(there, "rev-list", "--objects", "--no-object-names", f"{first}^..{tip}")
    work = Work(branch="main", commit=tip)
    return bare, clone(here), head(work, step_index=1), told.split()


def copied(bare: Path, here: Path, oids: list[str]) -> None:
    for oid in oids:
        to = object_path(here, oid)
        to.parent.mkdir(exist_ok=True)
        if not to.exists():
            shutil.copy(object_path(bare, oid), to)


@pytest.mark.parametrize("share", [1, 2, 4])
def test_what_a_killed_fetch_has_brought_is_brought_whole(share: int, tmp_path: Path) -> None:
    """Of commits, trees and files in this order, as git unpacks them."""
    bare, one, state, oids = two_commits(tmp_path)
    copied(bare, one.folder, oids[:share])
    one.carrier.ready(state)
    one.carrier.arrive(state)
    assert state.work is not None
    assert said(one.folder, "rev-parse", "HEAD") == state.work.commit
    assert porcelain(one.folder) == []
    assert (one.folder / "code/c").read_text() == "3\n"


def fetched(one: Clone) -> str:
    """Fetch what the run's code is at, and return the name of one of its files."""
    for remote, local in one.carrier.refs.items():
        git(one.folder, "fetch", "-q", "origin", f"+{remote}:{local}")
    return said(one.folder, "rev-parse", f"{one.carrier._local}:code/b")


def test_what_is_missing_behind_the_ref_is_brought_again(tmp_path: Path) -> None:
    _, one, state, _ = two_commits(tmp_path)
    blob = fetched(one)
    object_path(one.folder, blob).unlink()
    one.carrier.ready(state)
    one.carrier.arrive(state)
    assert porcelain(one.folder) == []
    assert (one.folder / "code/b").read_text() == "2\n"


def test_what_nobody_has_whole_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    bare, one, state, _ = two_commits(tmp_path)
    blob = fetched(one)
    for repository in (one.folder, bare):
        object_path(repository, blob).unlink()
    one.carrier.ready(state)
    before = everything(one.folder)
    with pytest.raises(StateRefused):
        one.carrier.arrive(state)
    assert everything(one.folder) == before
