"""Reads the state of a graph's run, and finds the facts of its journal that are new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sequencer.engine.graph_changes import load_as_started
from sequencer.errors import ConfigurationError, CorruptState, DefinitionChanged, SequencerError
from sequencer.history.facts import RecordedFact, list_facts, read_facts
from sequencer.history.story import Story, build_story
from sequencer.history.view import FlowView, build_view
from sequencer.model.head import Head
from sequencer.model.workflow import Workflow
from sequencer.store.folder import read_regular
from sequencer.store.journal import NAME as JOURNAL
from sequencer.store.journal import JournalFile, decode

if TYPE_CHECKING:
    from sequencer.engine.run import Run

MAX_RECORD_BYTES = 4 * 1024 * 1024
"""A newest record that is longer is not shown."""
END_BYTES = 64 * 1024
"""Bytes at the end of a journal in which the newest facts are looked for first."""


def read_view(run: Run, title: str) -> FlowView:
    """Return the state of a graph's *run*; *title* is shown above it.

    Raises:
        SequencerError: its files can't be read, or it is not the run of a graph.
    """
    return read_view_and_facts(run, title)[0]


def read_view_and_facts(
    run: Run, title: str, known: list[dict[str, Any]] | None = None
) -> tuple[FlowView, list[dict[str, Any]]]:
    """Return the state of *run*, and all facts that led to it; newer facts may follow at any time.

    A run keeps its own definition, so it is readable even if the workflow's file has changed.
    The facts are not read if they are *known*.
    """
    head = run.head
    if head is None:
        return build_view(title, run.flow.initial_graph, None, None, Story()), []
    try:
        flow = run.flow
    except (ConfigurationError, DefinitionChanged) as error:
        try:
            flow = load_as_started(run.store, head)
        except CorruptState:
            # A team's run that was started from a request has no copy of its definition.
            raise error from None
    head, marking = flow.marking(head)
    questions = {question.node.id: question.text for question in flow.questions(head)}
    facts = list(run.history()) if known is None else known
    story = build_story(facts)
    return build_view(title, marking.graph, head, marking, story, questions=questions), facts


def find_readable_workflow(run: Run, head: Head, configured: Workflow | None) -> Workflow | None:
    """Return the graph that the run of *head* was started with, or else what is *configured*.

    None: neither can be read. For a workflow without nodes, no earlier definition is kept.
    """
    with suppress(CorruptState):
        return load_as_started(run.store, head).workflow
    return None if configured is None or configured.nodes else configured


def read_newest_facts(run: Run, head: Head | None) -> Sequence[RecordedFact]:
    """Return the facts of the newest record that changed where the run is.

    A message to a step, or a late charge, leaves the run where it was. Reading the whole journal
    would take too long: if its end has only such records, the newest one is used.
    """
    if head is None:
        return ()
    journal = run.store.state_path.with_name(JOURNAL)
    try:
        data = read_regular(journal, head.journal_offset, max_bytes=MAX_RECORD_BYTES)
        newest = [*read_facts(list_facts(decode(data.partition(b"\n")[0])))]
        if not all(fact.meaning.moves_nothing for fact in newest):
            return newest
        earlier = [
            fact for fact in read_facts(read_journal_end(run)) if not fact.meaning.moves_nothing
        ]
    except (OSError, ValueError, SequencerError):
        return ()
    return [fact for fact in earlier if fact.revision == earlier[-1].revision] or newest


def find_since(head: Head, newest_facts: Sequence[RecordedFact]) -> str:
    """Return since when the run is where it is; see `read_newest_facts`."""
    return newest_facts[0].at if newest_facts else head.last_update


def read_journal_end(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the facts at the end of the journal; reading all of a long journal takes seconds."""
    if run.dispatch is None:
        for record in JournalFile(run.store.state_path.parent, 0, 0).read_newest(END_BYTES):
            yield from list_facts(record.data)


class NewFacts:
    """Remembers up to where a journal was read, and returns only the facts after that."""

    def __init__(self) -> None:
        """Start with no facts known."""
        self._revision = -1

    def select_new(self, facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the new facts of *facts*, a whole history; from now on they are known.

        A history that ends before the last known fact was restored from an older copy.
        """
        newest_revision = facts[-1]["revision"] if facts else self._revision
        known_revision = min(self._revision, newest_revision)
        self._revision = newest_revision
        return [fact for fact in facts if fact["revision"] > known_revision]
