"""The product's rules, and broken ones that the model has to catch."""

from __future__ import annotations

from dataclasses import replace

from tests.model.world import Bounds, Protocol

PRODUCT = Protocol()
PRODUCT_BOUNDS = {
    "crashes and three tokens": Bounds(deletions=0),
    "the lock file is deleted": Bounds(steps=1, tokens=2, lines=6),
    "power loss": Bounds(power_loss=True, deletions=0),
}
"""Each small enough for every push; together they cover what a larger one would."""
POWER = PRODUCT_BOUNDS["power loss"]
SMALL = Bounds(steps=1, tokens=2, lines=6, deletions=0)
MUTANTS: dict[str, tuple[Protocol, Bounds]] = {
    "no fence": (replace(PRODUCT, fences="nothing"), Bounds()),
    "owner name only": (replace(PRODUCT, fences="owner"), Bounds()),
    "torn write": (replace(PRODUCT, has_journal=False, is_head_atomic=False), Bounds()),
    "no lock, no look": (
        replace(PRODUCT, has_lock=False, checks_landing=False),
        Bounds(deletions=0),
    ),
    "append offset unchecked, lock file deleted": (
        replace(PRODUCT, checks_landing=False),
        Bounds(),
    ),
    "last record wins": (replace(PRODUCT, first_wins=False), Bounds()),
    "token reset on fail": (replace(PRODUCT, resets_token=True), Bounds()),
    "no take-over": (replace(PRODUCT, takes_over=False), SMALL),
    "soft lock": (replace(PRODUCT, lock_survives_crash=True), Bounds(deletions=0)),
    "no fsync": (replace(PRODUCT, syncs=False), POWER),
    "head ahead of journal trusted": (
        replace(PRODUCT, publishes_late=False, trusts_head=True),
        POWER,
    ),
    "roll-forward skipped": (replace(PRODUCT, rolls_forward=False), SMALL),
}
"""Name -> broken rules, and the bounds under which that has to show."""
