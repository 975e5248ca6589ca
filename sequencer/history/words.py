"""The facts of a graph's run in words, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sequencer.history.facts import RecordedFact, read_facts
from sequencer.history.story import LINE_CHARS
from sequencer.history.trace import trace_line
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.outcome import (
    format_cost,
    format_count,
    format_duration,
    format_error,
    read_usage,
)
from sequencer.model.transitions import Event


def format_time(at: str, now: datetime | None = None) -> str:
    """Return the ISO time *at* in local time; with the date if it is not on the day of *now*.

    >>> noon = datetime.fromisoformat("2026-11-22T12:00:00").astimezone()
    >>> format_time("2026-11-22T14:05:07.250", noon), format_time("2026-11-23T08:00:00", noon)[:19]
    ('14:05:07', '2026-11-23 08:00:00')
    """
    try:
        local_time = datetime.fromisoformat(at).astimezone()
    except (ValueError, OverflowError):
        return at
    current_date = (now or datetime.now().astimezone()).date()
    return (
        f"{local_time:%H:%M:%S}"
        if local_time.date() == current_date
        else f"{local_time:%Y-%m-%d %H:%M:%S %Z}"
    )


def format_facts(history: Sequence[Mapping[str, Any]], view: FlowView) -> Iterator[tuple[str, str]]:
    """Yield (time, line) for each fact of *history*, which must have complete journal records.

    *view* must be newer than the facts: it has the questions to people, the time of the next
    attempt, and the title of each node. The start and the end of a run have no lines.
    """
    facts = [*read_facts(history)]
    nodes = {node_view.node.id: node_view for node_view in view.nodes}
    question_indexes = {
        fact.step: index for index, fact in enumerate(facts) if fact.event is Event.ASKED
    }
    format_node = view.graph.format_node
    for index, fact in enumerate(facts):
        event, name, timestamp, outcome = fact.event, fact.step, fact.at, fact.details
        node = nodes.get(name)
        if event is Event.ASKED:
            yield timestamp, _format_question(name, node, is_open=question_indexes[name] == index)
        elif event is Event.FAILED:
            yield timestamp, _format_failure(facts, index, node)
            yield from _format_cancelled(timestamp, outcome, format_node)
        elif event is Event.LOOPED:
            yield timestamp, f"loop {outcome.get('number')} of at most {view.graph.max_iterations}"
        elif event in _WORDS:
            yield timestamp, _WORDS[event](fact, node)
        elif fact.meaning.cancels or event is Event.EXPIRED:
            # The nodes that it ended get separate lines.
            other_details = {key: value for key, value in outcome.items() if key != "cancelled"}
            other_details |= (
                {"to": format_node(str(other_details["to"]))} if "to" in other_details else {}
            )
            yield timestamp, trace_line(event, format_node(name), other_details) or str(event)
            yield from _format_cancelled(timestamp, outcome, format_node)
        elif title := fact.meaning.title:
            yield timestamp, f"{title} {name}".rstrip() + _format_reason(fact)
        elif event in _NOTED:
            note = outcome.get("note")
            yield timestamp, f"{event}: {note}" if note else str(event)


_NOTED = frozenset((Event.PAUSED, Event.RESUMED, Event.EDITED, Event.ADOPTED, Event.RESET))
"""Events whose line is the event and its note."""


def _format_cancelled(
    timestamp: str, outcome: Mapping[str, Any], format_node: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    yield from (
        (timestamp, f"cancel {format_node(name)}") for name in outcome.get("cancelled") or ()
    )


def _node_name(fact: RecordedFact, node: NodeView | None) -> str:
    """Return the name of the node of *fact*."""
    return fact.step if node is None else node.node.named


def _format_start(fact: RecordedFact, node: NodeView | None) -> str:
    attempt = fact.attempt or 1
    line = f"start {_node_name(fact, node)}{_format_task(node)}"
    return line + (f", attempt {attempt}" if attempt > 1 else "")


def _format_task(node: NodeView | None) -> str:
    """Return the label and the role of a task, for the end of a line; empty: it is not a task."""
    if node is None or node.node.task is None:
        return ""
    role = node.node.task.role
    return f": {node.node.label}" + (f" ({role})" if role else "")


def _format_done(fact: RecordedFact, node: NodeView | None) -> str:
    usage = read_usage(fact.details.get("usage") or {})
    seconds = usage.seconds
    parts = [f"done {_node_name(fact, node)}"]
    parts += [format_duration(seconds)] if seconds > 0 else []
    tokens = usage.input_tokens + usage.output_tokens
    parts += (
        [f"{format_count(tokens)} tokens"] if tokens and node is not None and node.node.task else []
    )
    is_worth_it = usage.cost_usd >= 0.005 or usage.unpriced  # noqa: PLR2004 - half a cent
    parts += [cost] if is_worth_it and (cost := format_cost(usage, 2)) else []
    return " ".join(parts)


def _format_release(fact: RecordedFact, node: NodeView | None) -> str:
    if fact.details.get("status") in ("limited", "unavailable"):
        return _format_retry(fact, node)
    return f"release {_node_name(fact, node)}{_format_reason(fact)}"


def _format_refusal(fact: RecordedFact, node: NodeView | None) -> str:
    outcome = fact.details
    number, reason = outcome.get("number"), str(outcome.get("reason") or "")
    line = f"no from {_node_name(fact, node)}" + (f" (round {number})" if number else "")
    return line + (f": {reason[:LINE_CHARS]}" if reason else "")


def _format_growth(fact: RecordedFact, _: NodeView | None) -> str:
    tasks = fact.details.get("tasks")
    names = ", ".join(map(str, tasks)) if isinstance(tasks, list) else "tasks"
    return f"add {names}" + (f", from {fact.step}" if fact.step else "")


def _format_message(fact: RecordedFact, node: NodeView | None) -> str:
    outcome = fact.details
    author, text = outcome.get("by"), str(outcome.get("output") or "")
    line = f"message to {_node_name(fact, node)}" + (f" from {author}" if author else "")
    return f"{line}: {text[:LINE_CHARS]}" if text else line


_WORDS: Mapping[str, Callable[[RecordedFact, NodeView | None], str]] = {
    Event.CLAIMED: _format_start,
    Event.STARTED: _format_start,
    Event.SUCCEEDED: _format_done,
    Event.ANSWERED: _format_done,
    Event.PASSED: _format_done,
    Event.RELEASED: _format_release,
    Event.TAKEN_OVER: lambda fact, node: (
        f"take over {_node_name(fact, node)}{_format_reason(fact)}"
    ),
    Event.INVALID: _format_refusal,
    Event.GROWN: _format_growth,
    Event.TOLD: _format_message,
}


def _format_reason(fact: RecordedFact) -> str:
    outcome = fact.details
    text = format_error(outcome, LINE_CHARS) or str(outcome.get("note") or "")[:LINE_CHARS]
    return f": {text}" if text else ""


def _format_question(name: str, node: NodeView | None, *, is_open: bool) -> str:
    """Return the line of a question, with its templates filled in if the view still has it."""
    if node is None:
        return f"ask {name}: {name}"
    question = node.node.question or node.node.label or name
    if is_open and node.state is NodeState.ASKED and node.last_line:
        question = node.last_line
    # If the title is the question, don't show it twice.
    subject = name if question == node.node.title else node.node.named
    return f"ask {subject}: {question}"


def _format_failure(facts: Sequence[RecordedFact], index: int, node: NodeView | None) -> str:
    fact = facts[index]
    if _is_over(fact, node) or _is_final(facts, index):
        return f"fail {_node_name(fact, node)}{_format_reason(fact)}"
    return _format_retry(fact, node)


def _format_retry(fact: RecordedFact, node: NodeView | None) -> str:
    attempt = fact.attempt or 1
    is_next = node is not None and node.state is NodeState.RETRYING and node.attempt == attempt
    deadline = (
        f" (next at {format_time(node.due)})" if is_next and node is not None and node.due else ""
    )
    return f"retry {_node_name(fact, node)} after attempt {attempt}{_format_reason(fact)}{deadline}"


def _is_over(fact: RecordedFact, node: NodeView | None) -> bool:
    """Return whether the node is still in the failed state of *fact*.

    A team continues without the node, so no other fact reports its end.
    """
    is_latest = node is not None and node.attempt == (fact.attempt or 1)
    return is_latest and node is not None and node.state is NodeState.FAILED


def _is_final(facts: Sequence[RecordedFact], index: int) -> bool:
    """Return whether no other attempt follows the failure at *index*.

    Then the same record has the consequence: the error node, or the end of the run.
    """
    fact = facts[index]
    if "type" in fact.details:
        return True
    for later_fact in facts[index + 1 :]:
        if later_fact.revision != fact.revision or later_fact.event is Event.FAILED:
            return False
        if later_fact.event is Event.DIVERTED:
            return later_fact.step == fact.step
        if later_fact.meaning.ends_run:
            return later_fact.details.get("status") == "failed"
    return False
