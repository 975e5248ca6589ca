"""Bound how much of unsigned request bodies is held and read, for each peer.

A body has to be read before its signature can be checked, so strangers can make the server read.
Each peer may send a few large bodies a minute whose signature turns out to be wrong or missing.
After that its large bodies are refused by their headers, and small ones share a few places: the
one that has been arriving longest makes room for the next. So a flood neither fills the memory
nor shuts out a tracker, also where both come through one proxy and have the same address: a
tracker's delivery is small and arrives at once.

Not promised: that a delivery of more than `SMALL_BYTES` gets past a flood from its own address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address

from msgspec import Struct

MOST_BYTES = 1024 * 1024
"""GitHub's texts have at most 64 KiB; what is larger is none of an issue."""
SMALL_BYTES = 256 * 1024
"""An issue's longest text with what GitHub sends around it is smaller."""
FREE_BYTES = 8 * MOST_BYTES
"""What one peer may hold, together with what it has sent unsigned in the last minute."""
SMALL_PLACES = 8
"""Small bodies of one peer that are read at the same time when it has used up the rest."""
MOST_HELD_BYTES = 32 * MOST_BYTES
"""What all peers hold."""
LEAST_BYTES = 64 * 1024
"""What a body counts at least: so much of it is read with its headers."""
BODY_S = 10.0
_MINUTE_S = 60.0
_MOST_PEERS = 4096


class TooMuch(Exception):
    """There is no room for a body; its text says why, *is_peer* whether for this peer only."""

    def __init__(self, text: str, *, is_peer: bool) -> None:
        super().__init__(text)
        self.is_peer = is_peer


class Upload(Struct, eq=False):
    """A body that is arriving, or whose signature was not verified yet."""

    peer: str
    size: int
    """Bytes that are set aside for it."""
    is_small_place: bool
    """It has one of the few places of a peer that has used up the rest."""
    is_signed: bool = False
    received: int = 0
    arriving: asyncio.Timeout | None = None
    """Bounds the rest of it; None: all of it is there."""
    made_room: bool = False
    """It was ended, so that another one could begin."""


class _Spent(Struct):
    """What a peer has sent unsigned; it fades out within a minute."""

    amount: float
    at: float


class Uploads:
    """The bodies that are held; used by one event loop."""

    def __init__(self) -> None:
        self._held: dict[Upload, None] = {}
        """Oldest first."""
        self._spent: dict[str, _Spent] = {}

    @asynccontextmanager
    async def room(self, address: str, size: int | None) -> AsyncIterator[Upload]:
        """Set room aside for a body of *size* bytes (None: not told) from *address*.

        Unless the upload is marked as signed in the block, what was received of it counts against
        its peer.

        Raises:
            TooMuch: there is none, and nothing of the body was read.
        """
        upload = self._admitted(peer_of(address), MOST_BYTES if size is None else size)
        self._held[upload] = None
        try:
            yield upload
        finally:
            del self._held[upload]
            if not upload.is_signed:
                self._spend(upload.peer, max(upload.received, LEAST_BYTES))

    def _admitted(self, peer: str, size: int) -> Upload:
        held = [one for one in self._held if not one.made_room]
        own = [one for one in held if one.peer == peer]
        size = max(size, LEAST_BYTES)
        is_over = sum(one.size for one in own) + self._level(peer) + size > FREE_BYTES
        if is_over:
            if size > SMALL_BYTES:
                raise TooMuch("too much without a right signature", is_peer=True)
            small = [one for one in own if one.is_small_place]
            if len(small) >= SMALL_PLACES and not _end_first(small):
                raise TooMuch("too many deliveries at the same time", is_peer=True)
        is_full = sum(one.size for one in held) + size > MOST_HELD_BYTES
        if is_full and not _end_first([one for one in held if one.size >= size]):
            raise TooMuch("too many deliveries at the same time", is_peer=False)
        return Upload(peer, size, is_over)

    def _level(self, peer: str) -> float:
        spent = self._spent.get(peer)
        if spent is None:
            return 0.0
        gone = (time.monotonic() - spent.at) / _MINUTE_S * FREE_BYTES
        return max(0.0, spent.amount - gone)

    def _spend(self, peer: str, size: int) -> None:
        # No more than there is: who has stopped is let in again within a minute.
        amount = min(self._level(peer) + size, float(FREE_BYTES))
        self._spent.pop(peer, None)
        self._spent[peer] = _Spent(amount, time.monotonic())
        if len(self._spent) > _MOST_PEERS:
            del self._spent[next(iter(self._spent))]


def _end_first(uploads: list[Upload]) -> bool:
    """End the first of *uploads* that is still arriving; return whether there was one."""
    for one in uploads:
        if one.arriving is not None and not one.arriving.expired():
            one.made_room = True
            one.arriving.reschedule(asyncio.get_running_loop().time())
            return True
    return False


def peer_of(address: str) -> str:
    """Return the peer at *address*: one machine of the new internet has many addresses.

    >>> peer_of("192.0.2.7"), peer_of("::ffff:192.0.2.7"), peer_of("2001:db8::1:2")
    ('192.0.2.7', '192.0.2.7', '2001:db8::')
    """
    if ":" not in address:
        return address
    try:
        full = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if full.ipv4_mapped is not None:
        return str(full.ipv4_mapped)
    return str(IPv6Address(int(full) >> 64 << 64))
