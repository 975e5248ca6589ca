"""What a kill leaves behind, at every point at which it may come, and who cleans it up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sequencer.plugins.git.code import gathering as clearing
from sequencer.plugins.git.code.checkout import FolderResult
from sequencer.plugins.git.code.worktrees import Phase, Worktrees
from sequencer.plugins.git.process import Git
from sequencer.store.identity import boot_id
from tests.unit.git.clones import SECRET, git, porcelain, repository, said, tree_of, write
from tests.unit.git.teams import branches, closed, is_sound, opened, project, remains, workplaces

KILLED = 9
NO_MORE_POINTS = 0


class Deadline:
    """Ends this process, as a kill would, when a point is passed for the nth time."""

    def __init__(self, at: int) -> None:
        self.left = at

    def wrap(self, owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def passed(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                os._exit(KILLED)
            return function(*arguments, **named)

        setattr(owner, name, passed)


def in_child(work: Callable[[], None]) -> int:
    """Do *work* in a child and return how that ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = NO_MORE_POINTS
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def attempt(folder: Path, at: int, *, is_accepted: bool) -> int:
    """Make an attempt that is killed at its point number *at*; say in a file that it has worked."""

    def work() -> None:
        deadline = Deadline(at)
        for owner, name in (
            *((Git, "run"), (Worktrees, "write"), (Worktrees, "remove_note")),
            *((Worktrees, "prepare"), (clearing, "remove_folder")),
        ):
            deadline.wrap(owner, name)
        place = opened(workplaces(folder))
        write(place.cwd, {"a.py": "edited\n", "new.py": "new\n"})
        (folder.parent / "worked").touch()
        closed(place, is_accepted=is_accepted)

    return in_child(work)


def kills(tmp_path: Path, *, is_accepted: bool) -> Iterator[tuple[int, Path]]:
    """Yield a repository for each point at which the attempt was killed, and one for its end."""
    like = project(tmp_path / "like", {"a.py": "a\n"})
    # Until it has a place to work in, an attempt that is not accepted is as any other.
    code, at = KILLED, 0 if is_accepted else 10
    while code == KILLED:
        at += 1
        here = tmp_path / f"at-{at}" / "here"
        shutil.copytree(like, here)
        code = attempt(here, at, is_accepted=is_accepted)
        assert code in (KILLED, NO_MORE_POINTS)
        yield at, here


def has_work(folder: Path, name: str) -> bool:
    found = tree_of(folder, name)
    return found.get("a.py") == "100644 edited\n" and found.get("new.py") == "100644 new\n"


@pytest.mark.slow
@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_kill_at_any_point_loses_nothing_and_leaves_no_debris(
    tmp_path: Path, is_accepted: bool
) -> None:
    ends = set()
    for at, here in kills(tmp_path, is_accepted=is_accepted):
        places = workplaces(here)
        places.clean(())
        assert remains(here) == [], at
        assert porcelain(here) == [], at
        kept = branches(here)
        where = [name for name in ("main", *kept) if has_work(here, name)]
        assert is_accepted or (here.parent / "worked").exists()
        if (here.parent / "worked").exists():
            assert len(where) == 1, (at, where)
        # What is there is whole: no branch holds a half.
        assert set(kept) <= set(where), at
        ends.add(tuple(where))
        assert places.clean(()) == (), at
    assert is_sound(here)
    on_branch = ("sequencer-team/default/implement-1",)
    assert ends == ({(), on_branch, ("main",)} if is_accepted else {on_branch})
    assert at > 15


def killed_while_working(here: Path, work: Callable[[Path], object]) -> None:
    def attempt_it() -> None:
        work(opened(workplaces(here)).cwd)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(attempt_it) == -signal.SIGKILL


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a.py": "a\n"})


def test_live_claims_and_live_processes_keep_their_worktrees(here: Path) -> None:
    killed_while_working(here, lambda at: write(at, {"a.py": "half\n"}))
    place = opened(workplaces(here), "other", 2)
    places = workplaces(here)
    assert places.clean([1]) == ()
    assert len(places.clean([2])) == 1
    # The token may be too new for who looked before it was granted.
    assert places.clean(()) == ()
    assert place.cwd.is_dir()
    write(place.cwd, {"x": "x\n"})
    assert closed(place).result is FolderResult.MERGED


def test_locks_of_a_killed_git_do_not_block_cleaning(here: Path) -> None:
    def work(at: Path) -> None:
        write(at, {"a.py": "half\n"})
        for name in ("index.lock", "HEAD.lock"):
            (here / ".git/worktrees/implement-1" / name).touch()
        (here / ".git/refs/heads/sequencer-team/default/implement-1.lock").touch()

    killed_while_working(here, work)
    assert len(workplaces(here).clean(())) == 1
    assert said(here, "show", "sequencer-team/default/implement-1:a.py") == "half"
    assert remains(here) == []


def test_a_killed_attempt_without_work_leaves_nothing(here: Path) -> None:
    killed_while_working(here, lambda _: None)
    assert workplaces(here).clean(()) == ()
    assert (remains(here), branches(here)) == ([], [])


def test_a_key_in_a_dead_worktree_stays_in_place_and_is_reported_once(here: Path) -> None:
    killed_while_working(here, lambda at: write(at, {"k": SECRET}))
    places = workplaces(here)
    told = places.clean(())
    assert len(told) == 2
    assert "'k' contains what looks like a key" in told[0]
    folder = here / "sync/worktrees/implement-1"
    assert str(folder) in told[1]
    assert places.clean(()) == ()
    assert (folder / "k").read_text() == SECRET
    git(here, "worktree", "remove", "--force", str(folder))
    places.clean(())
    assert (remains(here), branches(here)) == ([], [])


def test_another_repository_in_a_dead_worktree_is_not_lost(here: Path) -> None:
    def work(at: Path) -> None:
        repository(at / "vendor/x")
        write(at, {"y": "y\n"})

    killed_while_working(here, work)
    told = workplaces(here).clean(())
    assert "vendor/x" in told[0]
    assert said(here, "show", "sequencer-team/default/implement-1:y") == "y"
    assert (here / "sync/worktrees/implement-1/vendor/x/README.md").exists()


def test_a_worktree_with_an_unreadable_index_is_left_to_a_person(here: Path) -> None:
    def work(at: Path) -> None:
        write(at, {"a.py": "half\n"})
        (here / ".git/worktrees/implement-1/index").write_bytes(b"damaged")

    killed_while_working(here, work)
    told = workplaces(here).clean(())
    assert "can't be committed" in told[0]
    assert (here / "sync/worktrees/implement-1/a.py").read_text() == "half\n"
    assert workplaces(here).clean(()) == ()


def test_several_processes_clean_at_once(here: Path) -> None:
    for token in range(3):

        def attempt_it(token: int = token) -> None:
            place = opened(workplaces(here), f"task{token}", token)
            write(place.cwd, {f"f{token}": "x\n"})
            os._exit(KILLED)

        assert in_child(attempt_it) == KILLED
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            told: tuple[str, ...] = ("?",)
            try:
                told = workplaces(here).clean(())
            finally:
                os._exit(100 if any("branch" not in text for text in told) else len(told))
        pids.append(pid)
    counts = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert sum(counts) == 3
    assert len(branches(here)) == 3
    assert remains(here) == []


def test_git_that_is_killed_while_it_adds_leaves_nothing(here: Path, tmp_path: Path) -> None:
    """The checkout of a worktree is held up by a filter, and everything is killed."""
    begun = tmp_path / "begun"
    slow = f"sh -c 'cat; touch \"{begun}\"; sleep 30'"
    write(here, {".gitattributes": "*.slow filter=slow\n", "x.slow": "slow\n", "z": "z\n"})
    git(here, "add", "-A")
    git(here, "commit", "-q", "-m", "slow")
    git(here, "config", "filter.slow.smudge", slow)
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.unit.git.teams import opened, workplaces\n"
        "opened(workplaces(Path(sys.argv[1])))\n"
    )
    root = Path(__file__).parents[3]
    child = subprocess.Popen([sys.executable, "-c", script, str(here)], cwd=root)
    while not begun.exists():
        assert child.poll() is None
        time.sleep(0.02)
    family = [child.pid, *(one.pid for one in psutil.Process(child.pid).children(recursive=True))]
    for pid in family:
        os.kill(pid, signal.SIGKILL)
    child.wait()
    assert "implement-1" in remains(here)
    assert ".git/implement-1" in remains(here)
    workplaces(here).clean(())
    assert (remains(here), branches(here)) == ([], [])
    assert is_sound(here)


def test_a_process_of_another_container_is_given_time(here: Path) -> None:
    killed_while_working(here, lambda at: write(at, {"a.py": "half\n"}))
    worktrees = Worktrees(here / "sync")
    found = worktrees.read("implement-1")
    assert found is not None
    assert (found.phase, found.owner.boot_id) == (Phase.WORKING, boot_id())
    worktrees.write(found.replace(owner=found.owner.replace(pid_ns="pid:[1]")))
    assert workplaces(here).clean(()) == ()
    note = here / "sync/worktrees/implement-1.json"
    os.utime(note, (time.time() - 3600, time.time() - 3600))
    assert len(workplaces(here).clean(())) == 1
    assert remains(here) == []
