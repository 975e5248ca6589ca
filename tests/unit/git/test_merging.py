"""Merges into the checkout, and what happens when it has moved elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.plugins.git.code import checkout as merging
from sequencer.plugins.git.code import checkout as shared
from sequencer.plugins.git.code.checkout import Checkout, ClosedFolder, FolderResult, Merge
from sequencer.plugins.git.code.task_folders import OwnTaskFolder
from sequencer.plugins.git.code.worktrees import Worktree
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.store.identity import this_process
from tests.unit.git.clones import ENVIRONMENT, commit, git, porcelain, said, tree_of, write
from tests.unit.git.teams import (
    branches,
    checkout_at,
    closed,
    folders,
    is_sound,
    on_disk,
    opened,
    project,
    remains,
    users,
    workplaces,
)

Work = Callable[[Path], object]
LINES = "".join(f"{number}\n" for number in range(30))


def edits(name: str, text: str) -> Work:
    return lambda at: write(at, {name: text})


def removes(name: str) -> Work:
    return lambda at: (at / name).unlink()


def renames(name: str, other: str) -> Work:
    return lambda at: (at / name).rename(at / other)


def links(name: str, target: str) -> Work:
    def work(at: Path) -> None:
        (at / name).unlink(missing_ok=True)
        (at / name).symlink_to(target)

    return work


def runs(name: str) -> Work:
    return lambda at: (at / name).chmod(0o755)


def writes_bytes(name: str, data: bytes) -> Work:
    return lambda at: (at / name).write_bytes(data)


def becomes_folder(at: Path) -> None:
    (at / "a").unlink()
    write(at, {"a/b": "below\n"})


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": LINES, "b": "b\n", "dir/c": "c\n"})


CONFLICTS: dict[str, tuple[Work, Work, str]] = {
    "edit and edit": (edits("b", "one\n"), edits("b", "two\n"), "b"),
    "edit and delete": (edits("b", "one\n"), removes("b"), "b"),
    "delete and edit": (removes("b"), edits("b", "two\n"), "b"),
    "add and add": (edits("n", "one\n"), edits("n", "two\n"), "n"),
    "binary": (writes_bytes("x", b"\0one"), writes_bytes("x", b"\0two"), "x"),
    "renamed apart": (renames("a", "p"), renames("a", "q"), "a"),
    "links": (links("b", "a"), links("b", "dir/c"), "b"),
    "a folder where the other edits": (edits("a", "one\n"), becomes_folder, "a"),
    "blanks and line ends": (edits("-x \n'ä", "one\n"), edits("-x \n'ä", "two\n"), "-x \n'ä"),
}


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", CONFLICTS)
def test_work_that_cannot_be_merged_is_a_conflict_and_nothing_is_lost(
    here: Path, name: str
) -> None:
    first, second, path = CONFLICTS[name]
    places = workplaces(here)
    one, two = opened(places, "one", 1), opened(places, "two", 2)
    first(one.cwd)
    second(two.cwd)
    work = on_disk(two.cwd)
    assert closed(one).result is FolderResult.MERGED
    before = users(here)
    left = closed(two)
    assert left.result is FolderResult.CONFLICT
    assert path in {file.partition("~")[0] for file in left.files}
    assert left.error is not None
    assert left.branch == "sequencer-team/default/two-2"
    assert users(here) == before
    assert tree_of(here, left.branch) == work
    assert remains(here) == []


def at_both_ends(at: Path) -> None:
    text = (at / "a").read_text() if (at / "a").exists() else (at / "moved").read_text()
    (at / ("a" if (at / "a").exists() else "moved")).write_text(f"{text}end\n")


FITTING: dict[str, tuple[Work, Work, dict[str, str]]] = {
    "different files": (
        *(edits("b", "one\n"), edits("dir/c", "two\n")),
        {"b": "100644 one\n", "dir/c": "100644 two\n"},
    ),
    "both ends of a file": (
        *(edits("a", f"begin\n{LINES}"), at_both_ends),
        {"a": f"100644 begin\n{LINES}end\n"},
    ),
    "renamed and edited": (
        *(renames("a", "moved"), at_both_ends),
        {"moved": f"100644 {LINES}end\n"},
    ),
    "mode and content": (runs("b"), edits("b", "two\n"), {"b": "100755 two\n"}),
    "the same": (edits("n", "same\n"), edits("n", "same\n"), {"n": "100644 same\n"}),
    "names": (
        *(edits("-rf", "1\n"), edits('a b\n"c"\\ä', "2\n")),
        {"-rf": "100644 1\n", 'a b\n"c"\\ä': "100644 2\n"},
    ),
    "a link and a binary": (
        *(links("l", "dir/c"), writes_bytes("x", b"\0\n\xc3")),
        {"l": "120000 dir/c"},
    ),
}


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", FITTING)
def test_compatible_changes_are_merged(here: Path, name: str) -> None:
    first, second, wanted = FITTING[name]
    places = workplaces(here)
    one, two = opened(places, "one", 1), opened(places, "two", 2)
    first(one.cwd)
    second(two.cwd)
    assert closed(one).result is FolderResult.MERGED
    assert closed(two).result is FolderResult.MERGED
    found = tree_of(here)
    assert {path: found[path] for path in wanted} == wanted
    assert (porcelain(here), branches(here), remains(here)) == ([], [], [])


# --- the checkout moves meanwhile --------------------------------------------------------


class Moving(Checkout):
    """A checkout in which somebody commits just before it is moved, so many times."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__(folders(folder), Git(folder, ENVIRONMENT))
        self.left = times

    def move_to(self, commit_name: str) -> GitFailed | None:
        if self.left:
            self.left -= 1
            commit(self.top, {f"by-hand-{self.left}": "h\n"})
        return super().move_to(commit_name)


def with_work(
    folder: Path, tmp_path: Path, checked_out: str | None = "main"
) -> tuple[Git, str, Worktree]:
    """Return git in a worktree with a commit, the commit, and a note."""
    at = tmp_path / "worktree"
    git(folder, "worktree", "add", "-q", "--detach", str(at))
    note = Worktree(
        name="work-1",
        task="work",
        token=1,
        run_id="r",
        branch="work-1",
        base=said(folder, "rev-parse", "HEAD"),
        owner=this_process(),
        checked_out=checked_out,
    )
    made = commit(at, {"x": "x\n"}, "work")
    placed = Git(folder, ENVIRONMENT).with_folder(at, git_dir=folder / ".git/worktrees/worktree")
    return placed, made, note


def test_a_commit_at_the_last_moment_is_included_in_the_merge(here: Path, tmp_path: Path) -> None:
    placed, tip, note = with_work(here, tmp_path)
    merged = Merge(Moving(here, 2), placed, note, "merge\n", None).perform(tip)
    assert merged.result is FolderResult.MERGED
    assert said(here, "rev-parse", "HEAD") == merged.commit
    assert {"x", "by-hand-0", "by-hand-1"} <= set(tree_of(here))
    assert said(here, "log", "--first-parent", "--format=%s").splitlines() == [
        *("merge", "by hand", "by hand", "first")
    ]


def test_a_merge_gives_up_when_a_person_keeps_committing(here: Path, tmp_path: Path) -> None:
    placed, tip, note = with_work(here, tmp_path)
    merged = Merge(Moving(here, 1000), placed, note, "merge\n", None).perform(tip)
    assert merged.result is FolderResult.IN_THE_WAY
    assert "keeps committing there" in str(merged.error)
    assert "x" not in tree_of(here)


def test_unrelated_histories_are_not_a_conflict(here: Path, tmp_path: Path) -> None:
    placed, _, note = with_work(here, tmp_path)
    git(placed.folder, "checkout", "-q", "--orphan", "alone")
    git(placed.folder, "commit", "-q", "-m", "root")
    alone = said(placed.folder, "rev-parse", "HEAD")
    merged = Merge(checkout_at(here), placed, note, "merge\n", None).perform(alone)
    assert merged.result is FolderResult.IN_THE_WAY
    assert "unrelated histories" in str(merged.error)


# --- another branch is checked out -------------------------------------------------------


class Switching(Checkout):
    """A checkout in which somebody goes to a branch that is behind, while a merge is made."""

    looks = 0

    def checked_out_branch(self) -> str:
        self.looks += 1
        if self.looks == 2:
            git(self.top, "checkout", "-q", "release")
        return super().checked_out_branch()


def test_a_branch_switched_to_during_the_merge_gets_nothing(here: Path, tmp_path: Path) -> None:
    git(here, "branch", "release")
    commit(here, {"unreleased": "u\n"})
    placed, tip, note = with_work(here, tmp_path)
    merged = Merge(
        Switching(folders(here), Git(here, ENVIRONMENT)), placed, note, "merge\n", None
    ).perform(tip)
    assert merged.result is FolderResult.IN_THE_WAY
    assert "started on main, but release is checked out" in str(merged.error)
    assert not {"x", "unreleased"} & set(tree_of(here, "release"))
    assert "x" not in tree_of(here, "main")


# --- git fails, and yet it is done -------------------------------------------------------


# --- many at once ------------------------------------------------------------------------

THREADS, EACH = 2, 3


def team(folder: Path, who: str) -> None:
    """Let threads open, work, and merge at once; each conflict would be an error."""
    places = workplaces(folder)
    found: list[FolderResult] = []

    def work(thread: int) -> None:
        for number in range(EACH):
            task = f"{who}-{thread}-{number}"
            place = opened(places, task, 100 * thread + number)
            write(place.cwd, {f"made/{task}": f"{task}\n"})
            found.append(closed(place).result)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [FolderResult.MERGED] * (THREADS * EACH)


@pytest.mark.slow
def test_two_processes_of_two_threads_each_add_and_merge_at_once(here: Path) -> None:
    pids = []
    for who in ("p", "q"):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                team(here, who)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0]
    made = sorted(path.name for path in (here / "made").iterdir())
    assert made == sorted(
        f"{who}-{thread}-{number}"
        for who in "pq"
        for thread in range(THREADS)
        for number in range(EACH)
    )
    assert said(here, "rev-list", "--count", "--merges", "HEAD") == str(2 * THREADS * EACH)
    assert (porcelain(here), branches(here), remains(here)) == ([], [], [])
    assert is_sound(here)


BRANCH = "sequencer-team/default/implement-1"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return project(tmp_path / "site", {"a": "a\n"})


def place_with_work(site: Path) -> OwnTaskFolder:
    place = opened(workplaces(site))
    write(place.cwd, {"x": "x\n"})
    return place


def assert_kept(site: Path, left: ClosedFolder, reason: str, hint: str) -> None:
    """Assert that the work is on its branch, and that a person is told why and what to do."""
    assert (left.result, left.branch, left.files) == (FolderResult.IN_THE_WAY, BRANCH, ())
    assert left.error is not None
    assert left.hint is not None
    assert reason in left.error
    assert hint in left.hint
    assert f"then 'git merge {BRANCH}'" in left.hint
    assert "x" in tree_of(site, BRANCH)
    assert (porcelain(site), remains(site)) == ([], [])


def test_work_started_on_a_branch_is_not_merged_into_a_detached_head(site: Path) -> None:
    place = place_with_work(site)
    git(site, "checkout", "-q", "--detach")
    assert_kept(
        site, closed(place), "started on main, but no branch is checked out", "'git switch main'"
    )


def test_a_commit_that_a_person_has_dropped_does_not_come_back(site: Path) -> None:
    dropped = commit(site, {"mistake": "m\n"})
    place = place_with_work(site)
    git(site, "reset", "-q", "--hard", "HEAD~1")
    left = closed(place)
    short = dropped[:12]
    reason = f"no longer has commit {short}, which the work was started on"
    assert_kept(site, left, reason, f"'git cherry-pick {short}..{BRANCH}'")
    assert "mistake" not in tree_of(site)
    git(site, "cherry-pick", f"{short}..{BRANCH}")
    assert "x" in tree_of(site)
    assert "mistake" not in tree_of(site)


def test_a_commit_that_was_amended_is_dropped(site: Path) -> None:
    commit(site, {"b": "1\n"})
    place = place_with_work(site)
    git(site, "commit", "-q", "--amend", "-m", "said better")
    assert_kept(site, closed(place), "no longer has commit", "git cherry-pick")


@pytest.mark.parametrize("name", ["index.lock", "HEAD.lock", "refs/heads/main.lock"])
def test_a_lock_of_a_killed_git_is_named_with_what_to_do(
    site: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(shared, "INDEX_WAIT_S", 0.1)
    place = place_with_work(site)
    lock = site / ".git" / name
    lock.touch()
    before = users(site)
    left = closed(place)
    assert users(site) == before
    lock.unlink()
    assert porcelain(site) == []
    assert left.result is FolderResult.IN_THE_WAY
    assert left.hint is not None
    assert left.error is not None
    assert f"{lock} is a git lock: remove it if no git runs there" in left.error
    assert "or remove its lock, then" in left.hint
    assert left.branch == BRANCH


# --- git fails, and yet it is merged ---------------------------------------------------------


def failing_after_the_move(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let git fail so many times when it is asked for the commit behind a fast-forward."""
    left = [times]
    forward, commit_of = shared.Checkout.move_to, shared.Checkout.checked_out_commit
    moved: list[str] = []

    def moves(self: shared.Checkout, name: str) -> GitFailed | None:
        moved.append(name)
        return forward(self, name)

    def fails(self: shared.Checkout) -> str | None:
        if moved and left[0]:
            left[0] -= 1
            raise GitFailed(("rev-parse",), 128, "fatal: out of memory")
        return commit_of(self)

    monkeypatch.setattr(shared.Checkout, "move_to", moves)
    monkeypatch.setattr(shared.Checkout, "checked_out_commit", fails)


def test_a_finished_merge_is_reported_even_if_git_fails_afterwards(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_with_work(site)
    failing_after_the_move(monkeypatch, 1)
    left = closed(place)
    assert (left.result, left.error, left.branch) == (FolderResult.MERGED, None, None)
    assert left.commit == said(site, "rev-parse", "HEAD")
    assert (branches(site), remains(site)) == ([], [])
    assert "x" in tree_of(site)


def test_a_failure_before_anything_has_moved_is_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_with_work(site)

    def fails(*_: object) -> None:
        raise GitFailed(("merge",), 128, "fatal: out of memory")

    monkeypatch.setattr(merging.Merge, "create_merge_commit", fails)
    left = closed(place)
    assert (left.result, left.folder, left.branch) == (FolderResult.REFUSED, place.folder, BRANCH)
    assert left.error is not None
    assert "out of memory" in left.error
    assert "x" not in tree_of(site)


# --- branches whose work somebody has merged -------------------------------------------------


def kept(site: Path, token: int = 1, run: str | None = None) -> str:
    """Return a branch with work that was not accepted."""
    place = opened(workplaces(site, run), "implement", token)
    write(place.cwd, {f"x{token}": "x\n"})
    left = closed(place, is_accepted=False)
    assert left.branch is not None
    return left.branch


def test_branches_are_removed_once_the_checkout_has_all_of_their_work(site: Path) -> None:
    merged, open_still = kept(site, 1), kept(site, 2)
    git(site, "branch", f"{merged}.left", "main")
    assert workplaces(site).clean(()) == ()
    assert branches(site) == [merged, open_still]
    git(site, "merge", "-q", merged)
    assert workplaces(site).clean(()) == ()
    assert branches(site) == [open_still]
    assert "x2" in tree_of(site, open_still)


def test_a_branch_held_by_a_worktree_or_a_note_stays(site: Path, tmp_path: Path) -> None:
    works = opened(workplaces(site), "works", 1)
    git(site, "branch", "sequencer-team/default/noted-2")
    (site / "sync/worktrees/noted-2.json").write_text("{ half a note")
    git(site, "branch", "sequencer-team/default/held-3")
    git(
        site,
        "worktree",
        "add",
        "-q",
        str(tmp_path / "held"),
        "sequencer-team/default/held-3",
    )
    git(site, "branch", "sequencer-team/default/free-4")
    workplaces(site).clean([1])
    names = ["held-3", "noted-2", "works-1"]
    assert branches(site) == [f"sequencer-team/default/{name}" for name in names]
    assert works.cwd.is_dir()


def test_cleaning_is_silent_when_the_repository_is_missing(site: Path) -> None:
    kept(site)
    (site / ".git").rename(site / "gone")
    assert workplaces(site).clean(()) == ()


def test_an_interrupted_merge_is_not_taken_for_a_commit_the_agent_left(site: Path) -> None:
    """A kill between the merge in the worktree and the checkout leaves it behind."""
    place = place_with_work(site)
    note = place._worktree
    git(place.cwd, "add", "-A")
    git(place.cwd, "commit", "-q", "-m", "work")
    write(site, {"mine": "m\n"})
    git(site, "add", "-A")
    git(site, "commit", "-q", "-m", "mine")
    for argv in (
        ("checkout", "-q", "--detach", said(site, "rev-parse", "HEAD")),
        ("merge", "-q", "--no-ff", "-m", place._trees.notes.merge_message(note), note.branch),
        ("checkout", "-q", note.branch),
        ("checkout", "-q", "--detach", "HEAD"),
        ("commit", "-q", "--allow-empty", "-m", "an agent's"),
        ("checkout", "-q", note.branch),
    ):
        git(place.cwd, *argv)
    left = closed(place)
    assert left.result is FolderResult.MERGED
    refs = f"refs/heads/{note.branch}.left*"
    kept = said(site, "for-each-ref", "--format=%(contents:subject)", refs)

    assert kept == "an agent's"
