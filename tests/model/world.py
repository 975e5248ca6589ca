"""What the model of the turn protocol is made of: the world, the rules, the bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Head(NamedTuple):
    """A journal record's head; revision 0 is the run before its first record."""

    revision: int
    step: int
    is_running: bool
    token: int
    owner: int = -1
    """A worker's number, where the rules look at names."""


GENESIS = Head(0, 0, is_running=False, token=0)


class Record(NamedTuple):
    """A line of the journal; one that can't be read has no head."""

    head: Head | None
    committed: tuple[int, int] | None = None
    """(step, token) that this line accepts."""
    writer: int = -1
    is_torn: bool = False
    """Its newline is missing."""


TORN, UNREADABLE = Record(None, is_torn=True), Record(None)


class Worker(NamedTuple):
    """Where one process is; everything in here is lost when it crashes."""

    at: str = "idle"
    claim: tuple[int, int] | None = None
    """(step, token) that it holds."""
    expected: int = 0
    """Number of lines before the one that it is about to append."""
    record: Record | None = None
    newest: Head | None = None
    """What it rolls state.json forward to."""
    has_landed: bool = False
    """Its line came to where it was expected."""


class World(NamedTuple):
    """One state of everything."""

    journal: tuple[Record, ...] = ()
    durable: int = 0
    """Lines that survive a power loss."""
    head: Head | None = GENESIS
    """state.json; None: torn."""
    lock: int | None = None
    workers: tuple[Worker, ...] = ()
    granted: tuple[int, ...] = ()
    """Tokens whose holders were told."""
    acknowledged: tuple[tuple[int, int], ...] = ()
    """Commits whose holders were told."""
    crashes: int = 0
    deletions: int = 0


@dataclass(frozen=True)
class Protocol:
    """The rules, each of which a mutant may break; the defaults are the product's."""

    has_lock: bool = True
    checks_lock: bool = True
    """The lock file is still the inode that is locked, just before the append."""
    checks_landing: bool = True
    first_wins: bool = True
    rolls_forward: bool = True
    syncs_forward: bool = True
    """What another process wrote is synced before state.json is rolled forward to it."""
    fences: str = "token"
    """What a commit needs: "token", "owner" (a name that is used again) or "nothing"."""
    syncs: bool = True
    publishes_late: bool = True
    """state.json is replaced after the sync, not before the append."""
    trusts_head: bool = False
    """A head ahead of the journal is believed."""
    is_head_atomic: bool = True
    has_journal: bool = True
    """False: state.json is all there is, as in other programs."""
    takes_over: bool = True
    resets_token: bool = False
    """A failure starts the tokens again."""
    lock_survives_crash: bool = False


@dataclass(frozen=True)
class Bounds:
    """How far the world is explored."""

    workers: int = 2
    steps: int = 2
    tokens: int = 3
    crashes: int = 1
    power_loss: bool = False
    deletions: int = 1
    lines: int = 7
    """Of the journal; a protocol that goes on appending for ever is stuck."""
    arrivals: int = 0
    """Pushes that may arrive after their answer was given up."""
    states: int = 6_000_000
