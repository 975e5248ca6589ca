"""`history`: show what happened in a run, from its journal."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.tables import format_table
from sequencer.cli.views.text import cut, file_size, one_line, pluralize
from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.history.facts import RecordedFact, read_facts
from sequencer.history.trace import trace_line
from sequencer.model.evidence import format_evidence, read_evidence
from sequencer.model.outcome import OutcomeStatus, format_cost, read_usage

NOTE_CHARS = 72
_REASON = ("note", "error", "reason", "hint")
"""Keys of an outcome that explain it; the first key with a value is shown."""
_RUN_ID = re.compile(r"\brun [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
TRACE_CHARS = 100
ERROR_CHARS = 40
"""Length of an error that also canceled other nodes, which are named after it."""


@verb("history")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show only the newest N facts.",
)
@pass_invocation
def history(invocation: Invocation, limit: int | None) -> None:
    """Show what happened in the run, oldest first.

    \b
    Examples:
      sequencer history -n 20
      sequencer history --json | jq 'select(.event == "failed")'
      sequencer --run nightly history
    """
    run = invocation.run_to_show()
    facts: Iterable[dict[str, Any]] = _read_facts(run)
    newest_facts = facts if limit is None else deque(facts, maxlen=limit)
    if invocation.is_json:
        for fact in newest_facts:
            invocation.print_json(fact)
        return
    denial_count = 0
    rows: list[tuple[str, ...]] = []
    records = [*read_facts(newest_facts)]
    try:
        head = run.view().head
    except SequencerError as error:
        # The journal can be read, whatever is wrong with state.json.
        invocation.notify(f"warning: {error.in_one_line}")
        is_trace = any("from" in record.details for record in records)
    else:
        # For a graph, the words are those of `plan --simulate`.
        is_trace = head is not None and head.begun_at is not None
    for record in records:
        denial_count += len(record.details.get("denials") or ())
        rows.append(_format_trace_row(record) if is_trace else _format_row(record))
    if not rows:
        invocation.notify(invocation.describe_not_started())
        return
    max_width = invocation.max_width
    if is_trace:
        heads: tuple[str, ...] = ("REVISION", "AT", "TOKEN", "WHAT", "")
        table = format_table(heads, rows, right={0, 2}, max_width=max_width, goes=(2, 0), whole={3})
    else:
        heads = ("REVISION", "AT", "EVENT", "STEP", "STEP_INDEX", "TOKEN", "ATTEMPT", "")
        table = format_table(heads, rows, right={0, 4, 5, 6}, max_width=max_width, goes=(5, 0, 6))
    invocation.echo(table)
    if denial_count:
        # An agent that may not edit files does no work, so a person must notice this.
        calls = pluralize(denial_count, "tool call")
        invocation.notify(f"warning: the agents' permissions refused {calls}; see 'sequencer log'")


def _format_trace_row(fact: RecordedFact) -> tuple[str, ...]:
    outcome = fact.details
    line = trace_line(fact.event, fact.step, _with_short_error(outcome))
    if line is None:
        line = " ".join(filter(None, (fact.event, fact.step, outcome.get("status"))))
    token, text = str(fact.token or ""), cut(one_line(line), TRACE_CHARS)
    remark = _format_remark({k: v for k, v in outcome.items() if k != "error"}, fact.step)
    return (str(fact.revision), fact.at, token, text, remark)


def _with_short_error(outcome: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *outcome* with its error cut, if it also has to show the nodes that it canceled."""
    error = outcome.get("error")
    if not isinstance(error, str) or not outcome.get("cancelled"):
        return outcome
    return {**outcome, "error": cut(error, ERROR_CHARS)}


def _read_facts(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the facts of *run*; if there are none, read its state, which may be damaged."""
    is_empty = True
    for fact in run.history():
        is_empty = False
        yield fact
    if is_empty:
        run.view()


def _format_row(fact: RecordedFact) -> tuple[str, ...]:
    outcome, step = fact.details, fact.step
    values = (fact.revision, fact.at, fact.event, step, fact.step_index, fact.token, fact.attempt)
    verdict = _format_verdict(outcome)
    # The verdict comes first, because the end may be cut. The error would only repeat it.
    remark = _format_remark({**outcome, "error": None} if verdict else outcome, step)
    remark = ", ".join(filter(None, (verdict, remark)))
    return (*(one_line(str(value)) for value in values), remark)


def _format_verdict(outcome: Mapping[str, Any]) -> str:
    """Return the verdict in *outcome*, its round and reason; empty: the step is not a judge."""
    verdict = outcome.get("verdict")
    if not isinstance(verdict, dict):
        return ""
    decision = f"{'yes' if verdict.get('pass') else 'no'} (round {verdict.get('round', 1)})"
    reason = verdict.get("reason")
    return cut(one_line(f"{decision}: {reason}"), NOTE_CHARS) if reason else decision


def _format_remark(outcome: Mapping[str, Any], step: str) -> str:
    """Return a short remark for people about *outcome* of *step*."""
    parts = [str(outcome["agent"])] if outcome.get("agent") else []
    # A router may have chosen another prompt than the step's own.
    prompt = str(outcome.get("prompt") or "")
    parts += [f"prompt {prompt}"] if prompt.removesuffix(".md") not in ("", step) else []
    usage = outcome.get("usage")
    if isinstance(usage, dict) and usage.get("seconds"):
        parts.append(f"{float(usage['seconds']):.1f} s")
    if cut_from := outcome.get("output_cut_from"):
        parts.append(f"its answer of {file_size(cut_from)} was cut; the end is kept")
    if isinstance(usage, dict):
        parts += [cost] if (cost := format_cost(read_usage(usage))) else []
        parts += ["no agent ran"] if usage.get("rehearsed") else []
    if outcome.get("overspent"):
        parts.append(f"spent {outcome['overspent']}")
    if outcome.get("by"):
        parts.append(f"by {outcome['by']}")
    if outcome.get("denials"):
        parts.append(f"{len(outcome['denials'])} tool calls refused")
    # For a reset, the journal has the id of the run that it ended, which means nothing to people.
    keys = ("error", *_REASON) if outcome.get("status") == OutcomeStatus.FAILED else _REASON
    reasons = (_RUN_ID.sub("run", str(outcome.get(key) or "")) for key in keys)
    evidence = format_evidence(read_evidence(outcome))
    first_reason = [text for text in reasons if text][:1]
    parts += [evidence] if evidence else []
    return cut(one_line(", ".join([*parts, *first_reason])), NOTE_CHARS + len(evidence))
