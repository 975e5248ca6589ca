"""`runs`: every run of the project, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from sequencer.cli.context import Invocation, each_run
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.states import age_s
from sequencer.cli.views.tables import columns
from sequencer.cli.views.text import one_line
from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.model.head import Head
from sequencer.model.outcome import Usage, cost_words, duration
from sequencer.posting.results import Pending
from sequencer.project import Project


@verb("runs")
@click.option("--all", "with_ended", is_flag=True, help="Also the runs that have ended.")
@pass_invocation
def runs(invocation: Invocation, *, with_ended: bool) -> None:
    """List the runs with their procedure, step, status, age and cost.

    \b
    Examples:
      sequencer runs
      sequencer runs --all --json
    """
    project = invocation.project()
    begun = [
        _unread(run, found) if isinstance(found, SequencerError) else found
        for run, found in each_run(project, partial(_facts, project))
    ]
    # Of an ended one somebody may still have to be told.
    shown = [
        facts
        for facts in begun
        if with_ended
        or not facts["ended"]
        or any(post["pending"] or post["error"] for post in facts["posts"])
    ]
    if invocation.is_json:
        invocation.print_json(shown)
        return
    if not shown:
        more = f"; {len(begun)} have ended: --all" if begun else ""
        invocation.echo(f"no run is under way{more}")
        return
    rows = [_row(facts) for facts in shown]
    heads = ("RUN", "WORKFLOW", "STEP", "STATUS", "AGE", "COST", "TITLE")
    invocation.echo(columns(heads, rows, room=invocation.room, goes=(4, 1)))
    for facts in shown:
        for post in facts["posts"]:
            told = Pending(**post).text(lambda at: duration(age_s(at) or 0.0))
            invocation.echo(f"{_name(facts)}: {one_line(told)}")


def _name(facts: Mapping[str, Any]) -> str:
    return one_line(facts["run"] or "(default)")


def _unread(run: Run, error: SequencerError) -> dict[str, Any]:
    facts: dict[str, Any] = {"run": run.name, "ended": False, "posts": []}
    return {**facts, "status": "unreadable", "error": error.message}


def _facts(project: Project, run: Run, head: Head) -> dict[str, Any]:
    """Return what is shown about *run*."""
    begun, title = _began(run)
    return {
        "run": run.name,
        "ended": head.status == "complete",
        "workflow": head.workflow_name,
        "step": head.expected_step,
        "step_index": head.step_index,
        "steps": _length(run, head),
        "status": "rejected" if head.was_rejected else str(head.status),
        "began_at": begun,
        "age_s": age_s(begun),
        "last_update": head.last_update,
        "cost_usd": head.usage.known_usd,
        "unpriced": head.usage.unpriced,
        "estimated_usd": head.usage.estimated_usd,
        "seconds": head.usage.seconds,
        "title": title,
        "posts": [one.as_json() for one in project.pending_posts(run, head)],
    }


def _length(run: Run, head: Head) -> int | None:
    """Return how many steps there are in all; None for a run without an end."""
    try:
        workflow = run.workflow_for(head)
    except SequencerError:
        return None
    return len(workflow.steps) if workflow.kind == "procedure" else None


def _began(run: Run) -> tuple[str | None, str | None]:
    """Return when the run began, as far as its journal goes back, and its request's title."""
    definition = run.definition
    if definition is not None:
        return definition.created_at, definition.request.title
    try:
        first = next(iter(run.history()), None)
    except SequencerError:
        first = None
    return (None if first is None else str(first["at"])), None


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    name = _name(facts)
    if "error" in facts:
        return (name, "", "", facts["status"], "", "", one_line(facts["error"]))
    of = f"/{facts['steps']}" if facts["steps"] else ""
    step = f"{facts['step_index'] + (0 if facts['ended'] else 1)}{of} {facts['step']}".rstrip()
    age = duration(facts["age_s"]) if facts["age_s"] is not None else ""
    usage = {key: facts[key] for key in ("unpriced", "estimated_usd")}
    cost = cost_words(Usage(cost_usd=facts["cost_usd"] or 0.0, **usage), 2)
    title = one_line(facts["title"] or "")
    return (name, one_line(facts["workflow"]), one_line(step), facts["status"], age, cost, title)
