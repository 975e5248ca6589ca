"""Heartbeats on disk, and what an observer may conclude from them.

A heartbeat is a small file that its owner replaces without the lock. The first one comes a third
of the lease after the claim, so a short step writes none. Observers under the same boot compare
its deadline with the boot clock. Other observers store when they first saw this (token, beat), and
trust the claim for 1.25 times its lease from then on. They store it in a file, so that an hourly
`tick` can observe as well as a waiting process.
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
from sequencer.model.outcome import Usage, read_usage
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
from sequencer.store.watch import wait_readable

_NAME = re.compile(r"(\d{1,19})(?:\.seen-[0-9a-z-]{8}|\.used)?(\.\d{1,10}\.tmp)?")
"""Names of heartbeats, observations and usage, and their temporary files; no others are ours."""
OBSERVED_LEASES = 1.25
"""How long an observer on another machine waits by its own clock, in leases."""


def open_leases(state_path: Path) -> Leases:
    """Return the leases of the run with the head *state_path*."""
    return Leases(state_path.parent / "beats")


class Leases:
    """The folder ``beats/`` of one run."""

    def __init__(self, folder: Path) -> None:
        """Use *folder*; it is made with the first heartbeat."""
        self.folder = folder
        self._folder = str(folder)
        self._beat_tokens: set[int] = set()
        """Tokens of this process's claims that have a heartbeat."""
        self._holder: tuple[str, int] | None = None
        """The process of the last `open_holder` call: its nonce, and a descriptor of it."""

    def close(self) -> None:
        """Close the descriptor of a process; it is opened again when it is needed."""
        holder, self._holder = self._holder, None
        if holder is not None:
            os.close(holder[1])

    def __del__(self) -> None:
        """Close the descriptor if `close` was not called."""
        with contextlib.suppress(OSError, AttributeError):
            self.close()

    def open_holder(self, claim: Claim) -> int | None:
        """Return a descriptor that becomes readable when the holder of *claim* ends.

        It stays open for the next claim of the same process. None: see `open_process`.
        """
        if self._holder is None or self._holder[0] != claim.owner.nonce:
            self.close()
            if (fd := open_process(claim.owner)) is None:
                return None
            self._holder = (claim.owner.nonce, fd)
        return self._holder[1]

    def beat(self, claim: Claim, number: int) -> None:
        """Write heartbeat *number* of *claim*, with a new deadline.

        Raises:
            OSError: the lease was not renewed.
        """
        beat = {"beat": number, "deadline_boottime": round(boottime() + claim.ttl_s, 3)}
        self._beat_tokens.add(claim.token)
        self._write(self.folder / str(claim.token), beat)

    def read(self, token: int) -> dict[str, Any]:
        """Return the newest heartbeat of the claim with *token*; empty: there is none."""
        return self._read(self.folder / str(token))

    def write_beat(self, token: int, beat: dict[str, Any]) -> None:
        """Store *beat* of a claim whose holder writes it on another machine.

        Raises:
            OSError: it was not stored.
        """
        self._write(self.folder / str(token), beat)

    def write_usage(self, token: int, usage: Usage) -> None:
        """Store the usage so far of the attempt with *token*, in case its process dies.

        Without usage there is no file, because `remove_usage` would not remove it.

        Raises:
            OSError: the file still has the older usage.
        """
        if usage == Usage():
            return
        self._write(self.folder / f"{token}.used", usage.model_dump(exclude_defaults=True))

    def read_usage(self, claim: Claim) -> Usage:
        """Return the stored usage of *claim*, whose process died or lost the claim.

        Its usage after that is unknown, so it counts as at least one call of unknown cost. Its time
        ends with the last sign of life.
        """
        record = self._read(self.folder / f"{claim.token}.used")
        try:
            usage = read_usage(record)
        except ValidationError:
            usage = Usage()
        return usage.replace(seconds=self._lifetime_s(claim), unpriced=max(usage.unpriced, 1))

    def _lifetime_s(self, claim: Claim) -> float:
        """Return how long the holder of *claim* is known to have worked, in wall clock seconds."""
        signs = [0.0]
        for name in (str(claim.token), f"{claim.token}.used"):
            with contextlib.suppress(OSError):
                signs.append(os.lstat(self.folder / name).st_mtime)
        try:
            start = datetime.fromisoformat(claim.claimed_at).timestamp()
        except ValueError:
            return 0.0
        # The wall clock may have been set in the meantime; the time must not become negative.
        return round(max(min(max(signs), time.time()) - start, 0.0), 3)

    def remove_usage(self, token: int) -> None:
        """Remove the `write_usage` file of the attempt with *token*: the journal has its usage."""
        with contextlib.suppress(OSError):
            folders.remove(f"{self._folder}/{token}.used")

    def remove_files(self, claim: Claim) -> None:
        """Remove the files of *claim*, which has ended."""
        token = claim.token
        if token not in self._beat_tokens and claim.owner.nonce == this_process().nonce:
            return  # no heartbeat was due, and `remove_usage` has removed the other file
        self._beat_tokens.discard(token)
        for name in (str(token), f"{token}.used"):
            with contextlib.suppress(OSError):  # a short step has none
                folders.remove(f"{self._folder}/{name}")

    def sweep(self, active: set[int]) -> None:
        """Remove all temporary files, and the files of all tokens that are not *active*."""

        def is_left_over(name: str) -> bool:
            match = _NAME.fullmatch(name)
            return match is not None and (bool(match[2]) or int(match[1]) not in active)

        folders.sweep(self.folder, is_left_over)

    def liveness(self, claim: Claim) -> Liveness:
        """Return what is known about the holder of *claim*."""
        process = self.open_holder(claim)
        if (process is None or wait_readable((process,), 0.0)) and is_proven_dead(claim.owner):
            return Liveness.DEAD
        is_local, start_boottime = is_same_boot(claim.owner), claim.claimed_boottime
        if is_local and start_boottime is not None and boottime() <= start_boottime + claim.ttl_s:
            # The first lease has not expired; a heartbeat could only extend it.
            return Liveness.ALIVE
        beat = self.read(claim.token)
        deadline = beat.get("deadline_boottime")
        if deadline is None and claim.claimed_boottime is not None:
            # Without a heartbeat, the lease starts with the claim.
            deadline = claim.claimed_boottime + claim.ttl_s
        if is_local and isinstance(deadline, (int, float)):
            return Liveness.EXPIRED if boottime() > deadline else Liveness.ALIVE
        return self._observe(claim, beat.get("beat"))

    def silence_s(self, claim: Claim) -> float | None:
        """Return the seconds since the last sign of life of *claim*'s holder; None: unknown.

        For another machine, the seconds since the newest heartbeat was first seen here, if
        `liveness` has seen it.
        """
        beat = self.read(claim.token)
        if is_same_boot(claim.owner):
            deadline = beat.get("deadline_boottime")
            start = deadline - claim.ttl_s if isinstance(deadline, (int, float)) else None
            start = claim.claimed_boottime if start is None else start
        else:
            observation = self._read(self._observation_path(claim))
            is_same = _is_of_heartbeat(observation, beat.get("beat"))
            start = observation.get("since_boottime") if is_same else None
        return max(boottime() - start, 0.0) if isinstance(start, (int, float)) else None

    def _observation_path(self, claim: Claim) -> Path:
        return self.folder / f"{claim.token}.seen-{boot_id()[:8]}"

    def _observe(self, claim: Claim, beat: Any) -> Liveness:
        path = self._observation_path(claim)
        observation, now = self._read(path), boottime()
        start = observation.get("since_boottime")
        is_same = _is_of_heartbeat(observation, beat)
        if is_same and isinstance(start, (int, float)) and start <= now:
            waited_s = now - start
            return (
                Liveness.EXPIRED if waited_s > OBSERVED_LEASES * claim.ttl_s else Liveness.UNKNOWN
            )
        with contextlib.suppress(OSError):
            self._write(path, {"boot_id": boot_id(), "beat": beat, "since_boottime": now})
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
            # Another worker's sweep removed the temporary file.
            self._replace(path.name, temporary, value)

    def _replace(self, name: str, temporary: str, value: dict[str, Any]) -> None:
        folder = folders.make_folder(self.folder)
        fd = folder.create(temporary)
        try:
            os.write(fd, json.dumps(value).encode())
        finally:
            os.close(fd)
        folder.replace(temporary, name)


def _is_of_heartbeat(observation: dict[str, Any], beat: Any) -> bool:
    """Return whether *observation* is about heartbeat *beat* and was made under this boot."""
    return observation.get("boot_id") == boot_id() and observation.get("beat", "?") == beat
