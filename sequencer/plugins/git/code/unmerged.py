"""Lists the work of a project's runs that is not merged yet, from its branches and notes.

A branch counts as merged when the checked-out commit contains all of it, or when the branch that
its run was started on does. Work of a run that is under way is not listed. Nothing is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import SequencerError
from sequencer.files.textfile import ref_part, slug
from sequencer.plugins.git.code.gathering import TaskTrees
from sequencer.plugins.git.code.stranded import LEFT_BRANCH, StrandedCommits, inspect_branch
from sequencer.plugins.git.code.tree import read_status
from sequencer.plugins.git.code.worktrees import (
    BRANCHES,
    RUN_BRANCHES,
    Phase,
    Worktree,
    find_git_dirs,
)
from sequencer.plugins.git.process import Git, GitFailed

LOOK_S = 10.0
"""How long git may take to compare the branches."""
MAX_BRANCHES = 100
_HEADS = "refs/heads/"


class Unmerged(Struct, frozen=True):
    """Looks for work that is not merged."""

    git: Git
    """Runs in the project's folder, and only reads."""
    trees: Mapping[str | None, TaskTrees]
    """Name of a run -> its worktrees, for each run of the project."""
    is_under_way: Callable[[str | None, str], bool]
    """Whether the run of this name still has this id and is not complete."""

    def find(self) -> Iterator[StrandedCommits]:
        """Yield the unmerged work, sorted by branch; stop if git fails."""
        with contextlib.suppress(GitFailed, SequencerError):
            notes = {note.branch: (run, note) for run, note in self._notes()}
            tips = self._tips()
            for branch in sorted({*tips, *notes})[:MAX_BRANCHES]:
                run, note = notes.get(branch, (None, None))
                if note is None:
                    yield from self._find_without_note(branch, tips[branch])
                elif note.phase is Phase.LEFT or not self.is_under_way(run, note.run_id):
                    yield from self._find_with_note(note, run, tips.get(branch))

    def _notes(self) -> Iterator[tuple[str | None, Worktree]]:
        for run, trees in self.trees.items():
            for note in filter(None, map(trees.notes.read, trees.notes.list_names())):
                if not note.task:
                    yield run, note

    def _tips(self) -> dict[str, str]:
        """Return branch -> tip for runs' branches, and left commits, that HEAD does not contain."""
        form = "--format=%(objectname) %(refname:lstrip=2)"
        folders = (f"{_HEADS}{kind}/" for kind in (BRANCHES, RUN_BRANCHES))
        argv = ("for-each-ref", "--no-merged=HEAD", form, *folders)
        output = self.git.run(*argv, timeout_s=LOOK_S).stdout.decode("utf-8", "surrogateescape")
        pairs = (line.partition(" ")[::2] for line in output.splitlines())
        return {
            name: tip
            for tip, name in pairs
            if LEFT_BRANCH.fullmatch(name) or name.startswith(f"{RUN_BRANCHES}/")
        }

    def _find_without_note(self, branch: str, tip: str) -> Iterator[StrandedCommits]:
        """Yield the work on *branch*; without a note, only the branch's name says which run's."""
        run_by_part = {ref_part(slug(run or "default")): run for run in reversed([*self.trees])}
        part = branch.split("/")[1]
        run, is_gone = run_by_part.get(part, part), part not in run_by_part
        if LEFT_BRANCH.fullmatch(branch):
            found = inspect_branch(self.git, branch, tip, ["HEAD"])
            yield replace(found, run=run, is_gone=is_gone)
        elif count := _count(self.git, tip, ["HEAD"]):
            yield StrandedCommits(branch, count, run=run, is_of_run=True, is_gone=is_gone)

    def _find_with_note(
        self, note: Worktree, run: str | None, tip: str | None
    ) -> Iterator[StrandedCommits]:
        trees = self.trees[run]
        folder, has_files = trees.notes.folder(note), False
        is_ours = trees.link_problem(note) is None
        if note.phase is not Phase.ADDING and is_ours:
            with contextlib.suppress(GitFailed, SequencerError):
                status = read_status(trees.open_git(note))
                has_files = any(not trees.checkout.is_own(entry.path) for entry in status.entries)
                # A merge would take its HEAD, even if that is not on its branch.
                tip = status.commit or tip
        count = 0 if tip is None else count_commits(self.git, note, tip)
        if not (count or has_files):
            return
        frees: list[tuple[str, ...]] = []
        if is_ours:
            frees.append(("git", "worktree", "remove", "--force", str(folder)))
        if not is_ours and os.path.lexists(folder):
            # No git command may run in it: an agent may have written its configuration.
            frees.append(("rm", "-rf", str(folder)))
        if not is_ours and any(find_git_dirs(trees.checkout.common_dir, folder)):
            frees.append(("git", "worktree", "prune"))
        target_branch = note.checked_out or ""
        yield StrandedCommits(
            note.branch,
            count,
            run=run,
            is_of_run=True,
            run_id=note.run_id,
            into=target_branch,
            folder=str(folder) if has_files else "",
            is_elsewhere=bool(target_branch)
            and trees.checkout.checked_out_branch() not in (target_branch, ""),
            frees=tuple(frees),
        )


def count_commits(git: Git, note: Worktree, tip: str | None = None) -> int:
    """Return the number of commits of a run that are neither in HEAD nor in its start branch.

    *tip* is the newest commit; None: the tip of its branch, which may be missing.

    Raises:
        GitFailed: git failed.
    """
    tip = tip or _resolve_tip(git, note.branch)
    target_tip = _resolve_tip(git, note.checked_out) if note.checked_out else None
    return 0 if tip is None else _count(git, tip, ["HEAD", *([target_tip] if target_tip else [])])


def _resolve_tip(git: Git, branch: str) -> str | None:
    argv = ("rev-parse", "--verify", "--quiet", f"{_HEADS}{branch}")
    result = git.run(*argv, accepts=(0, 1), timeout_s=LOOK_S)
    return result.stdout.decode("ascii", "replace").strip() or None


def _count(git: Git, tip: str, known_tips: Sequence[str]) -> int:
    result = git.run("rev-list", "--count", tip, "--not", *known_tips, timeout_s=LOOK_S)
    return int(result.stdout)
