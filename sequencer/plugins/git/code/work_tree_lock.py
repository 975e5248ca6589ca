"""Who works in a work tree: a note in git's own folder of it, and a lock beside it.

The note is written when a step begins, and the tree was clean then. So what is dirty when it ends
is that step's, and its next attempt may continue with it; what was changed since then is not. The
kernel lock keeps the tree for one process while its agents work; with its process it is gone.

That an attempt's code is to be pushed is noted before its commit is written. So after a kill one
knows which commits nobody has accepted: they are put on a branch of their own, and the tree's is
taken back. Not promised: that files are taken back which have changes besides (they stay as they
are), or a branch on which a person has continued.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from sequencer.errors import CorruptState, WorkTreeBusy
from sequencer.files.textfile import ref_part, slug
from sequencer.frozen.base import Frozen
from sequencer.model.head import Claim, Counter, Head, Loop, Owner, Work
from sequencer.plugins.git.code.commit import Committer, RefMoved
from sequencer.plugins.git.code.selection import Selection
from sequencer.plugins.git.code.tree import LOCK_MODE, LOCK_POLL_S, WorkTree, read_note, write_note
from sequencer.plugins.git.process import GitFailed
from sequencer.store.head import read_head
from sequencer.store.identity import is_proven_dead, is_same_boot, this_process

NOTE, LOCK = "sequencer-work.json", "sequencer-work.lock"
AGENTS_LOCK, AGENTS_MARK = "sequencer-work.agents.lock", "sequencer-work.agents"
LOCK_WAIT_S = 60.0
"""Who holds the lock looks at one `git status` meanwhile."""
PROBE_S = 0.25
"""Whoever only asks holds the lock of the agents for less."""
TAKE_S = 5.0
"""The time in which a tree that was free a moment ago is free again."""
ENDED_S = 2.0
"""By then the agents of a process that was killed are gone."""
MAX_LEFT = 10_000
"""Changed paths after an attempt that are remembered; with more nobody can tell them apart."""
_MAX_BYTES = 16 * 1024 * 1024


KEPT = "sequencer-kept"
"""Where branches with work that was not accepted are."""
_NAMES = 20
_PARENT = re.compile(r"^parent ([0-9a-f]+)$", re.MULTILINE)


class Collecting(Frozen):
    """Code of an attempt that is to be pushed, and may have been."""

    base: str
    """The commit on which the attempt began."""
    commit: str
    """What its agent has left; what is committed for it is on top."""
    ref: str
    kept: str
    """What the branch is called that has it if it is not accepted."""
    token: Counter


class Note(Frozen):
    """The step that has begun here last."""

    top: str
    """The work tree: a copy of it has a copy of the note."""
    run: str | None
    state: str
    """Where the state of its run is on this machine."""
    run_id: str
    step_index: Counter
    loop: Loop | None
    work: Work | None
    attempt: Counter
    owner: Owner
    branch: str | None = None
    """What was checked out; None: an earlier version has written the note."""
    collecting: Collecting | None = None
    left: Mapping[str, str] | None = None
    """The changed paths when its agents had ended, and how each was; None: nobody has looked."""

    def is_of_step(self, head: Head) -> bool:
        """Return whether *head* stands where the step has begun, and has ended its attempt."""
        there = (self.run_id, self.step_index, self.loop, self.work)
        is_there = there == (head.run_id, head.step_index, head.loop, head.work)
        # Who looks while holding a claim asks about the step behind it.
        return is_there and not _claims_of(head, this_process())

    def is_at_work(self) -> bool:
        """Return whether its process holds a step of its run, and may be alive."""
        if is_proven_dead(self.owner):
            return False
        try:
            content = read_head(Path(self.state)).content or {}
        except (CorruptState, OSError):
            return True
        claims = content.get("claims")
        held = claims if isinstance(claims, list) else []
        owners = [claim.get("owner") for claim in held if isinstance(claim, dict)]
        nonces = [owner.get("nonce") for owner in owners if isinstance(owner, dict)]
        return content.get("run_id") == self.run_id and self.owner.nonce in nonces


class WorkTreeLock:
    """The note of one work tree, as one run sees it."""

    def __init__(self, tree: WorkTree, run: str | None, state: Path, committer: Committer) -> None:
        """Speak for the run called *run*, whose state is in the file *state*."""
        self._tree = tree
        self._run = run
        self._state = state
        self._committer = committer
        self.base: str | None = None
        """The commit on which the agents that are at work here have begun; None: none are."""
        self._agents: FileLock | None = None
        """Held while agents of this process work here."""

    def note(self) -> Note | None:
        """Return who has begun here last; None where nobody has, or that can't be read."""
        note = read_note(self._tree.git_dir / NOTE, Note, _MAX_BYTES)
        return note if note is not None and note.top == str(self._tree.top) else None

    def ensure_free(self, note: Note | None, head: Head) -> None:
        """Return if no other run than that of *head* works here, as *note* has it.

        Raises:
            WorkTreeRefused: one does.
        """
        if note is not None and note.run_id != head.run_id and note.is_at_work():
            raise self._tree.refused(
                f"run {note.run or 'default'!r} is working in it (process {note.owner.pid})",
                "start again when its step has ended, or give each run a clone of its own",
            )

    # --- while agents work ---------------------------------------------------------

    def ensure_work_tree_free(self, note: Note | None) -> bool:
        """Return when no agents of another process work here, *note* being who began last.

        Returns whether some may have till now.

        Raises:
            WorkTreeBusy: some do.
        """
        if self._agents is not None:
            return False
        if not self._take(PROBE_S):
            raise self._busy(note)
        was_killed = self._mark.exists()
        self._give_back()
        if was_killed and note is not None and is_same_boot(note.owner):
            # Its agents are ended by their guards meanwhile.
            time.sleep(ENDED_S)
        return was_killed or self.note() != note

    def occupy(self, note: Note | None) -> None:
        """Keep the tree for the agents of this process, until `vacate` or its end.

        Raises:
            WorkTreeRefused: others were faster.
        """
        if self._agents is None and not self._take(TAKE_S):
            busy = self._busy(note)
            raise self._tree.refused(busy.message, busy.hint)
        with contextlib.suppress(OSError):
            self._mark.touch(LOCK_MODE)

    def vacate(self) -> None:
        """Let others have the tree, if it was kept for this process."""
        if self._agents is not None:
            with contextlib.suppress(OSError):
                self._mark.unlink(missing_ok=True)
            self._give_back()

    @property
    def is_occupied(self) -> bool:
        """Return whether the tree is kept for this process."""
        return self._agents is not None

    @property
    def _mark(self) -> Path:
        """Return the file that is there while somebody keeps the tree, or was killed meanwhile."""
        return self._tree.git_dir / AGENTS_MARK

    def _take(self, timeout_s: float) -> bool:
        # Any thread may give it back, and no child has it.
        lock = FileLock(
            self._tree.git_dir / AGENTS_LOCK,
            timeout=timeout_s,
            mode=LOCK_MODE,
            thread_local=False,
            fallback_to_soft=False,
        )
        try:
            lock.acquire(poll_interval=LOCK_POLL_S)
        except Timeout:
            return False
        except OSError as error:
            raise self._tree.refused(f"can't be locked: {error.strerror}") from error
        self._agents = lock
        return True

    def _give_back(self) -> None:
        lock, self._agents = self._agents, None
        if lock is not None:
            lock.release()

    def _busy(self, note: Note | None) -> WorkTreeBusy:
        who = f"process {note.owner.pid} of run {note.run or 'default'!r}" if note else "a process"
        pid = note.owner.pid if note else "PID"
        return WorkTreeBusy(
            f"agents of {who} are still working in this work tree",
            where=f"work tree {self._tree.top}",
            hint=f"it is free once they end; if that process is stopped, 'kill -CONT {pid}' "
            f"resumes it and 'kill {pid}' ends it; or work in a clone of your own",
        )

    # --- the note ------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[Note | None]:
        """Keep the note as it is while the block runs, but for `begin`; give it.

        Raises:
            WorkTreeRefused: it can't be locked.
        """
        hint = "another process is looking at it; start again"
        with self._tree.locked(self._tree.git_dir / LOCK, LOCK_WAIT_S, hint):
            yield self.note()

    def begin(self, head: Head, branch: str | None = None) -> Note:
        """Note that the step at which *head* stands begins here, on *branch*, by this process.

        Raises:
            WorkTreeRefused: it can't be written.
        """
        owner, before = this_process(), self.note()
        note = Note(
            top=str(self._tree.top),
            run=self._run,
            state=str(self._state.absolute()),
            run_id=head.run_id,
            step_index=head.step_index,
            loop=head.loop,
            work=head.work,
            attempt=max(_claims_of(head, owner), default=1),
            owner=owner,
            branch=branch,
            # Of another attempt at the same time; who leaves last looks whether it was accepted.
            collecting=None if before is None or before.owner != owner else before.collecting,
        )
        self._write(note)
        return note

    def collect(self, collecting: Collecting | None) -> None:
        """Note that code is to be pushed; None: that this is over.

        Raises:
            WorkTreeRefused: it can't be written.
        """
        note = self.note()
        if note is not None and note.collecting != collecting:
            self._write(note.replace(collecting=collecting))

    def end(self, note: Note, dirty: Iterable[str]) -> None:
        """Note that the agents of *note* have ended, and have left *dirty* paths as they are now.

        Raises:
            WorkTreeRefused: it can't be written.
        """
        left = marks(self._tree.top, dirty)
        self._write(note.replace(left=left if len(left) <= MAX_LEFT else None))

    def _write(self, note: Note) -> None:
        path = self._tree.git_dir / NOTE
        try:
            write_note(path, note, LOCK_MODE)
        except OSError as error:
            raise self._tree.refused(f"{path} can't be written: {error.strerror}") from error

    # --- the way back --------------------------------------------------------------

    def plan(
        self, claim: Claim, branch: str, commit: str, theirs: str | None, *, has_more: bool
    ) -> None:
        """Note that the code of *claim*'s attempt is to be pushed: up to *commit*, or *has_more*.

        *theirs* is what was accepted last.

        Raises:
            WorkTreeRefused: it can't be written.
        """
        base = self.base
        if base is not None and theirs is not None and self._tree.contains(theirs, base):
            base = theirs
        if base is not None and (has_more or commit != base):
            ref, kept = f"refs/heads/{branch}", self.kept_name(claim)
            plan = Collecting(base=base, commit=commit, ref=ref, kept=kept, token=claim.token)
            self.collect(plan)

    def due_back(self, note: Note | None, theirs: str | None) -> tuple[Collecting, str] | None:
        """Return what of the attempt in *note* the branch has and *theirs* has not, if it has."""
        plan = None if note is None else note.collecting
        commit = None if plan is None else self._tree.resolve("HEAD")
        if plan is None or commit is None or commit == plan.base:
            return None
        is_accepted = theirs is not None and self._tree.contains(theirs, commit)
        return None if is_accepted or not self._is_of_attempt(plan, commit) else (plan, commit)

    def take_back(self, note: Note | None, theirs: str | None) -> str | None:
        """Take the branch back if that is due; return what is told of it, or None.

        For one process at a time, while no agent works.

        Raises:
            WorkTreeRefused: it can't be done.
        """
        due = self.due_back(note, theirs)
        if due is None:
            return None
        plan, commit = due
        base = plan.base
        if theirs is not None and self._tree.contains(theirs, base):
            base = theirs if self._tree.contains(commit, theirs) else base
        name = self.kept(plan.kept, commit)
        self._reset(base)
        self.collect(None)
        branch = plan.ref.removeprefix("refs/heads/")
        told = f"branch {branch} is at {base[:12]} again, the last accepted commit"
        return f"{told}; the work that was not accepted is on branch {name}"

    def _is_of_attempt(self, plan: Collecting, commit: str) -> bool:
        """Return whether *commit* is what the attempt of *plan* has left, with nothing on top."""
        if self._tree.resolve(plan.ref) != commit:
            return False
        if commit == plan.commit:
            return True
        head, _, message = self._tree.commit_text(commit).partition("\n\n")
        is_next = _PARENT.findall(head) == [plan.commit]
        return is_next and f"Token: {plan.token}" in message.splitlines()

    def _reset(self, base: str) -> None:
        git = self._tree.patient_git
        try:
            git.run("reset", "--quiet", "--keep", base)
        except GitFailed:
            try:
                git.run("reset", "--quiet", "--mixed", base, accepts=(0, 1))
            except GitFailed as failed:
                raise self._tree.refused(
                    f"can't be reset to {base[:12]}, the last accepted commit: {failed.reason}",
                    f"'git reset --keep {base}', then start again",
                ) from failed

    def kept(
        self, base: str, commit: str, selection: Selection | None = None, text: str = ""
    ) -> str:
        """Have a branch called like *base* hold *selection* on top of *commit*; return its name.

        Raises:
            WorkTreeRefused: git can't write it.
        """
        for number in range(1, _NAMES):
            name = base if number == 1 else f"{base}.{number}"
            ref = f"refs/heads/{name}"
            there = self._tree.resolve(ref)
            if selection is None and there is not None and self._tree.contains(there, commit):
                return name
            if there not in (None, commit):
                continue
            try:
                self._committer.snapshot(selection or Selection(), commit, ref, text)
            except RefMoved:
                continue
            return name
        raise self._tree.refused(f"has too many branches {base}.N", "remove old ones")

    def kept_name(self, claim: Claim) -> str:
        """Return what the branch of an attempt's work is called; see `kept`."""
        return f"{KEPT}/{ref_part(slug(self._run or 'default'))}/{claim.step_index}-{claim.token}"

    def accepted(self, head: Head, theirs: str | None) -> str | None:
        """Return the newest commit that the state *head* or the remote (*theirs*) has accepted."""
        work = None if head.work is None else head.work.commit
        if work is None or self._tree.resolve(work) is None:
            return theirs
        return work if theirs is None or self._tree.contains(work, theirs) else theirs


def marks(top: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return of each path below *top* what another one, or the same one changed, has not."""
    found = {}
    for path in paths:
        try:
            there = (top / path).lstat()
        except OSError:
            found[_key(path)] = "gone"
        else:
            found[_key(path)] = f"{there.st_mode:o}-{there.st_size}-{there.st_mtime_ns}"
    return found


def changed_since(note: Note, top: Path, paths: Iterable[str]) -> list[str]:
    """Return those of *paths* that somebody has changed since the agents of *note* have ended."""
    if note.left is None:
        return []
    now = {path: marks(top, [path])[_key(path)] for path in paths}
    return [path for path, mark in now.items() if note.left.get(_key(path)) != mark]


def _key(path: str) -> str:
    """Return *path* as text that JSON takes, whatever its bytes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _claims_of(head: Head, owner: Owner) -> list[int]:
    """Return which attempts *owner* has claimed in *head*."""
    return [claim.attempt for claim in head.claims if claim.owner.nonce == owner.nonce]
