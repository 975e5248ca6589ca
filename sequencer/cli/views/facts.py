"""Looks at a graph's run, and at what is new in its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequencer.engine.graph_changes import as_begun
from sequencer.errors import ConfigurationError, CorruptState, DefinitionChanged
from sequencer.history.story import Story, story_of
from sequencer.history.view import FlowView, view_of

if TYPE_CHECKING:
    from sequencer.engine.run import Run


def look(run: Run, title: str) -> FlowView:
    """Return how *run*, one of a graph, stands.

    Raises:
        SequencerError: its files can't be read, or it is no graph's.
    """
    return look_closely(run, title)[0]


def look_closely(
    run: Run, title: str, known: list[dict[str, Any]] | None = None
) -> tuple[FlowView, list[dict[str, Any]]]:
    """Return how *run* stands, and every fact that led there; there may be newer ones.

    A run keeps its own definition, whatever has become of the workflow's file. The facts are
    not read if they are *known*.
    """
    head = run.head
    if head is None:
        return view_of(title, run.flow.begun_with, None, None, Story()), []
    try:
        flow = run.flow
    except (ConfigurationError, DefinitionChanged) as error:
        try:
            flow = as_begun(run.store, head)
        except CorruptState:
            # A team's run, which was made from a request, has no copy of its own.
            raise error from None
    head, marking = flow.marking(head)
    questions = {one.node.id: one.text for one in flow.questions(head)}
    facts = list(run.history()) if known is None else known
    story = story_of(facts)
    return view_of(title, marking.graph, head, marking, story, questions=questions), facts


class NewFacts:
    """Knows which facts of a journal are new since the last look."""

    def __init__(self) -> None:
        """Know of none."""
        self._revision = -1

    def of(self, facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of *facts*, a whole history, that are new; they are known from now on.

        A history that ends before the last look was restored from an older one.
        """
        newest = facts[-1]["revision"] if facts else self._revision
        known = min(self._revision, newest)
        self._revision = newest
        return [fact for fact in facts if fact["revision"] > known]
