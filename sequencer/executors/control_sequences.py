"""What of a text a terminal would obey instead of showing.

Agents' output goes to terminals and to people elsewhere, and neither is to be steered by
it. Pure: what is made of line ends is up to who shows the text.
"""

from __future__ import annotations

import re

STRING_CHARS = 4096
"""Longest title or device string that is taken out whole; of a longer one the rest shows."""
CONTROL = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
CSI = "(?:\x1b\\[|\x9b)[0-?]*[ -/]*"
STRING = f"(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{{0,{STRING_CHARS}}}"
_SEQUENCE = re.compile(f"{CSI}[@-~]|{STRING}(?:\x07|\x1b\\\\|\x9c)?|\x1b[ -/]*[0-~]|{CONTROL}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def without_sequences(text: str) -> str:
    r"""Return *text* without sequences and control characters but tab, line end and return.

    >>> without_sequences("\x1b]0;owned\x07red: \x1b[31mno\x1b[0m\x08\r\n")
    'red: no\r\n'
    """
    return _SURROGATE.sub("\ufffd", _SEQUENCE.sub("", text))
