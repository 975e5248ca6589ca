"""The workplaces of a team's tasks: worktrees for those that write, the checkout for the others.

Many threads and processes may open, close and clean at once. Where there is no repository,
or no commit yet, everybody works in the shared checkout, and that is said once. Not promised:
that tasks which write in the shared checkout keep out of each other's way.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Mapping
from textwrap import shorten

from sequencer.checkout.clearing import Clearing, listed
from sequencer.checkout.content import secrets_by
from sequencer.checkout.gathering import MAX_FILE_BYTES, MAX_TOTAL_BYTES, Gatherer
from sequencer.checkout.readonly import Watch
from sequencer.checkout.shared import QUIET, Checkout
from sequencer.checkout.status import Status
from sequencer.checkout.tree import Folders
from sequencer.checkout.workplace import OwnPlace, SharedPlace
from sequencer.checkout.worktree import Phase, Worktree, Worktrees, branch_of, name_of
from sequencer.errors import ConfigurationError, SequencerError, WorkTreeRefused
from sequencer.executors.redaction import Redaction
from sequencer.store.git.command import Git, GitFailed
from sequencer.store.identity import this_process

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
        self._watch = Watch(self._checkout)
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
        if isinstance(obstacle, Status):
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

    def _look(self) -> Status | str:
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

    def _added(self, noted: Worktree, status: Status) -> OwnPlace:
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

    def _named(self, task: str, token: int, run_id: str, status: Status, subject: str) -> Worktree:
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

    def _uncommitted(self, status: Status) -> tuple[str, ...]:
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
