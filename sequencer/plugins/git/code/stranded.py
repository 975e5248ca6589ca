"""Commits that an agent has made in a worktree and went away from, on another branch or on none.

What merges a worktree asks for its HEAD, so a commit that HEAD has left is merged by nobody, and
git forgets one without a branch. git's own log of HEAD tells what was left by a checkout or a
switch; each such commit gets a branch beside that of the worktree and is named until it is merged,
or until that branch is removed.

Not promised: commits that were never checked out, that `reset` or `rebase` has replaced (that is
a decision), or where git keeps no log of HEAD (``core.logAllRefUpdates``).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from sequencer.errors import typed_command
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
    """Commits that no merge of a run or a task takes in."""

    branch: str
    """Made for them; whoever removes it drops them."""
    commits: int
    others: tuple[str, ...] = ()
    """Branches that have them as well."""

    @property
    def words(self) -> str:
        """Return what a person should know."""
        is_one = self.commits == 1
        number = "1 commit of an agent is" if is_one else f"{self.commits} commits of agents are"
        also = f" (also on {', '.join(self.others)})" if self.others else ""
        merge = typed_command("git", "merge", self.branch)
        return (
            f"{number} merged nowhere: branch {self.branch}{also}. {merge} takes "
            "what is there in; once that branch is gone, it is not mentioned any more"
        )


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
        made.append(_described(git, name, tip, known))
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


def _described(git: Git, name: str, tip: str, known: Collection[str]) -> Stranded:
    count = int(git.text("rev-list", "--count", tip, "--not", *known))
    form = "--format=%(refname:lstrip=2)"
    told = git.text("for-each-ref", form, f"--contains={tip}", "refs/heads/").splitlines()
    return Stranded(name, count, tuple(one for one in told if not LEFT_BRANCH.fullmatch(one)))


def listed(git: Git, folders: Collection[str]) -> Iterator[Stranded]:
    """Yield what was left below the refs *folders* and is not in the commit that is checked out.

    Raises:
        GitFailed: git can't tell.
    """
    form = "--format=%(objectname) %(refname:lstrip=2)"
    for line in git.text("for-each-ref", "--no-merged=HEAD", form, *folders).splitlines():
        tip, _, name = line.partition(" ")
        if LEFT_BRANCH.fullmatch(name):
            yield _described(git, name, tip, ["HEAD"])
