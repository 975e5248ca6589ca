"""Where one attempt at a task works, and what becomes of its work.

A worktree of its own, whose changes are committed, merged or kept on a branch; or the
shared checkout, which is only looked at. Closing never loses work and leaves the checkout
with all of an accepted attempt, or with nothing of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from textwrap import shorten

from sequencer.errors import ConfigurationError, SequencerError, WorkTreeRefused
from sequencer.executors.redaction import Redaction
from sequencer.git.checkout import QUIET, Checkout, CheckoutLook, CheckoutWatch
from sequencer.git.gathering import (
    MAX_FILE_BYTES,
    MAX_TOTAL_BYTES,
    Cleared,
    Clearing,
    Gathered,
    Gatherer,
    RefusedPath,
    in_others,
    listed,
    reasons,
    told,
)
from sequencer.git.merge import Merged, MergeVerdict, merge
from sequencer.git.process import Git, GitFailed
from sequencer.git.selection import secrets_by
from sequencer.git.tree import Folders, TreeStatus
from sequencer.git.worktrees import Phase, Worktree, Worktrees, branch_of, name_of
from sequencer.store.identity import this_process


class PlaceResult(StrEnum):
    """What became of an attempt's changes."""

    SHARED = "shared"
    """It has worked in the shared checkout."""
    UNCHANGED = "unchanged"
    MERGED = "merged"
    KEPT = "kept"
    """The attempt was not accepted, or adds a key: its work is on a branch."""
    CONFLICT = "conflict"
    IN_THE_WAY = "in-the-way"
    """The checkout can't be moved: it would overwrite changes that no commit holds."""
    REFUSED = "refused"
    """Something in the worktree can't be committed; it stays."""


@dataclass(frozen=True, slots=True)
class PlaceLeft:
    """What an attempt has left."""

    result: PlaceResult
    error: str | None = None
    """Not None: the attempt has failed, even if its agent was content."""
    hint: str | None = None
    branch: str | None = None
    """Where work is that the checkout has not."""
    folder: Path | None = None
    """The worktree, where that stays."""
    commit: str | None = None
    """The merge."""
    files: tuple[str, ...] = ()
    """In conflict, in the way, or refused."""
    written: tuple[str, ...] = ()
    """What was changed in the shared checkout during an attempt that only reads, each with how."""
    writers: tuple[str, ...] = ()
    """Tasks of this process that may have written it, because they work there too."""
    notices: tuple[str, ...] = ()

    @property
    def is_failure(self) -> bool:
        """Return whether the attempt has failed by this."""
        return self.error is not None


class SharedPlace:
    """The shared checkout as a workplace."""

    branch: str | None = None

    def __init__(
        self,
        cwd: Path,
        watch: CheckoutWatch | None = None,
        *,
        notices: tuple[str, ...] = (),
        ended: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """Work in *cwd*; with *watch* it is only read, and looked at before and after.

        *ended* is called at the end and returns the tasks that have worked there meanwhile.
        """
        self.cwd = cwd
        self._watch = watch
        self._ended = ended
        self._before: CheckoutLook | None = None
        if watch is not None:
            self._before = watch.look()
            notices += self._before.notices
        self.notices = notices

    def close(self, is_accepted: bool, wait_for_turn: Callable[[], None]) -> PlaceLeft:  # noqa: ARG002
        """Return what has changed, if nothing should have; there is nothing to merge."""
        writers = self._ended()
        if self._watch is None or self._before is None:
            return PlaceLeft(PlaceResult.SHARED)
        written = self._watch.changes_between(self._before, self._watch.look())
        return PlaceLeft(PlaceResult.SHARED, written=written, writers=writers if written else ())


class OwnPlace:
    """A worktree as a workplace."""

    def __init__(
        self,
        checkout: Checkout,
        worktrees: Worktrees,
        worktree: Worktree,
        clearing: Clearing,
        message: Callable[[Worktree], str],
        *,
        notices: tuple[str, ...] = (),
    ) -> None:
        """Work in *worktree*; *message* is that of its merge."""
        self._checkout = checkout
        self._worktrees = worktrees
        self._worktree = worktree
        self._clearing = clearing
        self._message = message
        self._left: PlaceLeft | None = None
        """What it has come to; it is closed once."""
        self.folder = worktrees.folder(worktree)
        self.cwd = self.folder / checkout.tree.prefix
        self.branch: str | None = worktree.branch
        self.notices = notices

    def close(self, is_accepted: bool, wait_for_turn: Callable[[], None]) -> PlaceLeft:
        """Commit what was done; merge it if the attempt *is_accepted*, else keep it.

        *wait_for_turn* returns when the attempt may be merged, and is called only if there is
        something to merge. What it raises is raised, after the work was put on its branch.
        Closed again, it says the same again.
        """
        if self._left is None:
            self._left = self._closed(is_accepted, wait_for_turn)
        return self._left

    def _closed(self, is_accepted: bool, wait_for_turn: Callable[[], None]) -> PlaceLeft:
        try:
            gathered = self._clearing.gather(self._worktree)
        except (GitFailed, SequencerError, OSError) as error:
            return self._not_gathered(error)
        if gathered.refused:
            files = tuple(one.path for one in gathered.refused)
            return replace(self._stays(told(gathered)), files=files)
        try:
            left = self._not_merged(gathered, is_accepted=is_accepted)
        except (GitFailed, SequencerError, OSError) as error:
            return self._stays(f"can't be merged: {_reason(error)}")
        if left is not None:
            return self._ended(gathered, left)
        try:
            wait_for_turn()
        except BaseException:
            self._left = self._ended(gathered, PlaceLeft(PlaceResult.KEPT))
            raise
        try:
            return self._merged(gathered)
        except (GitFailed, SequencerError, OSError) as error:
            return self._merged_after_all(gathered, f"can't be merged: {_reason(error)}")

    def _merged(self, gathered: Gathered) -> PlaceLeft:
        with self._checkout.merge_lock():
            worktree = self._worktrees.write(self._worktree.replace(phase=Phase.MERGING))
            self._worktree = worktree
            git = self._clearing.git_of(worktree)
            merged = merge(self._checkout, git, gathered.tip, worktree, self._message(worktree))
        return self._ended(gathered, self._after(merged))

    def _merged_after_all(self, gathered: Gathered, message: str) -> PlaceLeft:
        """Look what the checkout has, where something has failed on the way."""
        tip, contains = gathered.tip, self._checkout.contains
        with contextlib.suppress(GitFailed, SequencerError, OSError):
            made = self._clearing.git_of(self._worktree).text("rev-parse", "HEAD")
            head = self._checkout.commit()
            if made != tip and head and contains(made, tip) and contains(head, made):
                return self._ended(gathered, PlaceLeft(PlaceResult.MERGED, commit=made))
        return self._stays(message)

    def _after(self, merged: Merged) -> PlaceLeft:
        """Return in words for people what *merged* means for the attempt."""
        if merged.verdict is MergeVerdict.MERGED:
            return PlaceLeft(PlaceResult.MERGED, commit=merged.commit)
        if merged.verdict is MergeVerdict.NOTHING:
            return PlaceLeft(PlaceResult.UNCHANGED)
        branch = self._worktree.branch
        by_hand = f"'git merge {shlex.quote(branch)}'"
        kept = f"its work is on branch {branch}, and nothing of it in the checkout"
        if merged.verdict is MergeVerdict.CONFLICT:
            return PlaceLeft(
                PlaceResult.CONFLICT,
                f"can't be merged: conflicts in {listed(merged.files)}; {kept}",
                f"bring it in by hand with {by_hand}, or let the task be done anew",
                files=merged.files,
            )
        about = f": {listed(merged.files)}" if merged.files else ""
        first = merged.hint or "commit these changes or put them away"
        return PlaceLeft(
            PlaceResult.IN_THE_WAY,
            f"can't be merged, the checkout is in the way{about} ({merged.reason}); {kept}",
            f"{first}, then {by_hand}, or let the task be done anew",
            files=merged.files,
        )

    def _not_merged(self, gathered: Gathered, *, is_accepted: bool) -> PlaceLeft | None:
        """Return what becomes of work that is not to be merged; None: it is."""
        if gathered.tip == self._worktree.base:
            return PlaceLeft(PlaceResult.UNCHANGED)
        if not is_accepted:
            return PlaceLeft(PlaceResult.KEPT)
        refused = self._clearing.with_keys(self._worktree, gathered)
        return self._with_keys(refused) if refused else None

    def _with_keys(self, refused: tuple[RefusedPath, ...]) -> PlaceLeft:
        """Return that the agent's own commits hold keys, and where."""
        branch = self._worktree.branch
        return PlaceLeft(
            PlaceResult.KEPT,
            f"is not merged, because a commit of its own adds a key: {reasons(refused)}; "
            f"its work is on branch {branch}, and nothing of it in the checkout",
            f"take the key out of these commits, then 'git merge {shlex.quote(branch)}'; "
            "a key that left this machine has to be revoked",
            files=tuple(one.path for one in refused),
        )

    def _ended(self, gathered: Gathered, left: PlaceLeft) -> PlaceLeft:
        """Remove the worktree, unless it holds what would be lost, and complete *left*."""
        others = self._clearing.others_in(self._worktree, gathered)
        if others:
            notices = (in_others(others), *gathered.notices, *self._clearing.keep(self._worktree))
            branch = None if left.result is PlaceResult.MERGED else self._worktree.branch
            return replace(left, branch=branch, folder=self.folder, notices=notices)
        # What is kept has a branch; of the rest the checkout has everything.
        done = {PlaceResult.MERGED: gathered.tip, PlaceResult.UNCHANGED: gathered.tip}.get(
            left.result
        )
        try:
            cleared = self._clearing.remove(self._worktree, done)
        except (GitFailed, SequencerError, OSError) as error:
            # What has become of the work stands all the same; who cleans up tries once more.
            branch = None if left.result is PlaceResult.MERGED else self._worktree.branch
            cleared = Cleared(branch, (f"{self.folder} can't be removed: {_reason(error)}",))
        notices = (*gathered.notices, *cleared.notices)
        return replace(left, branch=cleared.branch, notices=notices)

    def _not_gathered(self, error: Exception) -> PlaceLeft:
        """Leave what could not be committed to a person, if there is anything to look at."""
        if self.folder.is_dir():
            return self._stays(f"can't be committed: {_reason(error)}")
        branch = self._worktree.branch
        return PlaceLeft(
            PlaceResult.REFUSED,
            f"its worktree, {self.folder}, was removed while it worked; "
            f"of its work there is what it has committed on branch {branch}",
            "let the task be done anew",
            branch=branch,
        )

    def _stays(self, message: str) -> PlaceLeft:
        """Leave the worktree to a person."""
        folder = shlex.quote(str(self.folder))
        return PlaceLeft(
            PlaceResult.REFUSED,
            f"{message}; its work is in {self.folder}, and nothing of it in the checkout",
            f"look there; 'git worktree remove --force {folder}' removes it",
            branch=self._worktree.branch,
            folder=self.folder,
            notices=self._clearing.keep(self._worktree),
        )


def _reason(error: Exception) -> str:
    if isinstance(error, GitFailed):
        return error.reason
    return error.message if isinstance(error, SequencerError) else str(error)


NEEDED = (2, 30)
"""Of git."""
LOOKED_BACK = 2000
"""Commits that are looked through for merges of earlier attempts."""
SUBJECT_CHARS = 72
"""Of the first line of a commit's message, as git shows it whole in lists."""
_VERSION = re.compile(r"git version (\d+)\.(\d+)")

Workplace = OwnPlace | SharedPlace


class Workplaces:
    """Where the tasks of one run work."""

    def __init__(
        self,
        folders: Folders,
        run: str | None,
        *,
        redaction: Redaction,
        environment: Mapping[str, str] | None = None,
        allowed: Mapping[str, str] | None = None,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        """Give tasks of *run* (None: the default run) places in ``folders.project``.

        *redaction* knows what is never committed; *allowed*: see `Git`. Nothing is started or
        written before the first place is opened.
        """
        self._run = run
        self._hide = redaction.hide_text
        self._checkout = Checkout(folders, environment, allowed)
        self._worktrees = Worktrees(folders.state_file.parent)
        gatherer = Gatherer(
            self._checkout,
            secrets_by(redaction),
            max_file_bytes=max_file_bytes,
            max_total_bytes=max_total_bytes,
        )
        self._clearing = Clearing(
            *(self._checkout, self._worktrees, gatherer, self._left_message), branch_of(run, "")
        )
        self._watch = CheckoutWatch(self._checkout)
        self._guard = threading.Lock()
        self._has_told = False
        self._writers: dict[int, str] = {}
        """Tasks that write in the shared checkout at present, by their tokens."""
        self._meanwhile: dict[int, dict[int, str]] = {}
        """Those that have, while the task with the token was there to read."""

    # --- opening -------------------------------------------------------------------

    def open(
        self,
        task: str,
        token: int,
        *,
        run_id: str,
        writes: bool,
        worktree: bool,
        subject: str = "",
    ) -> Workplace:
        """Return where the attempt at *task* under the claim *token* works, until it is closed.

        *subject* says to people what the task is about.
        *worktree* counts for tasks that write; one that only reads has nothing to isolate.

        Raises:
            WorkTreeRefused: git can't make a worktree.
        """
        if not writes:
            return self._reading(token)
        if not worktree:
            return self._writing(task, token)
        obstacle = self._look()
        if isinstance(obstacle, TreeStatus):
            return self._added(self._named(task, token, run_id, obstacle, subject), obstacle)
        with self._guard:
            is_first, self._has_told = not self._has_told, True
        notice = f"no worktrees: {obstacle}; all tasks work in the project's folder"
        return self._writing(task, token, (notice,) if is_first else ())

    def _reading(self, token: int) -> SharedPlace:
        with self._guard:
            self._meanwhile[token] = dict(self._writers)

        def ended() -> tuple[str, ...]:
            with self._guard:
                return tuple(sorted(set(self._meanwhile.pop(token, {}).values())))

        return SharedPlace(self._checkout.folders.project, self._watch, ended=ended)

    def _writing(self, task: str, token: int, notices: tuple[str, ...] = ()) -> SharedPlace:
        with self._guard:
            self._writers[token] = task
            for seen in self._meanwhile.values():
                seen[token] = task

        def ended() -> tuple[str, ...]:
            with self._guard:
                self._writers.pop(token, None)
            return ()

        return SharedPlace(self._checkout.folders.project, notices=notices, ended=ended)

    def _look(self) -> TreeStatus | str:
        """Return what the checkout has, or why there can be no worktrees."""
        checkout = self._checkout
        try:
            prefix = checkout.tree.prefix
            status = checkout.tracked_changes()
            if status.commit is None:
                return "the repository has no commit yet"
            named = f"HEAD:{prefix}"
            if prefix and checkout.git.run("cat-file", "-e", named, accepts=(0, 1, 128)).code:
                return "no commit has the project's folder"
        except SequencerError as error:
            # What git itself says about it helps nobody here.
            reason = error.message.partition(": ")[0]
            return f"{error.where} {reason}" if error.where else reason
        except GitFailed as failed:
            return failed.reason
        return status

    def _added(self, noted: Worktree, status: TreeStatus) -> OwnPlace:
        checkout, worktrees = self._checkout, self._worktrees
        try:
            worktrees.prepare()
            with checkout.repository_lock():
                worktree = worktrees.write(noted)
                folder = worktrees.folder(worktree)
                flags = ("--quiet", "--no-track", "-b", worktree.branch)
                argv = ("worktree", "add", *flags, str(folder), worktree.base)
                try:
                    checkout.git.run(*argv, settings=QUIET)
                    git_dir = (folder / ".git").read_bytes().removeprefix(b"gitdir: ").strip()
                except (GitFailed, OSError):
                    self._clearing.discard(worktree)
                    raise
            worktree = worktrees.write(
                worktree.replace(phase=Phase.WORKING, git_dir=os.fsdecode(git_dir))
            )
            (folder / checkout.tree.prefix).mkdir(parents=True, exist_ok=True)
        except GitFailed as failed:
            raise checkout.tree.refused(f"can't have another worktree: {failed.reason}") from failed
        except OSError as error:
            raise checkout.tree.refused(f"can't have another worktree: {error}") from error
        return OwnPlace(
            *(checkout, worktrees, worktree, self._clearing, self._merge_message),
            notices=self._uncommitted(status),
        )

    def _named(
        self, task: str, token: int, run_id: str, status: TreeStatus, subject: str
    ) -> Worktree:
        """Return the note of a worktree whose folder and branch are nobody's."""
        first = name = name_of(task, token)
        number = 1
        while not self._is_free(name):
            number += 1
            name = f"{first}-again{number}"
        return Worktree(
            name=name,
            task=task,
            subject=subject,
            token=token,
            run_id=run_id,
            branch=branch_of(self._run, name),
            base=str(status.commit),
            checked_out=status.branch or "",
            owner=this_process(),
        )

    def _is_free(self, name: str) -> bool:
        ref = f"refs/heads/{branch_of(self._run, name)}"
        told = self._checkout.git.text("rev-parse", "--verify", "--quiet", ref, accepts=(0, 1))
        return not told and self._worktrees.is_free(name)

    def _uncommitted(self, status: TreeStatus) -> tuple[str, ...]:
        tree = self._checkout.tree
        dirty = [entry.path for entry in status.entries if not tree.is_own(entry.path)]
        if not dirty:
            return ()
        shown = self._hide(listed(dirty))
        return (f"changes that no commit holds are not in the worktree: {shown}",)

    # --- afterwards ----------------------------------------------------------------

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove what dead processes have left, of attempts whose tokens are not in *live*.

        Their work is kept on branches; returned is what a person should know. Several
        processes may clean at once; nothing of a process that may be alive is touched.
        Branches go that are in the checkout by now, whoever has merged them.
        """
        if not self._worktrees.path.is_dir():
            return ()
        notices = self._clearing.clean(live)
        self._clearing.remove_merged_branches()
        return tuple(map(self._hide, notices))

    def merged(self, task: str, run_id: str) -> frozenset[int]:
        """Return the tokens of attempts at *task* whose work is in the checkout already.

        After a kill between the merge and the record of an attempt the next one can know.
        """
        argv = ("log", "--first-parent", "--format=%P%n%B%x00", "-n", str(LOOKED_BACK))
        try:
            told = self._checkout.git.run(*argv, settings=QUIET).stdout.decode("utf-8", "replace")
        except (GitFailed, SequencerError):
            return frozenset()
        wanted = self._hide("\n".join(_trailers(self._run, run_id, task)))
        found = set()
        for commit in told.split("\0"):
            parents, _, message = commit.lstrip("\n").partition("\n")
            if " " in parents and (token := _token_in(message, wanted)) is not None:
                found.add(token)
        return frozenset(found)

    def problems(self) -> tuple[SequencerError, ...]:
        """Return why tasks would not get worktrees, or could not be merged, for a check."""
        checkout = self._checkout
        project = checkout.folders.project
        try:
            version = Git(project, checkout.environment).text("version")
            found = _VERSION.match(version)
            if found is not None and (int(found[1]), int(found[2])) < NEEDED:
                needed = ".".join(map(str, NEEDED))
                return (
                    ConfigurationError(
                        f"{version} is too old", hint=f"install git {needed} or newer"
                    ),
                )
        except ConfigurationError as error:
            hint = "install git, or tasks share the project's folder"
            return (ConfigurationError(error.message.partition(",")[0], hint=hint),)
        except GitFailed as failed:
            return (ConfigurationError(f"git does not run: {failed.reason}"),)
        obstacle = self._look()
        if isinstance(obstacle, str):
            hint = "tasks share the project's folder; a repository with a commit keeps them apart"
            return (WorkTreeRefused(f"no worktrees: {obstacle}", where=str(project), hint=hint),)
        if begun := checkout.tree.under_way():
            hint = "end it or abort it; until then no task's work can be merged"
            return (checkout.tree.refused(f"{begun} is under way", hint),)
        return ()

    # --- messages ------------------------------------------------------------------

    def _merge_message(self, worktree: Worktree) -> str:
        first = f"Merge task {_one_line(worktree.task)}"
        subject = _one_line(worktree.subject)
        return self._message(worktree, f"{first}: {subject}" if subject else first)

    def _left_message(self, worktree: Worktree) -> str:
        task = _one_line(worktree.task)
        body = f"What the agent of task {task} had not committed itself."
        return self._message(worktree, _one_line(worktree.subject) or f"Work of task {task}", body)

    def _message(self, worktree: Worktree, first: str, *body: str) -> str:
        """Return a message with *first* as its first line, and *body* and trailers below."""
        short = shorten(first, SUBJECT_CHARS, placeholder=" …")
        trailers = _trailers(self._run, worktree.run_id, worktree.task)
        trailers.append(f"Sequencer-Token: {worktree.token}")
        return self._hide("\n\n".join((short, *body, "\n".join(trailers))) + "\n")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _trailers(run: str | None, run_id: str, task: str) -> list[str]:
    """Return the lines that the merges of all attempts at *task* have."""
    names = {"Run": run or "default", "Run-Id": run_id, "Task": task}
    return [f"Sequencer-{name}: {_one_line(text)}" for name, text in names.items()]


def _token_in(message: str, wanted: str) -> int | None:
    """Return the token of a merge that has the lines *wanted*."""
    found = re.search(
        re.escape(f"\n{wanted}\nSequencer-Token: ") + r"([0-9]{1,19})$", message, re.MULTILINE
    )
    return None if found is None else int(found[1])
