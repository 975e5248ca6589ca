"""Work that no branch of a person's has yet: of runs that have ended, and commits left aside.

A run with a worktree may end without its merge, or be started over before it; its branch is named
until the branch it came from has its commits, or until it is removed. What merges a worktree asks
for its HEAD, so a commit that HEAD has left is merged by nobody, and git forgets one without a
branch. git's own log of HEAD tells what was left by a checkout or a switch; each such commit gets
a branch beside that of the worktree and is named in the same way.

Not promised: commits that were never checked out, that `reset` or `rebase` has replaced (that is
a decision), or where git keeps no log of HEAD (``core.logAllRefUpdates``). Work that was taken
over by a squash or a cherry-pick is not known to be merged.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from sequencer.engine.tree_state import UnmergedWork
from sequencer.errors import run_option
from sequencer.plugins.git.process import Git

MOST_READ = 1024 * 1024
"""Of the log of HEAD, at its end."""
MOST_TIPS = 100
_LEFT = re.compile(
    rb"^([0-9a-f]{40,64}) [0-9a-f]{40,64} [^\t\n]*\tcheckout: moving from ", re.MULTILINE
)
_NUMBERED = re.compile(r"\.left([0-9]*)")
LEFT_BRANCH = re.compile(r".+\.left[0-9]*")
"""The name of a branch that holds what was left."""


class Stranded(NamedTuple):
    """Commits that no merge of a run or a task takes in, or has taken in yet."""

    branch: str
    """Whoever removes it drops them."""
    commits: int
    others: tuple[str, ...] = ()
    """Branches that have them as well."""
    run: str | None = None
    """Whose work it is; None: of the default run."""
    is_of_run: bool = False
    """It is all that a run has done that has ended, or that was started over."""
    run_id: str = ""
    """Of that run; empty: nobody knows."""
    into: str = ""
    """The branch that the run was started on; empty: none, or nobody knows."""
    folder: str = ""
    """The worktree, if it has work that is in no commit."""
    is_gone: bool = False
    """The run itself was removed."""
    is_elsewhere: bool = False
    """Another branch than `into` is checked out."""
    frees: tuple[tuple[str, ...], ...] = ()
    """Commands without which git does not remove the branch: a worktree has it."""

    def told(self) -> UnmergedWork:
        """Return it in words."""
        return UnmergedWork(self.run, self.branch, self.words, self._commands(), self.run_id)

    def _commands(self) -> tuple[str, ...]:
        """Return the commands that merge it, and that drop it."""
        drop = "; ".join(map(shlex.join, (*self.frees, ("git", "branch", "-D", self.branch))))
        if not self.folder:
            switch = [("git", "switch", self.into)] if self.is_elsewhere else []
            return "; ".join(map(shlex.join, (*switch, ("git", "merge", self.branch)))), drop
        merge = shlex.join(("git", "-C", self.folder, "status"))
        if not self.is_gone:
            merge += f"; sequencer {run_option(self.run)}run"
        return merge, drop

    @property
    def words(self) -> str:
        """Return what a person should know."""
        return self._of_run if self.is_of_run else self._of_agents

    @property
    def _of_run(self) -> str:
        """Return the same of a run's work."""
        run = f"run {self.run!r}" if self.run else "the default run"
        is_one = self.commits == 1
        what = f"{self.commits} commit{'' if is_one else 's'} of {run}"
        where = f"branch {self.branch}"
        if self.folder:
            what, where = f"work of {run}", f"{self.folder}, {where}"
            is_one = True
        into = f" into {self.into}" if self.into else ""
        gone = ", which was removed," if self.is_gone else ""
        return f"{what}{gone} {'is' if is_one else 'are'} not merged{into}: {where}"

    @property
    def _of_agents(self) -> str:
        """Return the same of commits that agents went away from."""
        is_one = self.commits == 1
        number = "1 commit of an agent is" if is_one else f"{self.commits} commits of agents are"
        also = f" (also on {', '.join(self.others)})" if self.others else ""
        return f"{number} merged nowhere: branch {self.branch}{also}"


def log_size(place: Path) -> int:
    """Return how long the log of HEAD in *place* is; 0: there is none."""
    try:
        return (place / "logs" / "HEAD").lstat().st_size
    except OSError:
        return 0


def left_in(place: Path, start: int = 0) -> list[str]:
    """Return the commits that HEAD in *place* was moved away from, by its log from *start* on."""
    try:
        fd = os.open(place / "logs" / "HEAD", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return []
        told = os.pread(fd, MOST_READ, max(start, about.st_size - MOST_READ))
    except OSError:
        return []
    finally:
        os.close(fd)
    found = dict.fromkeys(match.decode() for match in _LEFT.findall(told))
    return [oid for oid in found if set(oid) != {"0"}][-MOST_TIPS:]


def stranded(git: Git, left: Collection[str], known: Collection[str]) -> list[str]:
    """Return those of the commits *left* that none of *known* has, nor another one of them.

    Raises:
        GitFailed: git can't tell.
    """
    if not left:
        return []
    told = git.text("rev-list", "--ignore-missing", *left, "--not", *known).split()
    lost = [oid for oid in left if oid in set(told)]
    return git.text("merge-base", "--independent", *lost).split() if lost else []


def keep(git: Git, branch: str, tips: Collection[str], known: Collection[str]) -> list[Stranded]:
    """Put each of *tips* on a branch beside *branch*; return those that were on none before.

    *known* are commits that have been merged or will be.

    Raises:
        GitFailed: git can't.
    """
    made = []
    for tip in tips:
        there = _kept(git, branch)
        if tip in there.values():
            continue
        number = max((int(n or 1) for n in map(_number, there) if n is not None), default=0) + 1
        name = f"{branch}.left{number if number > 1 else ''}"
        git.run("update-ref", f"refs/heads/{name}", tip, "")
        made.append(described(git, name, tip, known))
    return made


def _kept(git: Git, branch: str) -> dict[str, str]:
    """Return the branches beside *branch* that hold what was left, with their commits."""
    folder = branch.rpartition("/")[0]
    form = "--format=%(objectname) %(refname:lstrip=2)"
    told = git.text("for-each-ref", form, f"refs/heads/{folder}/").splitlines()
    named = (line.partition(" ")[::2] for line in told)
    return {name: oid for oid, name in named if name.startswith(f"{branch}.left")}


def _number(name: str) -> str | None:
    match = _NUMBERED.search(name)
    return None if match is None else match[1]


def described(git: Git, name: str, tip: str, known: Collection[str]) -> Stranded:
    """Return what branch *name*, made for the commit *tip*, has that none of *known* has.

    Raises:
        GitFailed: git can't tell.
    """
    count = int(git.text("rev-list", "--count", tip, "--not", *known))
    form = "--format=%(refname:lstrip=2)"
    told = git.text("for-each-ref", form, f"--contains={tip}", "refs/heads/").splitlines()
    return Stranded(name, count, tuple(one for one in told if not LEFT_BRANCH.fullmatch(one)))
