"""What every workspace does, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from sequencer import Cancellation, OutcomeStatus
from sequencer.engine.workspace import AttemptFolder, InnerWorkspace, Workspace
from sequencer.errors import WorkTreeRefused
from tests.contract.workspace_cases import SITES, Site, at_once, commit, files_of
from tests.unit.git.clones import OPENED, claim, head, said
from tests.unit.saying import attempt


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield SITES[request.param](tmp_path)
    while OPENED:
        OPENED.pop().close()


@pytest.mark.slow(sample=1)
def test_accepted_work_arrives_once(site: Site) -> None:
    for name in ("a.txt", "b.txt"):
        assert site.worked(name).error is None
    site.finish()
    assert site.arrived("a.txt")
    assert site.arrived("b.txt")
    log = said(site.bare or site.home, "log", "--format=%s", "main").splitlines()
    assert [log.count(name) for name in ("a.txt", "b.txt")] == [1, 1]


def test_failed_work_is_not_accepted_and_not_lost(site: Site) -> None:
    site.worked("a.txt")
    site.worked("half.txt", OutcomeStatus.FAILED)
    assert site.is_somewhere("half.txt")
    is_apart = site.workspace.opens or site.workspace.moves
    assert site.arrived("half.txt") is not is_apart
    site.finish()
    assert site.arrived("half.txt") is not is_apart
    assert site.arrived("a.txt")


def test_interrupted_work_is_not_lost(site: Site) -> None:
    site.worked("half.txt", OutcomeStatus.INTERRUPTED)
    assert site.is_somewhere("half.txt")
    site.restart()
    site.workspace.clean([])
    assert site.is_somewhere("half.txt")


def test_work_of_a_killed_process_is_not_lost(site: Site) -> None:
    site.worked("a.txt")
    folder = site.opened()
    commit(folder.cwd, "killed.txt")
    site.head = site.head.replace(claims=())
    site.restart()
    site.workspace.clean([])
    assert site.is_somewhere("killed.txt")
    assert site.is_somewhere("a.txt")


def test_closing_a_folder_again_gives_the_same_result(site: Site) -> None:
    folder = site.opened()
    commit(folder.cwd, "a.txt")
    first = folder.close(OutcomeStatus.OK, at_once)
    assert folder.close(OutcomeStatus.OK, at_once) == first
    assert first.error is None


def test_it_can_be_left_and_inspected_at_any_time(site: Site) -> None:
    workspace, before = site.workspace, site.head.model_dump()
    workspace.leave(None)
    workspace.ensure_ready(site.head)
    workspace.ensure_ready(site.head)
    assert workspace.find_obstacle(site.head) is None
    workspace.leave(site.head)
    workspace.publish(site.head)
    site.worked("a.txt")
    workspace.leave(None)
    assert site.head.model_dump().keys() == before.keys()


def test_a_persons_files_are_unchanged(site: Site) -> None:
    (site.home / "mine.txt").write_text("mine\n")
    before = dict(files_of(site.home))
    try:
        site.worked("a.txt")
    except WorkTreeRefused as refused:
        assert "mine.txt" in refused.message  # noqa: PT017 - only where code moves
        assert site.workspace.moves, "only code that moves could take it along"
    after = dict(files_of(site.home))
    assert {name: after.get(name) for name in before} == before


def test_the_agent_works_where_the_code_is(site: Site) -> None:
    site.worked("a.txt")
    folder = site.opened()
    assert (folder.cwd / "a.txt").is_file(), "what was accepted before"
    assert said(folder.cwd, "rev-parse", "--is-inside-work-tree") == "true"
    if site.workspace.opens:
        assert folder.cwd != site.home
    else:
        assert (folder.cwd, type(folder)) == (site.home, AttemptFolder)


def test_code_moves_together_with_the_state(site: Site) -> None:
    held = claim(0, 1)
    site.worked("a.txt")
    work = site.head.work
    assert (work is not None) is site.workspace.moves
    if work is None:
        assert site.workspace.refs == {}
        assert site.workspace.keep(held, "main", site.head) is None
    else:
        assert site.bare is not None
        assert said(site.bare, "cat-file", "-t", work.commit) == "commit"


class Recorded(Workspace):
    """Notes what it is asked, and answers with that."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._asked: list[tuple[str, tuple[object, ...]]] = []

    def __getattribute__(self, name: str) -> Any:
        found = getattr(Workspace, name, None)
        if name.startswith("_") or found is None:
            return object.__getattribute__(self, name)
        return name if isinstance(found, property) else partial(self._note, name)

    def _note(self, name: str, *given: object) -> tuple[str, tuple[object, ...]]:
        self._asked.append((name, given))
        return self._asked[-1]


QUESTIONS = sorted(
    name
    for name, found in vars(Workspace).items()
    if not name.startswith("_") and (callable(found) or isinstance(found, property))
)


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_inner_workspace_asks_the_outer_one(name: str, tmp_path: Path) -> None:
    """A question that is added to `Workspace` must be asked of the outer one as well."""
    assert name in vars(InnerWorkspace)
    outer = Recorded(tmp_path)
    answer = getattr(InnerWorkspace(outer), name)
    found = vars(Workspace)[name]
    if isinstance(found, property):
        assert answer == name
        return
    given = tuple(object() for _ in list(signature(found).parameters)[1:])
    answered = answer(*given)
    assert outer._asked == [(name, given)]
    assert answered == (None if signature(found).return_annotation == "None" else (name, given))


def test_the_project_folder_needs_no_preparation(tmp_path: Path) -> None:
    workspace, state = Workspace(tmp_path / "not there"), head()
    workspace.begin(state, Cancellation())
    assert workspace.open(attempt("main")).cwd == workspace.folder
    workspace.end(state)
    assert not workspace.folder.exists()
