"""A PNG of a page in 256 colors, a third as large: text and flat areas lose nothing to see.

Promised for what Chromium writes: 8 bits a channel, three channels, not interlaced.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from functools import cache

SIGNATURE, CHANNELS, COLORS = b"\x89PNG\r\n\x1a\n", 3, 256


def small(png: bytes) -> bytes:
    """Return the picture *png* with its 256 most frequent colors, others by the nearest."""
    chunks = _chunks(png)
    wide, high = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = _rows(zlib.decompress(chunks[b"IDAT"]), wide * CHANNELS, high)
    colors = [[row[at : at + CHANNELS] for at in range(0, len(row), CHANNELS)] for row in rows]
    found = Counter(color for row in colors for color in row)
    palette = [color for color, _ in found.most_common(COLORS)]

    @cache
    def place(color: bytes) -> int:
        def far(index: int) -> int:
            return sum((a - b) ** 2 for a, b in zip(color, palette[index], strict=True))

        return min(range(len(palette)), key=far)

    data = b"".join(b"\0" + bytes(map(place, row)) for row in colors)
    header = struct.pack(">IIBBBBB", wide, high, 8, 3, 0, 0, 0)
    made = {b"IHDR": header, b"PLTE": b"".join(palette), b"IDAT": zlib.compress(data, 9)}
    return SIGNATURE + b"".join(_chunk(*one) for one in {**made, b"IEND": b""}.items())


def _chunks(png: bytes) -> dict[bytes, bytes]:
    found, at = dict[bytes, bytes](), len(SIGNATURE)
    while at < len(png):
        size, name = struct.unpack(">I4s", png[at : at + 8])
        found[name] = found.get(name, b"") + png[at + 8 : at + 8 + size]
        at += size + 12
    return found


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _rows(data: bytes, size: int, count: int) -> list[bytes]:
    """Return the rows without their filters (PNG, section 9)."""
    rows, above = list[bytes](), bytearray(size)
    for number in range(count):
        start = number * (size + 1)
        kind, row = data[start], bytearray(data[start + 1 : start + 1 + size])
        for at in range(size if kind else 0):
            left = row[at - CHANNELS] if at >= CHANNELS else 0
            corner = above[at - CHANNELS] if at >= CHANNELS else 0
            guess = (left, above[at], (left + above[at]) // 2, _nearest(left, above[at], corner))
            row[at] = (row[at] + guess[kind - 1]) % 256
        rows.append(bytes(row))
        above = row
    return rows


def _nearest(left: int, above: int, corner: int) -> int:
    sum_ = left + above - corner
    return min((left, above, corner), key=lambda one: abs(sum_ - one))
