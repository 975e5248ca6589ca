"""Limits how much of unsigned request bodies is read and held, per peer.

A body must be read before its signature can be checked, so strangers can make the server read.
Each peer may send a few large bodies a minute with a wrong or missing signature. After that, its
large bodies are refused by their headers, and its small ones share a few places: the one that
has been arriving longest makes room for the next. So a flood cannot fill the memory or shut out
a tracker, even if both come through one proxy and so have the same address: a tracker's delivery
is small and arrives quickly.

Not promised: that a delivery of more than `SMALL_BYTES` gets past a flood from its own address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address

from msgspec import Struct

MAX_BYTES = 1024 * 1024
"""Limit of one body. GitHub's texts have at most 64 KiB, so no issue's delivery is larger."""
SMALL_BYTES = 256 * 1024
"""A delivery with an issue's longest text is smaller."""
FREE_BYTES = 8 * MAX_BYTES
"""Limit per peer: what it holds now plus what it sent unsigned in the last minute."""
SMALL_PLACES = 8
"""Maximum small bodies of one peer to read at the same time once it is over `FREE_BYTES`."""
MAX_HELD_BYTES = 32 * MAX_BYTES
"""Limit of what all peers hold."""
MIN_BYTES = 64 * 1024
"""Each body counts as at least this: that much is read together with its headers."""
BODY_S = 10.0
_MINUTE_S = 60.0
_MAX_PEERS = 4096


class UploadLimitReached(Exception):
    """There is no room for a body; *is_peer* says whether this peer's own limit is reached."""

    def __init__(self, text: str, *, is_peer: bool) -> None:
        super().__init__(text)
        self.is_peer = is_peer


class Upload(Struct, eq=False):
    """A body that is arriving, or whose signature is not verified yet."""

    peer: str
    size: int
    """Bytes reserved for it."""
    is_small_place: bool
    """It uses one of the few places of a peer that is over `FREE_BYTES`."""
    is_signed: bool = False
    received: int = 0
    arriving: asyncio.Timeout | None = None
    """Time limit for the rest of it; None once it is complete."""
    made_room: bool = False
    """It was ended so that another one could start."""


class _Spent(Struct):
    """Bytes that a peer has sent unsigned; the amount falls to zero within a minute."""

    amount: float
    at: float


class Uploads:
    """The bodies that are held. Not thread-safe: one event loop uses it."""

    def __init__(self) -> None:
        self._held: dict[Upload, None] = {}
        """Oldest first."""
        self._spent: dict[str, _Spent] = {}

    @asynccontextmanager
    async def reserve_space(self, address: str, size: int | None) -> AsyncIterator[Upload]:
        """Reserve room for a body of *size* bytes (None: unknown) from *address*.

        Unless the block marks the upload as signed, the bytes received count against its peer.

        Raises:
            UploadLimitReached: there is no room; nothing of the body was read.
        """
        upload = self._admit(format_peer(address), MAX_BYTES if size is None else size)
        self._held[upload] = None
        try:
            yield upload
        finally:
            del self._held[upload]
            if not upload.is_signed:
                self._spend(upload.peer, max(upload.received, MIN_BYTES))

    def _admit(self, peer: str, size: int) -> Upload:
        uploads = [upload for upload in self._held if not upload.made_room]
        peer_uploads = [upload for upload in uploads if upload.peer == peer]
        size = max(size, MIN_BYTES)
        is_over = (
            sum(upload.size for upload in peer_uploads) + self._level(peer) + size > FREE_BYTES
        )
        if is_over:
            if size > SMALL_BYTES:
                raise UploadLimitReached("too much without a right signature", is_peer=True)
            small = [upload for upload in peer_uploads if upload.is_small_place]
            if len(small) >= SMALL_PLACES and not _end_first(small):
                raise UploadLimitReached("too many deliveries at the same time", is_peer=True)
        is_full = sum(upload.size for upload in uploads) + size > MAX_HELD_BYTES
        # Ending a smaller one would not free enough.
        if is_full and not _end_first([upload for upload in uploads if upload.size >= size]):
            raise UploadLimitReached("too many deliveries at the same time", is_peer=False)
        return Upload(peer, size, is_over)

    def _level(self, peer: str) -> float:
        usage = self._spent.get(peer)
        if usage is None:
            return 0.0
        decay = (time.monotonic() - usage.at) / _MINUTE_S * FREE_BYTES
        return max(0.0, usage.amount - decay)

    def _spend(self, peer: str, size: int) -> None:
        # Capped, so that a peer that stops is let in again within a minute.
        amount = min(self._level(peer) + size, float(FREE_BYTES))
        self._spent.pop(peer, None)
        self._spent[peer] = _Spent(amount, time.monotonic())
        if len(self._spent) > _MAX_PEERS:
            del self._spent[next(iter(self._spent))]


def _end_first(uploads: list[Upload]) -> bool:
    """End the first of *uploads* that is still arriving; return whether there was one."""
    for upload in uploads:
        if upload.arriving is not None and not upload.arriving.expired():
            upload.made_room = True
            upload.arriving.reschedule(asyncio.get_running_loop().time())
            return True
    return False


def format_peer(address: str) -> str:
    """Return the peer at *address*; all addresses of an IPv6 /64 are one peer.

    >>> format_peer("192.0.2.7"), format_peer("::ffff:192.0.2.7"), format_peer("2001:db8::1:2")
    ('192.0.2.7', '192.0.2.7', '2001:db8::')
    """
    if ":" not in address:
        return address
    try:
        ip_address = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if ip_address.ipv4_mapped is not None:
        return str(ip_address.ipv4_mapped)
    return str(IPv6Address(int(ip_address) >> 64 << 64))
