"""How a graph's run stands, and the facts of its journal in words, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sequencer.cli.views.states import amount
from sequencer.cli.views.text import moment
from sequencer.engine.markings import as_begun
from sequencer.engine.view import LINE_CHARS, FlowView, NodeState, NodeView, view_of
from sequencer.errors import ConfigurationError, CorruptState, DefinitionChanged
from sequencer.model.net import rules as flow_trace
from sequencer.model.outcome import cost_words, duration, error_words, used
from sequencer.model.transitions import Event

if TYPE_CHECKING:
    from sequencer.engine.run import Run


Fact = Mapping[str, Any]
"""One fact as `Run.history` yields it."""

_CUTS = frozenset((Event.DIVERTED, Event.EXHAUSTED, Event.TIMED_OUT, Event.CANCELLED))
_BY_HAND = frozenset((Event.PAUSED, Event.RESUMED, Event.EDITED, Event.ADOPTED, Event.RESET))


def told(facts: Sequence[Fact], view: FlowView) -> Iterator[tuple[str, str]]:
    """Yield when each of *facts* was and what it says; they are whole records of a journal.

    *view* is of a moment after them: it knows what people are asked, when a node is tried
    again, and what the chart calls each node. The beginning and the end of a run have no lines
    of their own.
    """
    nodes = {one.node.id: one for one in view.nodes}
    asked = {
        fact["step"]: place for place, fact in enumerate(facts) if fact["event"] == Event.ASKED
    }
    named = view.graph.named
    for place, fact in enumerate(facts):
        event, name, at = fact["event"], fact["step"], str(fact.get("at", ""))
        node = nodes.get(name)
        outcome = fact.get("outcome") or {}
        if event == Event.ASKED:
            yield at, _question(name, node, is_open=asked[name] == place)
        elif event == Event.FAILED:
            yield at, _failed(facts, place, node)
            yield from _cancelled(at, outcome, named)
        elif event == Event.LOOPED:
            yield at, f"loop {outcome.get('number')} of at most {view.graph.max_iterations}"
        elif event in _WORDS:
            yield at, _WORDS[event](fact, node)
        elif event in _CUTS or event == Event.EXPIRED:
            # The nodes that it ended have lines of their own.
            rest = {key: value for key, value in outcome.items() if key != "cancelled"}
            rest |= {"to": named(str(rest["to"]))} if "to" in rest else {}
            yield at, flow_trace.line(event, named(name), rest) or str(event)
            yield from _cancelled(at, outcome, named)
        elif event in _BY_HAND:
            note = outcome.get("note")
            yield at, f"{event}: {note}" if note else str(event)


def _cancelled(
    at: str, outcome: Mapping[str, Any], named: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    yield from ((at, f"cancel {named(name)}") for name in outcome.get("cancelled") or ())


def _named(fact: Fact, node: NodeView | None) -> str:
    """Return which node *fact* is about."""
    return str(fact["step"]) if node is None else node.node.named


def _started(fact: Fact, node: NodeView | None) -> str:
    attempt = fact.get("attempt") or 1
    told = f"start {_named(fact, node)}{_about(node)}"
    return told + (f", attempt {attempt}" if attempt > 1 else "")


def _about(node: NodeView | None) -> str:
    """Return what a task is about and whose it is."""
    if node is None or node.node.task is None:
        return ""
    role = node.node.task.role
    return f": {node.node.label}" + (f" ({role})" if role else "")


def _done(fact: Fact, node: NodeView | None) -> str:
    usage = used((fact.get("outcome") or {}).get("usage") or {})
    seconds = usage.seconds
    parts = [f"done {_named(fact, node)}"]
    parts += [duration(seconds)] if seconds > 0 else []
    tokens = usage.input_tokens + usage.output_tokens
    parts += [f"{amount(tokens)} tokens"] if tokens and node is not None and node.node.task else []
    is_worth_it = usage.cost_usd >= 0.005 or usage.unpriced  # noqa: PLR2004 - half a cent
    parts += [cost] if is_worth_it and (cost := cost_words(usage, 2)) else []
    return " ".join(parts)


def _released(fact: Fact, node: NodeView | None) -> str:
    if (fact.get("outcome") or {}).get("status") in ("limited", "unavailable"):
        return _retry(fact, node)
    return f"release {_named(fact, node)}{_reason(fact)}"


def _refused(fact: Fact, node: NodeView | None) -> str:
    outcome = fact.get("outcome") or {}
    number, reason = outcome.get("number"), str(outcome.get("reason") or "")
    told = f"no from {_named(fact, node)}" + (f" (round {number})" if number else "")
    return told + (f": {reason[:LINE_CHARS]}" if reason else "")


def _grown(fact: Fact, _: NodeView | None) -> str:
    tasks = (fact.get("outcome") or {}).get("tasks")
    named = ", ".join(map(str, tasks)) if isinstance(tasks, list) else "tasks"
    return f"add {named}" + (f", from {fact['step']}" if fact["step"] else "")


def _sent(fact: Fact, node: NodeView | None) -> str:
    outcome = fact.get("outcome") or {}
    by, text = outcome.get("by"), str(outcome.get("output") or "")
    told = f"message to {_named(fact, node)}" + (f" from {by}" if by else "")
    return f"{told}: {text[:LINE_CHARS]}" if text else told


_WORDS: Mapping[str, Callable[[Fact, NodeView | None], str]] = {
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


def _reason(fact: Fact) -> str:
    outcome = fact.get("outcome") or {}
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


def _failed(facts: Sequence[Fact], place: int, node: NodeView | None) -> str:
    fact = facts[place]
    if _is_over(fact, node) or _is_for_good(facts, place):
        return f"fail {_named(fact, node)}{_reason(fact)}"
    return _retry(fact, node)


def _retry(fact: Fact, node: NodeView | None) -> str:
    attempt = fact.get("attempt") or 1
    is_next = node is not None and node.state is NodeState.RETRYING and node.attempt == attempt
    until = f" (next at {moment(node.due)})" if is_next and node is not None and node.due else ""
    return f"retry {_named(fact, node)} after attempt {attempt}{_reason(fact)}{until}"


def _is_over(fact: Fact, node: NodeView | None) -> bool:
    """Return whether a node stands as it was after the failure *fact*.

    A team goes on without it, so that nothing else is told of its end.
    """
    is_latest = node is not None and node.attempt == (fact.get("attempt") or 1)
    return is_latest and node is not None and node.state is NodeState.FAILED


def _is_for_good(facts: Sequence[Fact], place: int) -> bool:
    """Return whether no other attempt follows the failure at *place*.

    The same record then tells what came of it: the way to the error node, or the end.
    """
    fact = facts[place]
    if "type" in (fact.get("outcome") or {}):
        return True
    for later in facts[place + 1 :]:
        if later["revision"] != fact["revision"] or later["event"] == Event.FAILED:
            return False
        if later["event"] == Event.DIVERTED:
            return bool(later["step"] == fact["step"])
        if later["event"] == Event.COMPLETED:
            return (later.get("outcome") or {}).get("status") == "failed"
    return False


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
        return view_of(title, run.flow.begun_with, None, None, ()), []
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
    return view_of(title, marking.graph, head, marking, facts, questions=questions), facts


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
