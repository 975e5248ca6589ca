"""The largest numbers that a run keeps, and whole numbers in text from outside.

Clients, files and people can give a number of any length. Anything larger than these limits is
refused or cut where it arrives, so that every process and other programs can read what a run keeps.
"""

from __future__ import annotations

MAX_COUNTER = 2**63 - 1
"""The largest counter, such as a step_index or a token: it fits into a signed 64-bit integer."""
MAX_DIGITS = len(str(MAX_COUNTER))
"""Maximum number of digits of an integer in a text; Python itself converts at most 4,300."""
MAX_USED = 2**53 - 1
"""The largest figure of a usage: JSON readers that have only floats still keep it exact."""


def parse_whole_number(text: str) -> int | None:
    """Return the whole number that *text* is; None: it is not one, or has too many digits.

    >>> [parse_whole_number(text) for text in ("12", "-1", "1.0", "9" * 5000)]
    [12, None, None, None]
    """
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None
