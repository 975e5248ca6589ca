"""A workspace that moves code: it says what a test wants, and writes down what it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sequencer.engine.workspace import Workspace
from sequencer.errors import SequencerError
from sequencer.model.head import Claim, Head, Work
from tests.unit.engine.flow.labs import Lab


def work(number: int) -> Work:
    return Work(branch="main", commit=f"{number:040x}")


@dataclass
class Cart(Workspace):
    """A workspace that writes down what it is asked, and moves what a test says."""

    says: dict[str, SequencerError] = field(default_factory=dict)
    """What `ensure_ready`, `enter` and `keep` raise."""
    has_work: bool = False
    """Whether each step has left a commit."""
    arrived: list[Work | None] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    left: list[int | None] = field(default_factory=list)
    """At which revisions it was left."""
    prompts: dict[str, str] = field(default_factory=dict)
    brings: Mapping[str, str] = field(default_factory=dict)
    """What the prompts are with the state's code."""
    folder: Path = Path()
    _count: int = 0

    @property
    def moves(self) -> bool:
        return True

    def _raise(self, name: str) -> None:
        if name in self.says:
            raise self.says[name]

    def ensure_ready(self, head: Head) -> None:
        del head
        self._raise("ready")

    def enter(self, head: Head) -> None:
        self._raise("enter")
        self.arrived.append(head.work)
        self.prompts.update(self.brings)

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        del claim, step, head
        if not self.has_work:
            return None
        self._count += 1
        return work(self._count)

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        del step, head
        self.kept.append(claim.token)
        self._raise("keep")
        return "kept"

    def find_obstacle(self, head: Head) -> SequencerError | None:
        del head
        return self.says.get("ready")

    def leave(self, head: Head | None) -> None:
        self.left.append(None if head is None else head.revision)


def carried(made: Lab, **options: Any) -> Cart:
    """Let the code of *made* move."""
    made.workspace = cart = Cart(prompts=made.prompts, **options)
    return cart
