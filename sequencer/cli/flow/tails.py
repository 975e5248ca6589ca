"""What nodes that run have written last, from their step logs: whoever runs them.

Not promised: a line for a node that runs on another machine, or that has written none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sequencer.cli.flow.marks import shown
from sequencer.cli.flow.team_table import Heard
from sequencer.cli.sanitise import plain
from sequencer.engine.flow.view import LINE_CHARS
from sequencer.logs import log_name
from sequencer.model.head import Claim
from sequencer.store import folder as folders

TAIL_BYTES = 8 * 1024
FIRST_BYTES = 4 * 1024
TITLE_LINES = 3
"""Lines at the beginning of a log that say what it is."""
ENDED = "\n# ended "
MAX_LOOKS = 20
"""A step that was rewound writes to a log with a higher number than its attempt."""


def heard_of(claims: Iterable[Claim], folder: Path) -> dict[str, Heard]:
    """Return the newest line of each step of *claims* that has a log in *folder*."""
    found = {claim.step: _newest_line(claim, folder) for claim in claims}
    return {step: Heard(line) for step, line in found.items() if line}


def _newest_line(claim: Claim, folder: Path) -> str:
    first_number = max(claim.attempt, 1)
    for number in range(first_number, first_number + MAX_LOOKS):
        name = log_name(claim.step_index, claim.step, number)
        try:
            text = _written(folder / name, claim.token)
        except OSError:
            return ""
        if text is not None:
            # It is over where its own last lines are there, though the run has not heard of it.
            said = text.rpartition(ENDED)[0] if ENDED in text else text
            lines = (shown(line) for line in reversed(plain(said).split("\n")))
            return next((line for line in lines if line), "")[:LINE_CHARS]
    return ""


def _written(path: Path, token: int) -> str | None:
    """Return the end of what the claim of *token* has written to *path*; None: it is another's."""
    # Never through a link, and never waiting for a pipe.
    fd = folders.open_file(path, os.O_RDONLY)
    try:
        begin = os.pread(fd, FIRST_BYTES, 0)
        titles = begin.split(b"\n", TITLE_LINES)
        if not titles[0].endswith(b" token %d" % token):
            return None
        if len(titles) <= TITLE_LINES:
            return ""
        told = len(begin) - len(titles[-1])
        start = max(told, os.fstat(fd).st_size - TAIL_BYTES)
        return os.pread(fd, TAIL_BYTES, start).decode("utf-8", "replace")
    finally:
        os.close(fd)
