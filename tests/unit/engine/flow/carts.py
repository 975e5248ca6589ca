"""A carrier of code that says what a test wants, and writes down what it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sequencer.errors import SequencerError
from sequencer.model.head import Claim, Head, Work
from tests.unit.engine.flow.labs import Lab


def work(number: int) -> Work:
    return Work(branch="main", commit=f"{number:040x}")


@dataclass
class Cart:
    """A carrier that writes down what it is asked, and moves what a test says."""

    says: dict[str, SequencerError] = field(default_factory=dict)
    """What `ready`, `arrive` and `keep` raise."""
    moves: bool = False
    """Whether each step has left a commit."""
    arrived: list[Work | None] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    left: list[int | None] = field(default_factory=list)
    """At which revisions it was left."""
    prompts: dict[str, str] = field(default_factory=dict)
    brings: Mapping[str, str] = field(default_factory=dict)
    """What the prompts are with the state's code."""
    _count: int = 0

    @property
    def refs(self) -> dict[str, str]:
        return {}

    def _raise(self, name: str) -> None:
        if name in self.says:
            raise self.says[name]

    def ready(self, head: Head) -> None:
        del head
        self._raise("ready")

    def arrive(self, head: Head) -> None:
        self._raise("arrive")
        self.arrived.append(head.work)
        self.prompts.update(self.brings)

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        del claim, step, head
        if not self.moves:
            return None
        self._count += 1
        return work(self._count)

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        del step, head
        self.kept.append(claim.token)
        self._raise("keep")
        return "kept"

    def merged(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """See `Carrier.merged`: it moves with the state."""
        del claim, head
        return work

    def obstacle(self, head: Head) -> SequencerError | None:
        del head
        return self.says.get("ready")

    def publish(self, head: Head) -> None:
        """See `Carrier.publish`: it moves with the state."""

    def leave(self, head: Head | None) -> None:
        self.left.append(None if head is None else head.revision)


def carried(made: Lab, **options: Any) -> Cart:
    """Let the code of *made* move."""
    made.carrier = cart = Cart(prompts=made.prompts, **options)
    return cart
