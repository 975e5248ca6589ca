"""The story of a run: one pass over the facts of its journal, used by all views.

The times of an attempt that ended are exact to the millisecond, from the record of its end.
Without such a record (a person's answer, an attempt that was cut or still runs) they are exact to
the second, like the journal.

Not promised: that the clocks of two machines agree. No decision depends on these times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from sequencer.history.facts import EndState, RecordedFact, StartKind, read_facts
from sequencer.history.outputs import StepOutputs
from sequencer.history.totals import Totals
from sequencer.model.evidence import format_evidence, read_evidence
from sequencer.model.outcome import Usage, format_error, read_usage, sum_usages
from sequencer.model.transitions import Event

KEPT_CHARS = 600
"""How much of an attempt's output to keep: its end."""
LINE_CHARS = 200
_SECOND = 1.0
STATES: Mapping[EndState, str] = {
    EndState.DONE: "done",
    EndState.PASSED: "done",
    EndState.ANSWERED: "done",
    EndState.EXPIRED: "expired",
    EndState.SKIPPED: "skipped",
    EndState.FAILED: "failed",
    EndState.REFUSED: "failed",
    EndState.RELEASED: "released",
    EndState.LOST: "lost",
    EndState.CANCELLED: "cancelled",
}
"""The word for the state of an attempt, by its ending."""


class StoryEntry(Struct):
    """One attempt at a step, one question, or one wait at a gate."""

    step: str
    step_index: int
    token: int
    number: int
    began: str
    """ISO 8601 UTC, from the fact of its start."""
    start: StartKind | None
    """None: nothing was started; a person reported the end of a step."""
    begin: float
    """Seconds since 1970, UTC; once it has ended, more exact than `began`."""
    host: str = ""
    """The machine that claimed it."""
    is_gate: bool = False
    """An accepted step waits for a person's decision."""
    ending: EndState | None = None
    """None: it runs."""
    end: float = 0.0
    ended: str = ""
    """ISO 8601 UTC, from the fact that ended it; empty: it runs, or no fact of its own ended it."""
    revision: int = 0
    """The revision of that fact."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """It has only the end of a long output."""

    def record_end(self, fact: RecordedFact) -> None:
        """Store the time and the outcome of *fact*, which ends it."""
        self.ended, self.revision, details = fact.at, fact.revision, fact.details
        output = details.get("output")
        if isinstance(output, str) and len(output) > KEPT_CHARS:
            details = {**details, "output": f"…{output[-KEPT_CHARS:]}"}
        self.outcome = details

    def record_charge(self, fact: RecordedFact) -> None:
        """Store the outcome of *fact*, the late report of an attempt that had no claim left.

        Its usage is what was not counted then, so it is added.
        """
        usage = self.usage
        self.record_end(fact)
        usage = usage.plus(self.usage)
        self.outcome = {**self.outcome, "usage": usage.model_dump(exclude_defaults=True)}

    @property
    def state(self) -> str:
        """Return the word for its state."""
        return "running" if self.ending is None else STATES[self.ending]

    @property
    def is_question(self) -> bool:
        """Return whether it is a question to a person."""
        return self.start is StartKind.QUESTION

    @property
    def usage(self) -> Usage:
        """Return its usage."""
        return read_usage(self.outcome.get("usage") or {})

    @property
    def shown(self) -> str:
        """Return its evidence in one line."""
        return format_evidence(read_evidence(self.outcome))

    @property
    def agent(self) -> str:
        """Return the agent, or "you" for a question; empty: the journal does not say."""
        return str(self.outcome.get("agent") or ("you" if self.is_question else ""))

    @property
    def answer_text(self) -> str:
        """Return its answer, or its error."""
        parts = (self.outcome.get(key) for key in ("output", "note", "reason"))
        return format_error(self.outcome) or next((str(part) for part in parts if part), "")


class StepTurn(Struct):
    """One turn of a step: its attempts until one is accepted or the step is given up."""

    step: str
    sources: tuple[int, ...]
    """Indexes in `Story.turns` of the turns that it had to wait for."""
    begin: float
    step_index: int = 0
    tries: list[StoryEntry] = field(default_factory=list)
    """The attempts that ended, with waits at a gate and without passages."""
    is_accepted: bool = False
    is_dead_end: bool = False
    """It was accepted, but nothing can follow its answer."""

    @property
    def end(self) -> float:
        """Return when its last attempt or wait ended."""
        return self.tries[-1].end if self.tries else self.begin


class StepAttempts(Struct):
    """A step that was started, with all its attempts since the start of the run."""

    key: str
    """Its name in a URL: a node's id, or the step_index of a step of a sequence."""
    name: str
    step_index: int
    tries: list[StoryEntry] = field(default_factory=list)

    @property
    def last(self) -> StoryEntry:
        """Return the newest attempt."""
        return self.tries[-1]

    @property
    def usage(self) -> Usage:
        """Return the usage of all attempts."""
        return sum_usages(attempt.usage for attempt in self.tries)


class StepStory(Struct):
    """The current state of one step."""

    attempt: int = 0
    since: str | None = None
    """When its newest attempt started."""
    line: str = ""
    """The last line of its newest output, or its error."""
    ending: EndState | None = None
    """None: it has not ended since its start."""


class Story(Struct):
    """The story of one run since its start or reset; see `build_story`."""

    tries: list[StoryEntry] = field(default_factory=list)
    """In the order in which they started, without waits at a gate."""
    turns: list[StepTurn] = field(default_factory=list)
    """In the order in which they started."""
    nodes: dict[str, StepStory] = field(default_factory=dict)
    """By the name of the step."""
    totals: Totals = field(default_factory=Totals)
    outputs: StepOutputs = field(default_factory=StepOutputs)
    followed: set[tuple[str, str]] = field(default_factory=set)
    """(source, target) of each edge that was followed."""
    began: str | None = None
    """When the first step started."""
    latest: str | None = None
    """When the newest fact was recorded."""
    before: Usage = field(default=Usage())
    """The usage of making the run."""
    is_over: bool = False
    has_beginning: bool = False
    """Whether the journal still has the start of the run."""
    has_edges: bool = False
    """Whether its steps are the nodes of a graph."""
    _open: dict[str, tuple[StepTurn, StoryEntry]] = field(default_factory=dict)
    """Attempts that run and waits for people, by step."""
    _last: dict[str, int] = field(default_factory=dict)
    """The index of the latest turn of each step."""
    _diverted: dict[str, str] = field(default_factory=dict)
    """By error node: the step whose failure leads there."""
    _uncharged: dict[int, StoryEntry] = field(default_factory=dict)
    """By token: attempts that were canceled or lost, and have not reported their usage."""

    @property
    def open(self) -> list[tuple[StepTurn, StoryEntry]]:
        """Return the attempts that run and the waits for people."""
        return [*self._open.values()]

    def group_steps(self, *, by_name: bool) -> dict[str, StepAttempts]:
        """Return the steps in the order of their first start.

        *by_name* groups all attempts by the node of a graph; otherwise by step_index.
        """
        steps: dict[str, StepAttempts] = {}
        for attempt in self.tries:
            key = attempt.step if by_name else str(attempt.step_index)
            step = steps.setdefault(key, StepAttempts(key, attempt.step, attempt.step_index))
            step.name = attempt.step
            step.tries.append(attempt)
            attempt.number = attempt.number or len(step.tries)
        return steps

    def add_fact(self, fact: RecordedFact) -> Usage | None:
        """Add the next fact; return its usage, None if it has none."""
        meaning, details, time_s = fact.meaning, fact.details, _parse_seconds(fact.at)
        usage = read_usage(details["usage"]) if details.get("usage") else None
        self.latest, self.has_edges = fact.at, self.has_edges or "from" in details
        if meaning.starts_over:
            self._start_over(usage)
        elif meaning.starts is not None:
            self._start(fact, meaning.starts, time_s)
        elif meaning.ends is not None:
            self._end(fact, meaning.ends, time_s)
        elif meaning.decides_gate:
            self._cancel_open(fact.step, time_s)
        if fact.event is Event.DIVERTED:
            self._diverted[details["to"]] = fact.step
        names = tuple(self._open) if meaning.ends_run else details.get("cancelled", ())
        for name in names:
            self._cancel_open(name, time_s)
        self.is_over = meaning.ends_run or (self.is_over and meaning.starts is None)
        self._update_step(fact)
        self.totals.add_fact(fact, usage)
        self.outputs.add_fact(fact)
        return usage

    def _start_over(self, usage: Usage | None) -> None:
        by_name = (self.nodes, self.followed, self._open, self._last, self._diverted)
        collections: tuple[Any, ...] = (self.tries, self.turns, self._uncharged, *by_name)
        for collection in collections:
            collection.clear()
        self.began, self.is_over, self.has_beginning = None, False, True
        self.before = usage or Usage()

    # --- starts --------------------------------------------------------------------

    def _start(self, fact: RecordedFact, start: StartKind, time_s: float) -> None:
        # A person moved the run while an attempt at this step ran, or skipped its gate.
        self._cancel_open(fact.step, time_s)
        turn = self._find_or_add_turn(fact, time_s)
        earlier_ends = [self.turns[index].end for index in turn.sources]
        earlier_ends += [turn.end] if turn.tries else []
        # The journal truncates to seconds, but no attempt starts before its sources ended.
        begin_s = max(time_s, min(max(earlier_ends, default=time_s), time_s + _SECOND))
        if not turn.tries:
            turn.begin = begin_s
        number = fact.attempt or 1
        attempt = StoryEntry(
            fact.step, fact.step_index, fact.token, number, fact.at, start, begin_s, fact.host
        )
        self.tries.append(attempt)
        self._open[fact.step] = turn, attempt

    def _find_or_add_turn(self, fact: RecordedFact, time_s: float) -> StepTurn:
        """Return the turn that continues with *fact*, or a new one."""
        details, step = fact.details, fact.step
        last_index = self._last.get(step)
        is_of_graph = not details.keys().isdisjoint(("from", "retry", "again"))
        if last_index is not None and "from" not in details:
            turn = self.turns[last_index]
            if is_of_graph or (turn.step_index == fact.step_index and not turn.is_accepted):
                return turn
        if is_of_graph:
            names = list(dict.fromkeys(details.get("from") or ()))
            if not names and step in self._diverted:
                names = [self._diverted.pop(step)]
            sources = tuple(self._last[name] for name in names if name in self._last)
        else:
            sources = (len(self.turns) - 1,) if self.turns else ()
        turn = StepTurn(step, sources, time_s, fact.step_index)
        self._last[step] = len(self.turns)
        self.turns.append(turn)
        return turn

    # --- ends ----------------------------------------------------------------------

    def _end(self, fact: RecordedFact, ending: EndState, time_s: float) -> None:
        turn, attempt = self._open.get(fact.step, (None, None))
        if turn is None or attempt is None:
            self._end_by_hand(fact, ending, time_s)
            return
        is_of_other = fact.token not in (0, attempt.token)
        # A wait at a gate has no token, and a person may end it; the holder of a claim can't.
        if is_of_other and (attempt.token or fact.meaning.by_holder):
            self._end_by_hand(fact, ending, time_s)
            return
        del self._open[fact.step]
        turn.is_accepted = fact.meaning.accepts
        if attempt.is_gate:
            self._report(fact, ending, time_s)
        _finish(attempt, fact, ending, time_s)
        if ending is EndState.LOST:
            self._uncharged[attempt.token] = attempt
        if attempt.start is StartKind.PASSAGE:
            return
        if not turn.tries:
            turn.begin = attempt.begin
        turn.tries.append(attempt)
        if fact.details.get("gate") is True:
            wait = StoryEntry(
                fact.step,
                fact.step_index,
                0,
                0,
                fact.at,
                StartKind.QUESTION,
                attempt.end,
                is_gate=True,
            )
            self._open[fact.step] = turn, wait

    def _end_by_hand(self, fact: RecordedFact, ending: EndState, time_s: float) -> None:
        """Add the end of a step that has no running attempt."""
        ended = self._uncharged.pop(fact.token, None) if fact.meaning.by_holder else None
        if ended is not None:
            ended.record_charge(fact)
        else:
            self._report(fact, ending, time_s)
        last_index = self._last.get(fact.step)
        if last_index is None:
            return
        turn = self.turns[last_index]
        if fact.meaning.accepts:
            turn.is_accepted = True
        elif fact.event is Event.FAILED and turn.tries and turn.is_accepted:
            turn.is_accepted, turn.is_dead_end = False, True

    def _report(self, fact: RecordedFact, ending: EndState, time_s: float) -> None:
        """Add an attempt for a step that did not run and that a person reported."""
        attempt = StoryEntry(fact.step, fact.step_index, fact.token, 0, fact.at, None, time_s)
        _finish(attempt, fact, ending, time_s)
        self.tries.append(attempt)

    def _cancel_open(self, step: str, time_s: float) -> None:
        """End the open attempt at *step*, if any; no fact of its own ends it."""
        turn, attempt = self._open.pop(step, (None, None))
        if turn is None or attempt is None:
            return
        attempt.ending, attempt.end = EndState.CANCELLED, max(time_s, attempt.begin)
        if attempt.token:
            self._uncharged[attempt.token] = attempt
        if attempt.start is not StartKind.PASSAGE:
            turn.tries.append(attempt)

    # --- the current state of each step --------------------------------------------

    def _update_step(self, fact: RecordedFact) -> None:
        details, meaning = fact.details, fact.meaning
        if meaning.starts_over:
            return
        if fact.event is Event.REWOUND:
            for name in details.get("again", ()):
                self._find_or_add_step(name).ending = None
        for name in details.get("cancelled", ()):
            self._find_or_add_step(name).ending = EndState.CANCELLED
        if not fact.step:
            return
        step = self._find_or_add_step(fact.step)
        if meaning.starts is not None:
            step.attempt, step.since, step.ending = fact.attempt or 1, fact.at, None
            self.began = self.began or fact.at
            for source in details.get("from", ()):
                self.followed.add((source, fact.step))
        elif meaning.ends is not None:
            self._update_step_end(step, fact, meaning.ends)

    def _update_step_end(self, step: StepStory, fact: RecordedFact, ending: EndState) -> None:
        if ending is EndState.FAILED:
            step.line = format_error(fact.details, LINE_CHARS)
        elif ending is EndState.REFUSED:
            step.line = " ".join(str(fact.details.get("reason", "")).split())[:LINE_CHARS]
        elif ending in FINISHED:
            step.line = _output_line(fact.details)
        if ending is EndState.FAILED or ending in FINISHED:
            step.ending = ending

    def _find_or_add_step(self, name: str) -> StepStory:
        return self.nodes.setdefault(name, StepStory())


FINISHED = frozenset(
    (EndState.DONE, EndState.PASSED, EndState.ANSWERED, EndState.EXPIRED, EndState.SKIPPED)
)
"""The endings after which the run continues with the next steps."""


def build_story(facts: Iterable[Mapping[str, Any]]) -> Story:
    """Return the story of *facts*, oldest first, in the form of ``history --json``."""
    story = Story()
    for fact in read_facts(facts):
        story.add_fact(fact)
    return story


def _finish(attempt: StoryEntry, fact: RecordedFact, ending: EndState, end_s: float) -> None:
    """End *attempt* with *fact*."""
    details = fact.details
    usage = details.get("usage") or {}
    began_at, duration_s = details.get("began_at"), float(usage.get("seconds", 0.0))
    if began_at:
        attempt.begin = _parse_seconds(began_at)
    # A process that died counts as working until its last sign of life.
    is_known = began_at or duration_s or ending is EndState.LOST
    attempt.end = attempt.begin + duration_s if is_known else max(end_s, attempt.begin)
    attempt.ending = ending
    attempt.record_end(fact)


def last_line(text: str) -> str:
    """Return the last line of *text* that is not blank, cut to `LINE_CHARS`."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:LINE_CHARS] if lines else ""


def _output_line(outcome: Mapping[str, Any]) -> str:
    size = outcome.get("output_bytes")
    file = f"{size} bytes in {outcome.get('output_file')}" if size else ""
    return last_line(str(outcome.get("output", ""))) or file


def _parse_seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
