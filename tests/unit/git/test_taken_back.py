"""A run in git is compared with what this user has seen of it, after the newest was fetched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clones import Shared, git
from tests.unit.cli.calling import call
from tests.unit.cli.sharing import shared_project, steps

BRANCH = "refs/heads/sequencer/default"


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return shared_project(tmp_path)


@pytest.mark.slow
def test_older_files_in_a_clone_are_brought_up_to_date(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 1)
    older = Path(shutil.copytree(a / "sync", shared.folder / "older"))
    steps(a, 2)
    shutil.rmtree(a / "sync")
    shutil.copytree(older, a / "sync")
    steps(a, 1)
    history = call(a, "history", "--json").out
    assert history.count('"succeeded"') == 4


def test_a_branch_and_its_clone_that_both_went_back_are_refused(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 1)
    older, tip = Path(shutil.copytree(a / "sync", shared.folder / "older")), shared.tip()
    steps(a, 2)
    git(shared.bare, "update-ref", BRANCH, tip)
    shutil.rmtree(a / "sync")
    shutil.copytree(older, a / "sync")
    refused = call(a, "run", "--max-steps", "1")
    assert refused.code == 3
    assert "branch sequencer/default" in refused.err
    assert "token 3" in refused.err
    assert shared.tip() == tip
    record = refused.err.partition("or remove ")[2].partition(" to continue")[0]
    Path(record).unlink()
    steps(a, 1)
    assert shared.tip() != tip


def test_a_run_continues_after_taking_the_side_of_the_branch(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 1)
    tip = shared.tip()
    steps(a, 2)
    git(shared.bare, "update-ref", BRANCH, tip)
    assert call(a, "run", "--max-steps", "1").code == 3
    taken = call(a, "sync", "--take-theirs")
    assert taken.code == 0, taken.err
    steps(a, 1)


@pytest.mark.slow
def test_two_clones_on_one_machine_are_not_copies(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    for clone in (a, b, a, b):
        ended = call(clone, "run", "--max-steps", "1")
        assert ended.code == 0, ended.err
        assert "is a copy" not in ended.err
