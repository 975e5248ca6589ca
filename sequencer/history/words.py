"""The facts of a graph's run in words, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sequencer.history.facts import RecordedFact, read
from sequencer.history.story import LINE_CHARS
from sequencer.history.trace import trace_line
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.outcome import amount, cost_words, duration, error_words, used
from sequencer.model.transitions import Event


def moment(at: str, now: datetime | None = None) -> str:
    """Return the ISO time *at* on this machine's clock; of another day than *now* with the date.

    >>> noon = datetime.fromisoformat("2026-11-22T12:00:00").astimezone()
    >>> moment("2026-11-22T14:05:07.250", noon), moment("2026-11-23T08:00:00", noon)[:19]
    ('14:05:07', '2026-11-23 08:00:00')
    """
    try:
        due = datetime.fromisoformat(at).astimezone()
    except ValueError:
        return at
    today = (now or datetime.now().astimezone()).date()
    return f"{due:%H:%M:%S}" if due.date() == today else f"{due:%Y-%m-%d %H:%M:%S %Z}"


def fact_lines(history: Sequence[Mapping[str, Any]], view: FlowView) -> Iterator[tuple[str, str]]:
    """Yield (time, line) for each fact of *history*, which has whole records of a journal.

    *view* is newer than the facts: it knows what people are asked, when a node is tried again,
    and what the chart calls each node. The beginning and the end of a run have no lines.
    """
    facts = [*read(history)]
    nodes = {one.node.id: one for one in view.nodes}
    asked = {fact.step: place for place, fact in enumerate(facts) if fact.event is Event.ASKED}
    named = view.graph.named
    for place, fact in enumerate(facts):
        event, name, at, outcome = fact.event, fact.step, fact.at, fact.details
        node = nodes.get(name)
        if event is Event.ASKED:
            yield at, _question(name, node, is_open=asked[name] == place)
        elif event is Event.FAILED:
            yield at, _failed(facts, place, node)
            yield from _cancelled(at, outcome, named)
        elif event is Event.LOOPED:
            yield at, f"loop {outcome.get('number')} of at most {view.graph.max_iterations}"
        elif event in _WORDS:
            yield at, _WORDS[event](fact, node)
        elif fact.meaning.cancels or event is Event.EXPIRED:
            # The nodes that it ended have lines of their own.
            rest = {key: value for key, value in outcome.items() if key != "cancelled"}
            rest |= {"to": named(str(rest["to"]))} if "to" in rest else {}
            yield at, trace_line(event, named(name), rest) or str(event)
            yield from _cancelled(at, outcome, named)
        elif event in _NOTED:
            note = outcome.get("note")
            yield at, f"{event}: {note}" if note else str(event)


_NOTED = frozenset((Event.PAUSED, Event.RESUMED, Event.EDITED, Event.ADOPTED, Event.RESET))
"""Their line is the event and its note."""


def _cancelled(
    at: str, outcome: Mapping[str, Any], named: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    yield from ((at, f"cancel {named(name)}") for name in outcome.get("cancelled") or ())


def _named(fact: RecordedFact, node: NodeView | None) -> str:
    """Return which node *fact* is about."""
    return fact.step if node is None else node.node.named


def _started(fact: RecordedFact, node: NodeView | None) -> str:
    attempt = fact.attempt or 1
    told = f"start {_named(fact, node)}{_about(node)}"
    return told + (f", attempt {attempt}" if attempt > 1 else "")


def _about(node: NodeView | None) -> str:
    """Return what a task is about and whose it is."""
    if node is None or node.node.task is None:
        return ""
    role = node.node.task.role
    return f": {node.node.label}" + (f" ({role})" if role else "")


def _done(fact: RecordedFact, node: NodeView | None) -> str:
    usage = used(fact.details.get("usage") or {})
    seconds = usage.seconds
    parts = [f"done {_named(fact, node)}"]
    parts += [duration(seconds)] if seconds > 0 else []
    tokens = usage.input_tokens + usage.output_tokens
    parts += [f"{amount(tokens)} tokens"] if tokens and node is not None and node.node.task else []
    is_worth_it = usage.cost_usd >= 0.005 or usage.unpriced  # noqa: PLR2004 - half a cent
    parts += [cost] if is_worth_it and (cost := cost_words(usage, 2)) else []
    return " ".join(parts)


def _released(fact: RecordedFact, node: NodeView | None) -> str:
    if fact.details.get("status") in ("limited", "unavailable"):
        return _retry(fact, node)
    return f"release {_named(fact, node)}{_reason(fact)}"


def _refused(fact: RecordedFact, node: NodeView | None) -> str:
    outcome = fact.details
    number, reason = outcome.get("number"), str(outcome.get("reason") or "")
    told = f"no from {_named(fact, node)}" + (f" (round {number})" if number else "")
    return told + (f": {reason[:LINE_CHARS]}" if reason else "")


def _grown(fact: RecordedFact, _: NodeView | None) -> str:
    tasks = fact.details.get("tasks")
    named = ", ".join(map(str, tasks)) if isinstance(tasks, list) else "tasks"
    return f"add {named}" + (f", from {fact.step}" if fact.step else "")


def _sent(fact: RecordedFact, node: NodeView | None) -> str:
    outcome = fact.details
    by, text = outcome.get("by"), str(outcome.get("output") or "")
    told = f"message to {_named(fact, node)}" + (f" from {by}" if by else "")
    return f"{told}: {text[:LINE_CHARS]}" if text else told


_WORDS: Mapping[str, Callable[[RecordedFact, NodeView | None], str]] = {
    Event.CLAIMED: _started,
    Event.STARTED: _started,
    Event.SUCCEEDED: _done,
    Event.ANSWERED: _done,
    Event.PASSED: _done,
    Event.RELEASED: _released,
    Event.TAKEN_OVER: lambda fact, node: f"take over {_named(fact, node)}{_reason(fact)}",
    Event.INVALID: _refused,
    Event.GROWN: _grown,
    Event.TOLD: _sent,
    Event.WARNED: lambda fact, _: f"warning{_reason(fact)}",
}


def _reason(fact: RecordedFact) -> str:
    outcome = fact.details
    text = error_words(outcome, LINE_CHARS) or str(outcome.get("note") or "")[:LINE_CHARS]
    return f": {text}" if text else ""


def _question(name: str, node: NodeView | None, *, is_open: bool) -> str:
    """Return what is asked, with its templates filled in if the view still has it."""
    if node is None:
        return f"ask {name}: {name}"
    said = node.node.question or node.node.label or name
    if is_open and node.state is NodeState.ASKED and node.last_line:
        said = node.last_line
    # A title that is asked as it stands needs not to be said twice.
    named = name if said == node.node.title else node.node.named
    return f"ask {named}: {said}"


def _failed(facts: Sequence[RecordedFact], place: int, node: NodeView | None) -> str:
    fact = facts[place]
    if _is_over(fact, node) or _is_for_good(facts, place):
        return f"fail {_named(fact, node)}{_reason(fact)}"
    return _retry(fact, node)


def _retry(fact: RecordedFact, node: NodeView | None) -> str:
    attempt = fact.attempt or 1
    is_next = node is not None and node.state is NodeState.RETRYING and node.attempt == attempt
    until = f" (next at {moment(node.due)})" if is_next and node is not None and node.due else ""
    return f"retry {_named(fact, node)} after attempt {attempt}{_reason(fact)}{until}"


def _is_over(fact: RecordedFact, node: NodeView | None) -> bool:
    """Return whether a node stands as it was after the failure *fact*.

    A team goes on without it, so that nothing else is told of its end.
    """
    is_latest = node is not None and node.attempt == (fact.attempt or 1)
    return is_latest and node is not None and node.state is NodeState.FAILED


def _is_for_good(facts: Sequence[RecordedFact], place: int) -> bool:
    """Return whether no other attempt follows the failure at *place*.

    The same record then tells what came of it: the way to the error node, or the end.
    """
    fact = facts[place]
    if "type" in fact.details:
        return True
    for later in facts[place + 1 :]:
        if later.revision != fact.revision or later.event is Event.FAILED:
            return False
        if later.event is Event.DIVERTED:
            return later.step == fact.step
        if later.meaning.ends_run:
            return later.details.get("status") == "failed"
    return False
