"""The accepted facts of one run, as the pages need them, and what its attempts used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import dropwhile
from typing import Any

from msgspec import Struct, field

from sequencer.engine.run import Run
from sequencer.history.facts import RecordedFact, list_facts, read_facts
from sequencer.history.story import StepAttempts, Story
from sequencer.history.totals import CLASSIFICATION
from sequencer.model.head import Head
from sequencer.model.outcome import Quota, Usage
from sequencer.store.journal import JournalFile

UNKNOWN = "not known"
"""Name of the agent if the journal has none."""


END_BYTES = (64 * 1024, 512 * 1024)
"""How many bytes at a journal's end are searched for the newest facts before all of it is read."""
LONG, ENOUGH = 1000, 200
"""A sequence's run with more than `LONG` revisions is long: most pages read its newest `ENOUGH`."""
KEPT_CHARS = 600
"""Maximum length of an answer in lists; its step's page reads all of it."""

Fact = dict[str, Any]


class AttemptUsage(Struct, frozen=True):
    """What one attempt used, and when."""

    at: float
    usage: Usage
    agent: str
    step: str

    @property
    def tokens(self) -> float:
        """Return its LLM tokens, input plus output."""
        return self.usage.input_tokens + self.usage.output_tokens


def to_spent(fact: RecordedFact, usage: Usage) -> AttemptUsage:
    """Return the *usage* of *fact* with its time, agent and step."""
    timestamp = datetime.fromisoformat(fact.at).timestamp()
    step = CLASSIFICATION if fact.meaning.starts_over else fact.step
    return AttemptUsage(timestamp, usage, str(fact.details.get("agent") or UNKNOWN), step)


class RunStory(Struct):
    """The accepted facts of one run, each read once; only the ends of long answers are kept."""

    run_id: str = ""
    revision: int = 0
    facts: list[Fact] = field(default_factory=list)
    story: Story = field(default_factory=Story)
    by_node: bool = False
    spent: list[AttemptUsage] = field(default_factory=list)
    quotas: dict[str, tuple[str, Quota]] = field(default_factory=dict)
    """The newest report of each agent's quota: agent -> (time, quota)."""
    judged: list[RecordedFact] = field(default_factory=list)
    """The facts with a verdict."""
    is_whole: bool = True
    """Whether it starts where the run starts, or where the journal does."""

    def read_facts(self, run: Run, head: Head, *, is_whole: bool = True) -> None:
        """Read the facts of *run* up to *head*; they may be slightly newer.

        Unless *is_whole*, the newest facts of a long run are enough; they are quick to read.
        """
        is_same = head.run_id == self.run_id and head.revision >= self.revision
        if not is_same or (is_whole and not self.is_whole):
            self.run_id, self.revision, self.is_whole = head.run_id, 0, True
            self.facts, self.spent, self.judged, self.quotas = [], [], [], {}
            self.story, self.by_node = Story(), head.begun_at is not None
            if not is_whole and head.begun_at is None and head.revision > LONG:
                self.is_whole = False
        if head.revision > self.revision:
            start = self.revision or (0 if self.is_whole else head.revision - ENOUGH)
            facts = facts_after(run, start)
            if not self.is_whole and not self.facts:
                # Leave out the first step: some of its facts may be missing.
                first_fact = next(facts)
                facts = dropwhile(
                    lambda fact: fact["step_index"] == first_fact["step_index"], facts
                )
            for fact in facts:
                self._add_fact(_shorten_fact(fact))

    @property
    def steps(self) -> dict[str, StepAttempts]:
        """Return the steps that were started, in their order, by their keys in addresses."""
        return self.story.group_steps(by_name=self.by_node)

    def _add_fact(self, raw: Fact) -> None:
        self.revision = raw["revision"]
        self.facts.append(raw)
        (fact,) = read_facts([raw])
        usage, details = self.story.add_fact(fact), fact.details
        if usage is not None:
            self.spent.append(to_spent(fact, usage))
        if quota := details.get("quota"):
            with suppress(ValueError):  # someone may have edited the record
                self.quotas[str(details.get("agent"))] = fact.at, Quota.model_validate(quota)
        if details.get("verdict"):
            self.judged.append(fact)


def facts_after(run: Run, revision: int) -> Iterator[Fact]:
    """Yield the facts of *run* after *revision*; for new ones, only the journal's end is read."""
    if run.dispatch is None:
        journal = JournalFile(run.store.state_path.parent, 0, 0)
        for size in END_BYTES if revision else ():
            records = journal.read_newest(size)
            if records and records[0].revision <= revision + 1:
                for record in records:
                    if record.revision > revision:
                        yield from list_facts(record.data)
                return
    yield from run.store.history(revision)


def _shorten_fact(fact: Fact) -> Fact:
    outcome = fact.get("outcome")
    if not isinstance(outcome, dict) or len(str(outcome.get("output", ""))) <= KEPT_CHARS:
        return fact
    return {**fact, "outcome": {**outcome, "output": f"…{outcome['output'][-KEPT_CHARS:]}"}}
