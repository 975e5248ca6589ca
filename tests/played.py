"""Several workers of one run in one process, each another process for all that the run knows.

They share a folder and its files, as processes do; `PlayedStore.leave` plays a worker's death.
"""

from __future__ import annotations

import shutil
import weakref
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

from sequencer import Claim, FileStore, Liveness, Owner

_NUMBERS = count(1)


class PlayedRun:
    """What the workers of one run share: *folder*, or one that goes with it."""

    def __init__(self, folder: Path | None = None, gone: set[str] | None = None) -> None:
        self.folder = folder or Path(mkdtemp(prefix="sequencer-played-")).resolve()
        self.gone = set[str]() if gone is None else gone
        """Nonces of the workers that have left."""
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class PlayedStore(FileStore):
    """One worker's view of a `PlayedRun`."""

    def __init__(self, run: PlayedRun | None = None, *, ttl_s: float = 60.0) -> None:
        self.run = run or PlayedRun()
        super().__init__(self.run.folder / "state.json", ttl_s=ttl_s)
        self._owner = super().owner().replace(nonce=f"worker-{next(_NUMBERS)}")

    def owner(self) -> Owner:
        return self._owner

    def liveness(self, claim: Claim) -> Liveness:
        is_gone = claim.owner.nonce in self.run.gone
        return Liveness.DEAD if is_gone else super().liveness(claim)

    def leave(self) -> None:
        """Be gone, as a worker that was killed: its claims may be taken over at once."""
        self.run.gone.add(self._owner.nonce)

    def __del__(self) -> None:
        # What a process has open ends with it.
        self.close()
