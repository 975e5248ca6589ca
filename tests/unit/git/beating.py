"""Workers that beat through a real remote, each in a clone of its own."""

from __future__ import annotations

import json
from pathlib import Path

from sequencer.model.head import Claim
from sequencer.plugins.git.state.heartbeats import Heartbeats
from sequencer.store import identity
from sequencer.store.protocol import Liveness
from tests.contract.store_cases import make_claim
from tests.unit.git import remotes

ALIVE, UNKNOWN, EXPIRED, DEAD = Liveness


class Lab:
    """A remote, and workers that beat each in a clone of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.remote = remotes.new_remote(folder / "remote.git")
        self._made: list[Heartbeats] = []

    def clone(self, name: str) -> Path:
        folder = self.folder / name
        return folder if folder.exists() else remotes.new_clone(self.remote, folder)

    def worker(self, name: str) -> Heartbeats:
        made = remotes.new_beats(self.clone(name))
        self._made.append(made)
        return made

    def tip(self) -> str | None:
        return remotes.tip(self.remote, remotes.BEATS)

    def there(self) -> dict[str, int]:
        """Return the beats on the remote by their tokens."""
        found = remotes.files(self.remote, remotes.BEATS)
        return {name: json.loads(data)["beat"] for name, data in found.items()}

    def depth(self) -> int:
        return int(remotes.git(self.remote, "rev-list", "--count", remotes.BEATS))

    def close(self) -> None:
        for made in self._made:
            made._objects.close()


def here(token: int = 1, **update: object) -> Claim:
    """Return a claim of another process under this boot, which nothing proves dead."""
    owner = identity.this_process().replace(pid_ns="pid:[1]", nonce="other")
    return make_claim(token, owner=owner, **update)
