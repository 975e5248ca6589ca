"""Reads the state of a graph's run, and finds the facts of its journal that are new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequencer.engine.graph_changes import as_started
from sequencer.errors import ConfigurationError, CorruptState, DefinitionChanged
from sequencer.history.story import Story, story_of
from sequencer.history.view import FlowView, view_of

if TYPE_CHECKING:
    from sequencer.engine.run import Run


def look(run: Run, title: str) -> FlowView:
    """Return the state of a graph's *run*; *title* is shown above it.

    Raises:
        SequencerError: its files can't be read, or it is not the run of a graph.
    """
    return look_closely(run, title)[0]


def look_closely(
    run: Run, title: str, known: list[dict[str, Any]] | None = None
) -> tuple[FlowView, list[dict[str, Any]]]:
    """Return the state of *run*, and all facts that led to it; newer facts may follow at any time.

    A run keeps its own definition, so it is readable even if the workflow's file has changed.
    The facts are not read if they are *known*.
    """
    head = run.head
    if head is None:
        return view_of(title, run.flow.started_with, None, None, Story()), []
    try:
        flow = run.flow
    except (ConfigurationError, DefinitionChanged) as error:
        try:
            flow = as_started(run.store, head)
        except CorruptState:
            # A team's run that was started from a request has no copy of its definition.
            raise error from None
    head, marking = flow.marking(head)
    questions = {question.node.id: question.text for question in flow.questions(head)}
    facts = list(run.history()) if known is None else known
    story = story_of(facts)
    return view_of(title, marking.graph, head, marking, story, questions=questions), facts


class NewFacts:
    """Remembers up to where a journal was read, and returns only the facts after that."""

    def __init__(self) -> None:
        """Start with no facts known."""
        self._revision = -1

    def of(self, facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the new facts of *facts*, a whole history; from now on they are known.

        A history that ends before the last known fact was restored from an older copy.
        """
        newest = facts[-1]["revision"] if facts else self._revision
        known = min(self._revision, newest)
        self._revision = newest
        return [fact for fact in facts if fact["revision"] > known]
