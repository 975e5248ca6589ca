"""Heartbeats on disk, and what an observer may conclude from them.

A beat is a small file that its owner replaces without the lock, for the first time a third
of the lease after the claim; a short step never writes one. Observers under the same
boot compare its deadline with the boot clock; observers elsewhere remember when they
first saw this (token, beat) and believe the claim for 1.25 times its lease from then on.
The memory is a file, so that a `tick` an hour can observe as well as a waiting process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from sequencer.frozen.fields import ValidationError
from sequencer.model.head import Claim
from sequencer.model.outcome import Usage, used
from sequencer.store import folder as folders
from sequencer.store.identity import (
    boot_id,
    boottime,
    is_proven_dead,
    is_same_boot,
    open_process,
    this_process,
)
from sequencer.store.protocol import Liveness
from sequencer.store.strictjson import parse_object
from sequencer.store.watch import readable

_NAME = re.compile(r"(\d{1,19})(?:\.seen-[0-9a-z-]{8}|\.used)?(\.\d{1,10}\.tmp)?")
"""A beat, an observation or a use, or one half written; nothing else in the folder is ours."""
OBSERVED_LEASES = 1.25
"""How many leases an observer on another machine waits on its own clock."""


def leases_of(state_path: Path) -> Leases:
    """Return the leases of the run with the head *state_path*."""
    return Leases(state_path.parent / "beats")


class Leases:
    """The folder ``beats/`` of one run."""

    def __init__(self, folder: Path) -> None:
        """Use *folder*; it is made with the first beat."""
        self.folder = folder
        self._folder = str(folder)
        self._beaten: set[int] = set()
        """Tokens of this process's claims that have a beat."""
        self._holder: tuple[str, int] | None = None
        """The process that was looked at last: its nonce, and a descriptor of it."""

    def close(self) -> None:
        """Free the descriptor of a process; it is opened again when it is needed."""
        holder, self._holder = self._holder, None
        if holder is not None:
            os.close(holder[1])

    def __del__(self) -> None:
        """Close it where nobody did."""
        with contextlib.suppress(OSError, AttributeError):
            self.close()

    def holder(self, claim: Claim) -> int | None:
        """Return a descriptor that is readable once the holder of *claim* has ended.

        It is kept for the next claim of the same process. None: see `open_process`.
        """
        if self._holder is None or self._holder[0] != claim.owner.nonce:
            self.close()
            if (fd := open_process(claim.owner)) is None:
                return None
            self._holder = (claim.owner.nonce, fd)
        return self._holder[1]

    def beat(self, claim: Claim, number: int) -> None:
        """Write beat *number* of *claim* and with it a new deadline.

        Raises:
            OSError: nothing was renewed.
        """
        beat = {"beat": number, "deadline_boottime": round(boottime() + claim.ttl_s, 3)}
        self._beaten.add(claim.token)
        self._write(self.folder / str(claim.token), beat)

    def read(self, token: int) -> dict[str, Any]:
        """Return the newest beat of the claim with *token*; empty if there is none."""
        return self._read(self.folder / str(token))

    def keep(self, token: int, beat: dict[str, Any]) -> None:
        """Keep *beat* of a claim whose holder writes it elsewhere.

        Raises:
            OSError: it is not known here.
        """
        self._write(self.folder / str(token), beat)

    def keep_used(self, token: int, usage: Usage) -> None:
        """Keep what the attempt with *token* has used so far, should its process die.

        An attempt that has used nothing gets no file, because `forget_used` would not remove it.

        Raises:
            OSError: what was kept before still stands.
        """
        if usage == Usage():
            return
        self._write(self.folder / f"{token}.used", usage.model_dump(exclude_defaults=True))

    def used(self, claim: Claim) -> Usage:
        """Return what was seen of the use of *claim*, whose process has died or lost it.

        Nobody knows what it used after that, so it is a call of unknown cost as well. Its time
        ends with the last sign of life.
        """
        record = self._read(self.folder / f"{claim.token}.used")
        try:
            seen = used(record)
        except ValidationError:
            seen = Usage()
        return seen.replace(seconds=self._lived_s(claim), unpriced=max(seen.unpriced, 1))

    def _lived_s(self, claim: Claim) -> float:
        """Return for how long *claim* is known to have been worked on, in seconds of the wall."""
        signs = [0.0]
        for name in (str(claim.token), f"{claim.token}.used"):
            with contextlib.suppress(OSError):
                signs.append(os.lstat(self.folder / name).st_mtime)
        try:
            begun = datetime.fromisoformat(claim.claimed_at).timestamp()
        except ValueError:
            return 0.0
        # A clock that was wrong meanwhile makes no time of work.
        return round(max(min(max(signs), time.time()) - begun, 0.0), 3)

    def forget_used(self, token: int) -> None:
        """Remove what `keep_used` keeps of the attempt with *token*, which is recorded."""
        with contextlib.suppress(OSError):
            folders.remove(f"{self._folder}/{token}.used")

    def forget(self, claim: Claim) -> None:
        """Remove what belongs to *claim*, which is gone."""
        token = claim.token
        if token not in self._beaten and claim.owner.nonce == this_process().nonce:
            return
        self._beaten.discard(token)
        for name in (str(token), f"{token}.used"):
            with contextlib.suppress(OSError):  # a short step has none
                folders.remove(f"{self._folder}/{name}")

    def sweep(self, standing: set[int]) -> None:
        """Remove beats, observations and half-written files of all but the *standing* tokens."""

        def is_left(name: str) -> bool:
            found = _NAME.fullmatch(name)
            return found is not None and (bool(found[2]) or int(found[1]) not in standing)

        folders.sweep(self.folder, is_left)

    def liveness(self, claim: Claim) -> Liveness:
        """Return what is known about the holder of *claim*."""
        process = self.holder(claim)
        if (process is None or readable((process,), 0.0)) and is_proven_dead(claim.owner):
            return Liveness.DEAD
        is_here, granted = is_same_boot(claim.owner), claim.claimed_boottime
        if is_here and granted is not None and boottime() <= granted + claim.ttl_s:
            # A beat could only renew it.
            return Liveness.ALIVE
        beat = self.read(claim.token)
        deadline = beat.get("deadline_boottime")
        if deadline is None and claim.claimed_boottime is not None:
            # The first beat comes a third of the lease after the claim.
            deadline = claim.claimed_boottime + claim.ttl_s
        if is_here and isinstance(deadline, (int, float)):
            return Liveness.EXPIRED if boottime() > deadline else Liveness.ALIVE
        return self._observe(claim, beat.get("beat"))

    def quiet_s(self, claim: Claim) -> float | None:
        """Return how long ago the holder of *claim* was last heard of; None: nobody can tell.

        Of another machine it is how long the newest beat has stood still here, as far as
        `liveness` has seen it.
        """
        beat = self.read(claim.token)
        if is_same_boot(claim.owner):
            deadline = beat.get("deadline_boottime")
            since = deadline - claim.ttl_s if isinstance(deadline, (int, float)) else None
            since = claim.claimed_boottime if since is None else since
        else:
            seen = self._read(self._memory(claim))
            is_same = seen.get("boot_id") == boot_id() and seen.get("beat", "?") == beat.get("beat")
            since = seen.get("since_boottime") if is_same else None
        return max(boottime() - since, 0.0) if isinstance(since, (int, float)) else None

    def _memory(self, claim: Claim) -> Path:
        return self.folder / f"{claim.token}.seen-{boot_id()[:8]}"

    def _observe(self, claim: Claim, beat: Any) -> Liveness:
        memory = self._memory(claim)
        seen, now = self._read(memory), boottime()
        since = seen.get("since_boottime")
        is_same = seen.get("boot_id") == boot_id() and seen.get("beat", "?") == beat
        if is_same and isinstance(since, (int, float)) and since <= now:
            waited = now - since
            return Liveness.EXPIRED if waited > OBSERVED_LEASES * claim.ttl_s else Liveness.UNKNOWN
        with contextlib.suppress(OSError):
            self._write(memory, {"boot_id": boot_id(), "beat": beat, "since_boottime": now})
        return Liveness.UNKNOWN

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            fd = folders.open_file(path, os.O_RDONLY)
        except OSError:
            return {}
        try:
            return parse_object(os.read(fd, 4096))
        except (OSError, ValueError):
            return {}
        finally:
            os.close(fd)

    def _write(self, path: Path, value: dict[str, Any]) -> None:
        temporary = f"{path.name}.{os.getpid()}.tmp"
        try:
            self._replace(path.name, temporary, value)
        except FileNotFoundError:
            # A worker that sweeps took the temporary file for a left-over.
            self._replace(path.name, temporary, value)

    def _replace(self, name: str, temporary: str, value: dict[str, Any]) -> None:
        folder = folders.made(self.folder)
        fd = folder.create(temporary)
        try:
            os.write(fd, json.dumps(value).encode())
        finally:
            os.close(fd)
        folder.replace(temporary, name)
