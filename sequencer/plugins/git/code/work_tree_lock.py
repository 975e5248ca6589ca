"""The work-tree lock: a note and a kernel lock in git's folder say which step works in the tree.

The note is written when a step starts, and the tree is clean then. So changes at its end are that
step's, and its next attempt may continue with them; later changes are not. The kernel lock keeps
the tree for one process while its agents work, and ends with that process.

Before an attempt's commit is written, the note says that its code will be pushed. So after a kill
it is known which commits were not accepted: they get their own branch, and the tree's branch is
reset. Not promised: that files with other changes are reset (they stay as they are), or a branch on
which a person has continued.
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
"""Long enough for one `git status` by the process that holds the note's lock."""
PROBE_S = 0.25
"""A process that only probes holds the agents' lock for less than this."""
TAKE_S = 5.0
"""A tree that was free a moment ago is free again within this time."""
ENDED_S = 2.0
"""After this time, the agents of a killed process have ended."""
MAX_LEFT = 10_000
"""Maximum changed paths to remember after an attempt; with more, none are."""
_MAX_BYTES = 16 * 1024 * 1024


KEPT = "sequencer-kept"
"""Prefix of branches with work that was not accepted."""
_NAMES = 20
_PARENT = re.compile(r"^parent ([0-9a-f]+)$", re.MULTILINE)


class PlannedPush(Frozen):
    """The code of an attempt whose push has started or will start."""

    base: str
    """The commit on which the attempt started."""
    commit: str
    """The commit that its agent left; the commit of declared files is on top of it."""
    ref: str
    kept: str
    """The name of the branch that keeps the code if it is not accepted."""
    token: Counter


class Note(Frozen):
    """The step that started last in a work tree."""

    top: str
    """The path of the work tree; it shows whether the note was copied with the tree."""
    run: str | None
    state: str
    """The state file of its run on this machine."""
    run_id: str
    step_index: Counter
    loop: Loop | None
    work: Work | None
    attempt: Counter
    owner: Owner
    branch: str | None = None
    """The branch that was checked out; None: an older version has written the note."""
    collecting: PlannedPush | None = None
    left: Mapping[str, str] | None = None
    """Changed path -> fingerprint, after its agents had ended; None: not recorded."""

    def is_of_step(self, head: Head) -> bool:
        """Return whether *head* is still at the step of this note, with its attempt ended."""
        step = (self.run_id, self.step_index, self.loop, self.work)
        is_same_step = step == (head.run_id, head.step_index, head.loop, head.work)
        # A process that holds a claim asks about the step after it.
        return is_same_step and not _list_claims_by(head, this_process())

    def is_at_work(self) -> bool:
        """Return whether its process holds a step of its run and may be alive."""
        if is_proven_dead(self.owner):
            return False
        try:
            content = read_head(Path(self.state)).content or {}
        except (CorruptState, OSError):
            return True
        claims = content.get("claims")
        claims = claims if isinstance(claims, list) else []
        owners = [claim.get("owner") for claim in claims if isinstance(claim, dict)]
        nonces = [owner.get("nonce") for owner in owners if isinstance(owner, dict)]
        return content.get("run_id") == self.run_id and self.owner.nonce in nonces


class WorkTreeLock:
    """The note and the lock of one work tree, used by one run."""

    def __init__(self, tree: WorkTree, run: str | None, state: Path, committer: Committer) -> None:
        """Act for the run called *run*, whose state is in the file *state*."""
        self._tree = tree
        self._run = run
        self._state = state
        self._committer = committer
        self.base: str | None = None
        """The commit on which this process's agents started here; None: none work here."""
        self._agents_lock: FileLock | None = None
        """Held while agents of this process work here."""

    def load_note(self) -> Note | None:
        """Return the note of the step that started here last; None: none, or not readable."""
        note = read_note(self._tree.git_dir / NOTE, Note, _MAX_BYTES)
        return note if note is not None and note.top == str(self._tree.top) else None

    def ensure_free(self, note: Note | None, head: Head) -> None:
        """Check that according to *note*, no run other than the run of *head* works here.

        Raises:
            WorkTreeRefused: another run works here.
        """
        if note is not None and note.run_id != head.run_id and note.is_at_work():
            raise self._tree.make_refusal(
                f"run {note.run or 'default'!r} is working in it (process {note.owner.pid})",
                "start again when its step has ended, or give each run a clone of its own",
            )

    # --- while agents work ---------------------------------------------------------

    def ensure_work_tree_free(self, note: Note | None) -> bool:
        """Check that no agents of another process work here; *note* is the last step's.

        Returns whether such agents may have worked here until now.

        Raises:
            WorkTreeBusy: agents of another process still work here.
        """
        if self._agents_lock is not None:
            return False
        if not self._acquire(PROBE_S):
            raise self._busy_error(note)
        was_killed = self._mark.exists()
        self._release()
        if was_killed and note is not None and is_same_boot(note.owner):
            # Give the guards of its agents time to end them.
            time.sleep(ENDED_S)
        return was_killed or self.load_note() != note

    def occupy(self, note: Note | None) -> None:
        """Keep the tree for agents of this process, until `vacate` or the end of the process.

        Raises:
            WorkTreeRefused: another process was faster.
        """
        if self._agents_lock is None and not self._acquire(TAKE_S):
            error = self._busy_error(note)
            raise self._tree.make_refusal(error.message, error.hint)
        with contextlib.suppress(OSError):
            self._mark.touch(LOCK_MODE)

    def vacate(self) -> None:
        """Free the tree, if it is kept for this process."""
        if self._agents_lock is not None:
            with contextlib.suppress(OSError):
                self._mark.unlink(missing_ok=True)
            self._release()

    @property
    def is_occupied(self) -> bool:
        """Return whether the tree is kept for this process."""
        return self._agents_lock is not None

    @property
    def _mark(self) -> Path:
        """Return the file that exists while a process keeps the tree, and stays if it is killed."""
        return self._tree.git_dir / AGENTS_MARK

    def _acquire(self, timeout_s: float) -> bool:
        # Any thread may release it, and child processes do not inherit it.
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
            raise self._tree.make_refusal(f"can't be locked: {error.strerror}") from error
        self._agents_lock = lock
        return True

    def _release(self) -> None:
        lock, self._agents_lock = self._agents_lock, None
        if lock is not None:
            lock.release()

    def _busy_error(self, note: Note | None) -> WorkTreeBusy:
        process = (
            f"process {note.owner.pid} of run {note.run or 'default'!r}" if note else "a process"
        )
        pid = note.owner.pid if note else "PID"
        return WorkTreeBusy(
            f"agents of {process} are still working in this work tree",
            where=f"work tree {self._tree.top}",
            hint=f"it is free once they end; if that process is suspended, 'kill -CONT {pid}' "
            f"resumes it and 'kill {pid}' ends it; or work in a clone of your own",
        )

    # --- the note ------------------------------------------------------------------

    @contextlib.contextmanager
    def lock_note(self) -> Iterator[Note | None]:
        """Give the block the note; no other process can change it while the block runs.

        Raises:
            WorkTreeRefused: the lock is held for too long.
        """
        hint = "another process is looking at it; start again"
        with self._tree.hold_lock(self._tree.git_dir / LOCK, LOCK_WAIT_S, hint):
            yield self.load_note()

    def record_start(self, head: Head, branch: str | None = None) -> Note:
        """Write and return the note that this process starts the step of *head* on *branch*.

        Raises:
            WorkTreeRefused: the note can't be written.
        """
        owner, old_note = this_process(), self.load_note()
        note = Note(
            top=str(self._tree.top),
            run=self._run,
            state=str(self._state.absolute()),
            run_id=head.run_id,
            step_index=head.step_index,
            loop=head.loop,
            work=head.work,
            attempt=max(_list_claims_by(head, owner), default=1),
            owner=owner,
            branch=branch,
            # Keep the mark of a parallel attempt; the last to leave checks whether it was accepted.
            collecting=None if old_note is None or old_note.owner != owner else old_note.collecting,
        )
        self._write(note)
        return note

    def record_collecting(self, collecting: PlannedPush | None) -> None:
        """Record in the note which code is about to be pushed; None: no push is pending anymore.

        Do nothing without a note.

        Raises:
            WorkTreeRefused: the note can't be written.
        """
        note = self.load_note()
        if note is not None and note.collecting != collecting:
            self._write(note.replace(collecting=collecting))

    def record_end(self, note: Note, dirty: Iterable[str]) -> None:
        """Write to *note* that its agents have ended and left the *dirty* paths as they are now.

        Raises:
            WorkTreeRefused: the note can't be written.
        """
        fingerprints = fingerprint_paths(self._tree.top, dirty)
        self._write(note.replace(left=fingerprints if len(fingerprints) <= MAX_LEFT else None))

    def _write(self, note: Note) -> None:
        path = self._tree.git_dir / NOTE
        try:
            write_note(path, note, LOCK_MODE)
        except OSError as error:
            raise self._tree.make_refusal(f"{path} can't be written: {error.strerror}") from error

    # --- taking code back ----------------------------------------------------------

    def record_plan(
        self, claim: Claim, branch: str, commit: str, theirs: str | None, *, has_more: bool
    ) -> None:
        """Write to the note that the code of *claim*'s attempt, up to *commit*, will be pushed.

        *has_more*: declared files will be committed on top. *theirs* is the last accepted commit.

        Raises:
            WorkTreeRefused: the note can't be written.
        """
        base = self.base
        if base is not None and theirs is not None and self._tree.contains(theirs, base):
            base = theirs
        if base is not None and (has_more or commit != base):
            ref, kept_branch = f"refs/heads/{branch}", self.kept_branch_name(claim)
            plan = PlannedPush(
                base=base, commit=commit, ref=ref, kept=kept_branch, token=claim.token
            )
            self.record_collecting(plan)

    def find_unaccepted(
        self, note: Note | None, theirs: str | None
    ) -> tuple[PlannedPush, str] | None:
        """Return the plan in *note* and HEAD, if HEAD has code that was not accepted.

        *theirs* is the last accepted commit. None: there is nothing to take back.
        """
        plan = None if note is None else note.collecting
        commit = None if plan is None else self._tree.resolve("HEAD")
        if plan is None or commit is None or commit == plan.base:
            return None
        is_accepted = theirs is not None and self._tree.contains(theirs, commit)
        return None if is_accepted or not self._is_of_attempt(plan, commit) else (plan, commit)

    def reset_unaccepted(self, note: Note | None, theirs: str | None) -> str | None:
        """Reset the branch if it has code that was not accepted; return a notice, or None.

        Only one process may call this at a time, while no agent works.

        Raises:
            WorkTreeRefused: the branch can't be reset.
        """
        unaccepted_plan = self.find_unaccepted(note, theirs)
        if unaccepted_plan is None:
            return None
        plan, commit = unaccepted_plan
        base = plan.base
        if theirs is not None and self._tree.contains(theirs, base):
            base = theirs if self._tree.contains(commit, theirs) else base
        # First put the code on its own branch, so that the reset loses nothing.
        name = self.keep_on_branch(plan.kept, commit)
        self._reset(base)
        self.record_collecting(None)
        branch = plan.ref.removeprefix("refs/heads/")
        notice = f"branch {branch} is at {base[:12]} again, the last accepted commit"
        return f"{notice}; the work that was not accepted is on branch {name}"

    def _is_of_attempt(self, plan: PlannedPush, commit: str) -> bool:
        """Return whether *commit* is the last commit of the attempt in *plan*, not a later one."""
        if self._tree.resolve(plan.ref) != commit:
            return False
        if commit == plan.commit:
            return True
        head, _, message = self._tree.read_commit(commit).partition("\n\n")
        is_next = _PARENT.findall(head) == [plan.commit]
        return is_next and f"Token: {plan.token}" in message.splitlines()

    def _reset(self, base: str) -> None:
        git = self._tree.slow_git
        try:
            git.run("reset", "--quiet", "--keep", base)
        except GitFailed:
            try:
                git.run("reset", "--quiet", "--mixed", base, accepts=(0, 1))
            except GitFailed as failed:
                raise self._tree.make_refusal(
                    f"can't be reset to {base[:12]}, the last accepted commit: {failed.reason}",
                    f"'git reset --keep {base}', then start again",
                ) from failed

    def keep_on_branch(
        self, base: str, commit: str, selection: Selection | None = None, text: str = ""
    ) -> str:
        """Put *selection* on top of *commit* on a branch *base* or ``BASE.N``; return its name.

        Raises:
            WorkTreeRefused: git can't write it.
        """
        for number in range(1, _NAMES):
            name = base if number == 1 else f"{base}.{number}"
            ref = f"refs/heads/{name}"
            tip = self._tree.resolve(ref)
            if selection is None and tip is not None and self._tree.contains(tip, commit):
                return name
            if tip not in (None, commit):
                continue
            try:
                self._committer.snapshot(selection or Selection(), commit, ref, text)
            except RefMoved:
                continue
            return name
        raise self._tree.make_refusal(f"has too many branches {base}.N", "remove old ones")

    def kept_branch_name(self, claim: Claim) -> str:
        """Return the name of the branch that keeps an attempt's work; see `keep_on_branch`."""
        return f"{KEPT}/{ref_part(slug(self._run or 'default'))}/{claim.step_index}-{claim.token}"

    def find_accepted_commit(self, head: Head, theirs: str | None) -> str | None:
        """Return the newest accepted commit: from the state *head*, or the remote's *theirs*."""
        work = None if head.work is None else head.work.commit
        if work is None or self._tree.resolve(work) is None:
            return theirs
        return work if theirs is None or self._tree.contains(work, theirs) else theirs


def fingerprint_paths(top: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return path -> fingerprint of the file below *top*, which changes with the file."""
    result = {}
    for path in paths:
        try:
            info = (top / path).lstat()
        except OSError:
            result[_encode_path(path)] = "gone"
        else:
            result[_encode_path(path)] = f"{info.st_mode:o}-{info.st_size}-{info.st_mtime_ns}"
    return result


def find_changed_paths(note: Note, top: Path, paths: Iterable[str]) -> list[str]:
    """Return the *paths* that have changed since the agents of *note* ended."""
    if note.left is None:
        return []
    marks = {path: fingerprint_paths(top, [path])[_encode_path(path)] for path in paths}
    return [path for path, mark in marks.items() if note.left.get(_encode_path(path)) != mark]


def _encode_path(path: str) -> str:
    """Return *path* as text that is valid in JSON, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _list_claims_by(head: Head, owner: Owner) -> list[int]:
    """Return the numbers of the attempts that *owner* has claimed in *head*."""
    return [claim.attempt for claim in head.claims if claim.owner.nonce == owner.nonce]
