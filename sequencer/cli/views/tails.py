"""Reads the last output of running attempts, and the last failure of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from sequencer.cli.views.nodes import NodeProgress
from sequencer.cli.views.runs import newest_failure
from sequencer.cli.views.states import sanitize_text
from sequencer.cli.views.text import cut, one_line, strip_controls
from sequencer.engine.logs import log_name, read_sent_texts
from sequencer.engine.run import Run
from sequencer.errors import to_one_line
from sequencer.history.story import LINE_CHARS
from sequencer.history.view import FlowView, NodeState
from sequencer.model.head import Claim, Head
from sequencer.store import folder as folders

TAIL_BYTES = 8 * 1024
FIRST_BYTES = 4 * 1024
TITLE_LINES = 3
"""Number of lines at the start of a log that describe it."""
ENDED = "\n# ended "
SENT = b"# sent: "
FAILURE_CHARS = 160
MAX_LOOKS = 20
"""Log numbers tried from the attempt's number on: a rewound step writes to a higher number."""


def read_last_outputs(claims: Iterable[Claim], folders: Sequence[Path]) -> dict[str, NodeProgress]:
    """Return the newest output line of each step in *claims* that has a log in *folders*."""
    lines = {
        claim.step: next(filter(None, (_newest_line(claim, folder) for folder in folders)), "")
        for claim in claims
    }
    return {step: NodeProgress(line) for step, line in lines.items() if line}


def _newest_line(claim: Claim, folder: Path) -> str:
    first_number = max(claim.attempt, 1)
    for number in range(first_number, first_number + MAX_LOOKS):
        name = log_name(claim.step_index, claim.step, number)
        try:
            text = _read_tail(folder / name, claim.token)
        except OSError:
            return ""
        if text is not None:
            # The lines that end a log may be there before the run has recorded the end.
            output = text.rpartition(ENDED)[0] if ENDED in text else text
            lines = (sanitize_text(line) for line in reversed(strip_controls(output).split("\n")))
            return next((line for line in lines if line), "")[:LINE_CHARS]
    return ""


def _read_tail(path: Path, token: int) -> str | None:
    """Return the end of the output in *path*; None: the log is not of the claim with *token*."""
    # Never follow a link, and never wait for a pipe.
    fd = folders.open_file(path, os.O_RDONLY)
    try:
        head = os.pread(fd, FIRST_BYTES, 0)
        titles = head.split(b"\n", TITLE_LINES)
        if not titles[0].endswith(b" token %d" % token):
            return None
        if len(titles) <= TITLE_LINES:
            return ""
        # The agent's output starts after the prompt, which comes first in the log.
        sent_texts = read_sent_texts(fd)
        if sent_texts is None and titles[-1].startswith(SENT):
            return ""
        output_start = len(head) - len(titles[-1]) if sent_texts is None else sent_texts.end
        start = max(output_start, os.fstat(fd).st_size - TAIL_BYTES)
        return os.pread(fd, TAIL_BYTES, start).decode("utf-8", "replace")
    finally:
        os.close(fd)


def last_failure(run: Run, head: Head | None, view: FlowView | None) -> str:
    """Return one line about the last failure of *run*; empty: none, or it no longer matters.

    For a graph's run, *view* has the nodes.
    """
    if view is not None:
        failed_nodes = [node for node in view.nodes if node.state is NodeState.FAILED]
        words = [f"{node.node.id!r} failed: {node.last_line}" for node in failed_nodes[:1]]
        return one_line(
            ", ".join((*words, *(f"{len(failed_nodes)} in all" for _ in failed_nodes[1:2])))
        )
    if head is None or not head.failures_in_row or (fact := newest_failure(run)) is None:
        return ""
    error = str(fact.details.get("error") or "no reason given")
    first_line = error.strip().partition("\n")[0]
    # An exit code alone says nothing; the agent's last output is on the lines below it.
    reason = (
        cut(to_one_line(error), FAILURE_CHARS)
        if first_line.startswith("exit code ")
        else first_line
    )
    return one_line(f"{fact.step!r} failed: {reason}")
