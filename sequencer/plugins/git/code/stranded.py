"""Work that is on no person's branch yet: of runs that have ended, and commits that HEAD has left.

A run with a worktree may end, or start over, without a merge. Its branch is reported until the
branch that it came from has its commits, or until it is removed. A merge takes the HEAD of a
worktree, so commits that HEAD has left are never merged, and git deletes commits without a branch.
Git's log of HEAD shows what a checkout or a switch has left; each such commit gets a branch, whose
name starts with the worktree's branch, and is reported too.

Not promised: commits that were never checked out, that `reset` or `rebase` has replaced (a
decision), or without a log of HEAD (``core.logAllRefUpdates``); merges by squash or cherry-pick.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from sequencer.engine.tree_state import UnmergedWork
from sequencer.errors import run_option
from sequencer.plugins.git.process import Git

MAX_READ = 1024 * 1024
"""How many bytes at the end of the log of HEAD are read."""
MAX_TIPS = 100
_LEFT = re.compile(
    rb"^([0-9a-f]{40,64}) [0-9a-f]{40,64} [^\t\n]*\tcheckout: moving from ", re.MULTILINE
)
_NUMBERED = re.compile(r"\.left([0-9]{0,18})(?![0-9])")
LEFT_BRANCH = re.compile(r".+\.left[0-9]*")
"""The name of a branch for commits that HEAD has left."""


class StrandedCommits(Struct, frozen=True):
    """Commits that no merge of a run or a task contains yet."""

    branch: str
    """The branch that keeps them; removing it drops them."""
    commits: int
    others: tuple[str, ...] = ()
    """Other branches that have them too."""
    run: str | None = None
    """The run that made them; None: the default run."""
    is_of_run: bool = False
    """Whether they are the whole work of a run that has ended or was started over."""
    run_id: str = ""
    """The id of that run; empty: not known."""
    into: str = ""
    """The branch that the run was started on; empty: none, or not known."""
    folder: str = ""
    """The worktree, if it has uncommitted work."""
    is_gone: bool = False
    """Whether the run itself was removed."""
    is_elsewhere: bool = False
    """Whether another branch than `into` is checked out."""
    frees: tuple[tuple[str, ...], ...] = ()
    """Commands that free the branch from its worktree; until then, git refuses to remove it."""

    def to_unmerged_work(self) -> UnmergedWork:
        """Return it as text and commands for people."""
        return UnmergedWork(self.run, self.branch, self.description, self._commands(), self.run_id)

    def _commands(self) -> tuple[str, ...]:
        """Return two command lines: one merges the work, the other drops it."""
        drop = "; ".join(map(shlex.join, (*self.frees, ("git", "branch", "-D", self.branch))))
        if not self.folder:
            switch = [("git", "switch", self.into)] if self.is_elsewhere else []
            return "; ".join(map(shlex.join, (*switch, ("git", "merge", self.branch)))), drop
        merge = shlex.join(("git", "-C", self.folder, "status"))
        if not self.is_gone:
            merge += f"; sequencer {run_option(self.run)}run"
        return merge, drop

    @property
    def description(self) -> str:
        """Return one sentence for a person: how much work, of which run, on which branch."""
        return self._run_description if self.is_of_run else self._agent_description

    @property
    def _run_description(self) -> str:
        run = f"run {self.run!r}" if self.run else "the default run"
        is_singular = self.commits == 1
        work = f"{self.commits} commit{'' if is_singular else 's'} of {run}"
        location = f"branch {self.branch}"
        if self.folder:
            work, location = f"work of {run}", f"{self.folder}, {location}"
            is_singular = True
        target = f" into {self.into}" if self.into else ""
        removal = ", which was removed," if self.is_gone else ""
        return f"{work}{removal} {'is' if is_singular else 'are'} not merged{target}: {location}"

    @property
    def _agent_description(self) -> str:
        is_singular = self.commits == 1
        number = (
            "1 commit of an agent is" if is_singular else f"{self.commits} commits of agents are"
        )
        others_text = f" (also on {', '.join(self.others)})" if self.others else ""
        return f"{number} merged nowhere: branch {self.branch}{others_text}"


def log_size(git_dir: Path) -> int:
    """Return the size of the log of HEAD in *git_dir* in bytes; 0: there is none."""
    try:
        return (git_dir / "logs" / "HEAD").lstat().st_size
    except OSError:
        return 0


def read_left_commits(git_dir: Path, start: int = 0) -> list[str]:
    """Return the commits that HEAD in *git_dir* has left, as its log says from byte *start* on."""
    try:
        fd = os.open(git_dir / "logs" / "HEAD", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return []
        log = os.pread(fd, MAX_READ, max(start, info.st_size - MAX_READ))
    except OSError:
        return []
    finally:
        os.close(fd)
    commits = dict.fromkeys(match.decode() for match in _LEFT.findall(log))
    return [oid for oid in commits if set(oid) != {"0"}][-MAX_TIPS:]


def find_stranded(git: Git, left: Collection[str], known: Collection[str]) -> list[str]:
    """Return the commits in *left* that are in the history of no *known* commit.

    Ancestors of other commits in the result are left out.

    Raises:
        GitFailed: git failed.
    """
    if not left:
        return []
    unknown_oids = set(
        git.read_output("rev-list", "--ignore-missing", *left, "--not", *known).split()
    )
    lost_oids = [oid for oid in left if oid in unknown_oids]
    return git.read_output("merge-base", "--independent", *lost_oids).split() if lost_oids else []


def keep_on_branches(
    git: Git, branch: str, tips: Collection[str], known: Collection[str]
) -> list[StrandedCommits]:
    """Put each of *tips* on a branch ``BRANCH.leftN``; return those that had none before.

    *known* are commits that are merged or will be.

    Raises:
        GitFailed: git failed.
    """
    results = []
    for tip in tips:
        branches = _list_left_branches(git, branch)
        if tip in branches.values():
            continue
        number = (
            max((int(n or 1) for n in map(_parse_number, branches) if n is not None), default=0) + 1
        )
        name = f"{branch}.left{number if number > 1 else ''}"
        git.run("update-ref", f"refs/heads/{name}", tip, "")
        results.append(inspect_branch(git, name, tip, known))
    return results


def _list_left_branches(git: Git, branch: str) -> dict[str, str]:
    """Return name -> commit for the existing branches ``BRANCH.leftN``."""
    folder = branch.rpartition("/")[0]
    form = "--format=%(objectname) %(refname:lstrip=2)"
    lines = git.read_output("for-each-ref", form, f"refs/heads/{folder}/").splitlines()
    pairs = (line.partition(" ")[::2] for line in lines)
    return {name: oid for oid, name in pairs if name.startswith(f"{branch}.left")}


def _parse_number(name: str) -> str | None:
    match = _NUMBERED.search(name)
    return None if match is None else match[1]


def inspect_branch(git: Git, name: str, tip: str, known: Collection[str]) -> StrandedCommits:
    """Return the work on branch *name* at commit *tip* that no *known* commit contains.

    Raises:
        GitFailed: git failed.
    """
    count = int(git.read_output("rev-list", "--count", tip, "--not", *known))
    form = "--format=%(refname:lstrip=2)"
    branches = git.read_output(
        "for-each-ref", form, f"--contains={tip}", "refs/heads/"
    ).splitlines()
    other_branches = tuple(branch for branch in branches if not LEFT_BRANCH.fullmatch(branch))
    return StrandedCommits(name, count, other_branches)
