"""The last output of running attempts, and the last failure of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from sequencer.cli.views.nodes import Heard
from sequencer.cli.views.runs import newest_failure
from sequencer.cli.views.states import shown
from sequencer.cli.views.text import cut, one_line, plain
from sequencer.engine.logs import log_name, sent_texts
from sequencer.engine.run import Run
from sequencer.errors import in_one_line
from sequencer.history.story import LINE_CHARS
from sequencer.history.view import FlowView, NodeState
from sequencer.model.head import Claim, Head
from sequencer.store import folder as folders

TAIL_BYTES = 8 * 1024
FIRST_BYTES = 4 * 1024
TITLE_LINES = 3
"""Number of lines at the start of a log that say what it is."""
ENDED = "\n# ended "
SENT = b"# sent: "
FAILURE_CHARS = 160
MAX_LOOKS = 20
"""A rewound step writes to a log with a higher number than its attempt."""


def heard_of(claims: Iterable[Claim], folders: Sequence[Path]) -> dict[str, Heard]:
    """Return the newest line of each step in *claims* that has a log in one of *folders*."""
    found = {
        claim.step: next(filter(None, (_newest_line(claim, one) for one in folders)), "")
        for claim in claims
    }
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
            # A log with its last lines is over, even if the run has not heard of it yet.
            said = text.rpartition(ENDED)[0] if ENDED in text else text
            lines = (shown(line) for line in reversed(plain(said).split("\n")))
            return next((line for line in lines if line), "")[:LINE_CHARS]
    return ""


def _written(path: Path, token: int) -> str | None:
    """Return the end of what the claim of *token* wrote to *path*; None: another claim wrote it."""
    # Never follow a link, and never wait for a pipe.
    fd = folders.open_file(path, os.O_RDONLY)
    try:
        begin = os.pread(fd, FIRST_BYTES, 0)
        titles = begin.split(b"\n", TITLE_LINES)
        if not titles[0].endswith(b" token %d" % token):
            return None
        if len(titles) <= TITLE_LINES:
            return ""
        # Behind the prompt, which stands there first: the agent's own words begin there.
        sent = sent_texts(fd)
        if sent is None and titles[-1].startswith(SENT):
            return ""
        told = len(begin) - len(titles[-1]) if sent is None else sent.end
        start = max(told, os.fstat(fd).st_size - TAIL_BYTES)
        return os.pread(fd, TAIL_BYTES, start).decode("utf-8", "replace")
    finally:
        os.close(fd)


def last_failure(run: Run, head: Head | None, view: FlowView | None) -> str:
    """Return in one line what failed last in *run*, if it still counts there.

    *view* has the nodes of a graph's run.
    """
    if view is not None:
        failed = [node for node in view.nodes if node.state is NodeState.FAILED]
        words = [f"{node.node.id!r} failed: {node.last_line}" for node in failed[:1]]
        return one_line(", ".join((*words, *(f"{len(failed)} in all" for _ in failed[1:2]))))
    if head is None or not head.failures_in_row or (fact := newest_failure(run)) is None:
        return ""
    error = str(fact.details.get("error") or "no reason given")
    first = error.strip().partition("\n")[0]
    # By itself an exit code says nothing; the last words of the agent stand below it.
    why = cut(in_one_line(error), FAILURE_CHARS) if first.startswith("exit code ") else first
    return one_line(f"{fact.step!r} failed: {why}")
