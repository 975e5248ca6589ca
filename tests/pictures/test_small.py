"""A picture in 256 colors shows what it showed, whatever filters its rows had."""

from __future__ import annotations

import struct
import zlib

from tests.pictures.small import CHANNELS, SIGNATURE, small

WIDE, HIGH = 7, 5


def png(rows: list[bytes], kind: int) -> bytes:
    data, above = b"", bytes(WIDE * CHANNELS)
    for row in rows:
        line = bytearray()
        for at, value in enumerate(row):
            left, corner = (each[at - CHANNELS] if at >= CHANNELS else 0 for each in (row, above))
            far = left + above[at] - corner
            near = min((left, above[at], corner), key=lambda one: abs(far - one))
            guess = (0, left, above[at], (left + above[at]) // 2, near)[kind]
            line.append((value - guess) % 256)
        data, above = data + bytes([kind, *line]), row
    parts = {b"IHDR": struct.pack(">IIBBBBB", WIDE, HIGH, 8, 2, 0, 0, 0)}
    parts |= {b"IDAT": zlib.compress(data), b"IEND": b""}
    return SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts.items()
    )


def test_each_filter_gives_the_same_picture() -> None:
    rows = [bytes((x * y * 37 + x) % 256 for x in range(WIDE * CHANNELS)) for y in range(HIGH)]
    made = {small(png(rows, kind)) for kind in range(5)}
    assert len(made) == 1
    picture = made.pop()
    start = picture.index(b"PLTE")
    size = struct.unpack(">I", picture[start - 4 : start])[0]
    palette = picture[start + 4 : start + 4 + size]
    at = picture.index(b"IDAT")
    data = zlib.decompress(picture[at + 4 : at + 4 + struct.unpack(">I", picture[at - 4 : at])[0]])
    places = [data[y * (WIDE + 1) + 1 : (y + 1) * (WIDE + 1)] for y in range(HIGH)]
    shown = [b"".join(palette[3 * p : 3 * p + 3] for p in line) for line in places]
    assert shown == rows
