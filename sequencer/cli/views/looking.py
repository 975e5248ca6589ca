"""How a graph's run stands, and which facts of its journal are new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequencer.engine.view import view_of

if TYPE_CHECKING:
    from sequencer.engine.run import Run
    from sequencer.engine.view import FlowView


def look(run: Run, title: str) -> FlowView:
    """Return how *run*, one of a graph, stands.

    Raises:
        SequencerError: its files can't be read, or it is no graph's.
    """
    return look_closely(run, title)[0]


def look_closely(run: Run, title: str) -> tuple[FlowView, list[dict[str, Any]]]:
    """Return how *run* stands, and every fact that led there; there may be newer ones."""
    flow = run.flow
    head = run.head
    if head is None:
        return view_of(title, flow.begun_with, None, None, ()), []
    head, marking = flow.marking(head)
    questions = {one.node.id: one.text for one in flow.questions(head)}
    facts = list(run.history())
    return view_of(title, marking.graph, head, marking, facts, questions=questions), facts


class News:
    """Knows which facts of a journal are new since the last look."""

    def __init__(self) -> None:
        """Know of none."""
        self._count = 0
        self._last: dict[str, Any] | None = None

    def of(self, facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of *facts*, a whole history, that are new; they are known from now on.

        A history that has not the last one in its place has started again, or was restored.
        """
        if not facts:
            return []
        count, last = self._count, self._last
        if last is not None and facts[count - 1 : count] != [last]:
            count = next((n for n in range(len(facts), 0, -1) if facts[n - 1] == last), 0)
        self._count, self._last = len(facts), facts[-1]
        return facts[count:]
