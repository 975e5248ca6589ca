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
from pathlib import Path
from typing import Any

from sequencer.model.head import Claim
from sequencer.store.identity import (
    boot_id,
    boottime,
    is_proven_dead,
    is_same_boot,
    this_process,
)
from sequencer.store.protocol import Liveness
from sequencer.store.strictjson import parse_object

OBSERVED_LEASES = 1.25
"""How many leases an observer on another machine waits on its own clock."""


class Leases:
    """The folder ``beats/`` of one run."""

    def __init__(self, folder: Path) -> None:
        """Use *folder*; it is made with the first beat."""
        self.folder = folder
        self._folder = str(folder)
        self._beaten: set[int] = set()
        """Tokens of this process's claims that have a beat."""

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

    def forget(self, claim: Claim) -> None:
        """Remove what belongs to *claim*, which is gone."""
        token = claim.token
        if token not in self._beaten and claim.owner.nonce == this_process().nonce:
            return
        self._beaten.discard(token)
        try:
            os.unlink(f"{self._folder}/{token}")  # noqa: PTH108 (on every step's path)
        except OSError:
            return  # a short step has none

    def sweep(self, standing: set[int]) -> None:
        """Remove beats, observations and half-written files of all but the *standing* tokens."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.folder):
                token = entry.name.partition(".")[0]
                if token.startswith("agents-"):
                    continue  # the lock of a step's processes, which they alone end
                is_standing = token.isdigit() and int(token) in standing
                if not is_standing or entry.name.endswith(".tmp"):
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108 (a DirEntry is no Path)

    def liveness(self, claim: Claim) -> Liveness:
        """Return what is known about the holder of *claim*."""
        if is_proven_dead(claim.owner):
            return Liveness.DEAD
        beat = self.read(claim.token)
        deadline = beat.get("deadline_boottime")
        if deadline is None and claim.claimed_boottime is not None:
            # The first beat comes a third of the lease after the claim.
            deadline = claim.claimed_boottime + claim.ttl_s
        if is_same_boot(claim.owner) and isinstance(deadline, (int, float)):
            if boottime() > deadline:
                return Liveness.EXPIRED
            return Liveness.ALIVE
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
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return {}
        try:
            return parse_object(os.read(fd, 4096))
        except (OSError, ValueError):
            return {}
        finally:
            os.close(fd)

    def _write(self, path: Path, value: dict[str, Any]) -> None:
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            self._replace(path, temporary, value)
        except FileNotFoundError:
            # No folder yet, or a worker that sweeps took the temporary file for a left-over.
            self.folder.mkdir(parents=True, exist_ok=True)
            self._replace(path, temporary, value)

    @staticmethod
    def _replace(path: Path, temporary: str, value: dict[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(temporary, flags, 0o644)
        try:
            os.write(fd, json.dumps(value).encode())
        finally:
            os.close(fd)
        os.replace(temporary, path)  # noqa: PTH105 (a pair of open and replace)
