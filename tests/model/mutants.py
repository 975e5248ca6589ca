"""The product's rules, and broken ones that the model has to catch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.model.exploring import Verdict
from tests.model.git_protocol import GitModel, Pushing
from tests.model.turn_protocol import Model
from tests.model.world import Bounds, Protocol

PRODUCT = Protocol()
GIT = Pushing()
PRODUCT_BOUNDS = {
    "crashes and three tokens": Bounds(deletions=0),
    "the lock file is deleted": Bounds(steps=1, tokens=2, lines=6),
    "power loss": Bounds(power_loss=True, deletions=0),
    "git": Bounds(steps=1),
    "git, and a push that arrives late": Bounds(steps=1, tokens=2, arrivals=1),
}
"""Each small enough for every push; together they cover what a larger one would."""
LONG_BOUNDS = {
    "crashes and four tokens": Bounds(3, tokens=4, crashes=2, deletions=0, lines=10),
    "the lock file is deleted": Bounds(3, lines=8),
    "power loss twice": Bounds(3, power_loss=True, crashes=2, deletions=0, lines=9),
    "power loss without a lock file": Bounds(3, 1, 2, power_loss=True, lines=6),
    "git": Bounds(3),
    "git, and a push that arrives late": Bounds(3, 1, 2, arrivals=1),
}
"""Three workers."""
POWER = PRODUCT_BOUNDS["power loss"]
SMALL = Bounds(steps=1, tokens=2, lines=6, deletions=0)
MUTANTS: dict[str, tuple[Protocol | Pushing, Bounds]] = {
    "no fence": (replace(PRODUCT, fences="nothing"), Bounds(deletions=0)),
    "owner name only": (replace(PRODUCT, fences="owner"), Bounds(deletions=0)),
    "torn write": (replace(PRODUCT, has_journal=False, is_head_atomic=False), Bounds()),
    "no lock": (
        replace(PRODUCT, has_lock=False, checks_landing=False),
        Bounds(deletions=0),
    ),
    "append offset unchecked, lock file deleted": (
        replace(PRODUCT, checks_landing=False),
        Bounds(),
    ),
    "last record wins": (replace(PRODUCT, first_wins=False), Bounds()),
    "token reset on fail": (replace(PRODUCT, resets_token=True), Bounds(deletions=0)),
    "no take-over": (replace(PRODUCT, takes_over=False), SMALL),
    "soft lock": (replace(PRODUCT, lock_survives_crash=True), Bounds(deletions=0)),
    "no fsync": (replace(PRODUCT, syncs=False), POWER),
    "head ahead of journal trusted": (
        replace(PRODUCT, publishes_late=False, trusts_head=True),
        POWER,
    ),
    "roll-forward skipped": (replace(PRODUCT, rolls_forward=False), SMALL),
    "roll-forward not synced": (
        replace(PRODUCT, syncs_forward=False),
        replace(POWER, crashes=2),
    ),
    "force push": (replace(GIT, has_lease=False), Bounds()),
    "naive retry after a lost ack": (replace(GIT, looks_after_lost_answer=False), Bounds()),
    "a push that was given up is forgotten": (
        replace(GIT, remembers_pushes=False),
        Bounds(steps=1, tokens=2, arrivals=1),
    ),
    "no fence, in git": (replace(GIT, has_fence=False), Bounds()),
    "no take-over, in git": (replace(GIT, takes_over=False), SMALL),
}
"""Name -> broken rules, and the bounds under which that has to show."""


def explore(protocol: Protocol | Pushing, bounds: Bounds) -> Verdict[Any]:
    """Visit every world that the rules of *protocol* can reach within *bounds*."""
    if isinstance(protocol, Pushing):
        return GitModel(protocol, bounds).explore()
    return Model(protocol, bounds).explore()


def rules_for(name: str) -> Protocol | Pushing:
    """Return the product's rules for the bounds called *name*."""
    return GIT if name.startswith("git") else PRODUCT
