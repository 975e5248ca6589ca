"""What is said about a graph run that has not come to a good end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sequencer.errors import StepFailed
from sequencer.model.head import Head
from sequencer.model.names import command
from sequencer.model.net.marking import FlowStatus, Marking


def failures(marking: Marking) -> str:
    """Return what failed for good; of a team there may be several."""
    failure = marking.failure or {}
    if not marking.graph.is_team:
        return f"node {failure.get('node')!r} failed: {failure.get('message')}"
    return _of_tasks(marking.lost) or str(failure.get("message"))


def _of_tasks(failed: Mapping[str, Mapping[str, Any]]) -> str:
    return "; ".join(f"task {name!r} failed: {one.get('message')}" for name, one in failed.items())


def ensure_none_failed(head: Head, marking: Marking, reason: str) -> None:
    """Return if no task of a team has failed by the time that *reason* ends the work.

    Raises:
        StepFailed: one has; that a limit was reached as well makes it no good end.
    """
    if marking.failed:
        again = command(head.run_name, "retry")
        raise StepFailed(
            f"{_of_tasks(marking.failed)}; {reason}",
            hint=f"raise the limit; {again} puts back what has failed",
        )


def bad_end(head: Head, marking: Marking) -> StepFailed:
    """Return the error that a flow's end is; the same whenever it is asked."""
    error = marking.error or {}
    what = {
        FlowStatus.COMPLETED_AFTER_ERROR: (
            f"node {error.get('node')!r} failed ({error.get('message')}); the error node ran"
        ),
        FlowStatus.FAILED: failures(marking),
        FlowStatus.TIMED_OUT: f"its agents took longer than {marking.graph.timeout_ms} ms",
        FlowStatus.MAX_ITERATIONS: f"it looped more than {marking.graph.max_iterations} times",
    }
    hint = f"{command(head.run_name, 'history')} shows what happened"
    if marking.ended_at:
        hint += f"; {command(head.run_name, 'retry')} puts the nodes back that were stopped"
    return StepFailed(
        f"the run ended as {marking.status}: {what.get(marking.status, '')}",
        where=f"run {head.run_name}" if head.run_name else "the default run",
        hint=hint,
    )
