"""What the tests of the scanner share."""

from __future__ import annotations

from sequencer.workflows.mermaid.chart import Chart
from sequencer.workflows.mermaid.parser import read_chart
from sequencer.workflows.mermaid.text import ChartError

HEADER = "flowchart TD\n"


def read(body: str) -> Chart:
    """Return the chart whose statements are *body*."""
    return read_chart(HEADER + body)


def nodes(body: str) -> list[tuple[str, str, str | None]]:
    return [(node.id, node.label, node.shape) for node in read(body).nodes]


def edges(body: str) -> list[tuple[str, str, str]]:
    return [(edge.source, edge.target, edge.label) for edge in read(body).edges]


def is_refused(text: str) -> bool:
    try:
        read_chart(text)
    except ChartError:
        return True
    return False


def refusal(body: str) -> tuple[str | None, str, str]:
    """Return where *body* is refused, the message and the hint."""
    try:
        read(body)
    except ChartError as error:
        return error.where, error.message, error.hint or ""
    message = f"{body!r} is not refused"
    raise AssertionError(message)
