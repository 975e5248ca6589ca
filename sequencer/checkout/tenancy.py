"""Which step has begun in a work tree last: a note in git's own folder of that tree.

It is written when a step begins, and the tree was clean then. So what is dirty later is
that step's, even after a crash, and its next attempt may go on with it. Somebody else's
step is kept out while this one is worked on. Git shares nothing of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from sequencer.checkout.tree import WorkTree
from sequencer.errors import CorruptState
from sequencer.model.frozen import Frozen
from sequencer.model.head import Counter, Head, Loop, Owner, Work
from sequencer.store.headfile import read_head
from sequencer.store.identity import is_proven_dead, this_process
from sequencer.store.journal_file import read_regular

NOTE, LOCK = "sequencer-work.json", "sequencer-work.lock"
LOCK_WAIT_S = 60.0
"""Who holds the lock looks at one `git status` meanwhile."""
_MAX_BYTES = 64 * 1024
_MODE = 0o644


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


class Tenancy:
    """The note of one work tree, as one run sees it."""

    def __init__(self, tree: WorkTree, run: str | None, state: Path) -> None:
        """Speak for the run called *run*, whose state is in the file *state*."""
        self._tree = tree
        self._run = run
        self._state = state

    def note(self) -> Note | None:
        """Return who has begun here last; None where nobody has, or that can't be read."""
        with contextlib.suppress(OSError, CorruptState, ValidationError):
            data = read_regular(self._tree.git_dir / NOTE, 0, _MAX_BYTES)
            note = Note.model_validate_json(data)
            if note.top == str(self._tree.top):
                return note
        return None

    def ensure_free(self, note: Note | None, head: Head) -> None:
        """Return if no other run than that of *head* works here, as *note* has it.

        Raises:
            WorkTreeRefused: one does.
        """
        if note is not None and note.run_id != head.run_id and note.is_at_work():
            raise self._tree.refused(
                f"run {note.run or 'default'!r} works in it at present (process {note.owner.pid})",
                "start again when its step has ended, or give each run a clone of its own",
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[Note | None]:
        """Keep the note as it is while the block runs, but for `begin`; give it.

        Raises:
            WorkTreeRefused: it can't be locked.
        """
        path = self._tree.git_dir / LOCK
        try:
            with FileLock(path, timeout=LOCK_WAIT_S, mode=_MODE, fallback_to_soft=False):
                yield self.note()
        except Timeout:
            hint = "another process looks at it; start again"
            raise self._tree.refused(f"is kept locked by {path}", hint) from None

    def begin(self, head: Head) -> Note:
        """Note that the step at which *head* stands begins here, by this process.

        Raises:
            WorkTreeRefused: it can't be written.
        """
        owner = this_process()
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
        )
        path = self._tree.git_dir / NOTE
        fresh = path.with_name(f"{NOTE}.{os.getpid()}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(os.open(fresh, flags, _MODE), "wb") as file:  # noqa: PTH123 - a descriptor
                file.write(note.model_dump_json().encode())
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError as error:
            raise self._tree.refused(f"{path} can't be written: {error.strerror}") from error
        return note


def _claims_of(head: Head, owner: Owner) -> list[int]:
    """Return which attempts *owner* has claimed in *head*."""
    return [claim.attempt for claim in head.claims if claim.owner.nonce == owner.nonce]
