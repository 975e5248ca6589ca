"""The facts of a graph's run for a decision; see `engine.decide`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from sequencer.engine.decide import RecordExpired, Seen, Wait
from sequencer.engine.graph_budget import GraphBudget, format_wait_message
from sequencer.errors import format_command
from sequencer.model.graph.graph_kind import GraphKind, find_expirations, time_left_ms
from sequencer.model.graph.marking import Marking
from sequencer.model.head import Head
from sequencer.model.limits import parse_time


class GraphSeen(Seen):
    """The run of a graph: several nodes at a time."""

    def __init__(
        self,
        head: Head,
        at: datetime,
        marking: Marking,
        graph_kind: GraphKind,
        budget: GraphBudget,
        *,
        is_code_busy: bool = False,
        **more: Any,
    ) -> None:
        """Hold the facts about *head* at the time *at*; *more* are the facts of `Seen`.

        *budget* is what this invocation has done and may do. *is_code_busy*: other processes
        work on the code that this process needs.
        """
        super().__init__(head, at, **more)
        self.marking, self._kind, self._budget = marking, graph_kind, budget
        self._is_code_busy = is_code_busy

    @property
    def is_over(self) -> bool:
        """Return whether the run of the graph has ended."""
        return self._kind.is_over(self.head)

    def describe_end(self) -> str:
        """Return a sentence about the end of the run, which is complete or canceled.

        Raises:
            StepFailed: the run ended in another way.
        """
        return self._budget.describe_end(self.head, self.marking)

    def _compute_left_ms(self) -> float:
        # The time that a dead process worked is known only when its nodes are taken over.
        if self.expired_tokens or self.head.is_on_hold:
            return math.inf
        return time_left_ms(self.head, self.marking, self.at)

    def find_expired(self) -> RecordExpired | None:
        """Return the move that records expired questions, and that the agents' time is up.

        While the run is on hold, nothing expires, as at the gate of a sequence.
        """
        if self.head.is_on_hold:
            return None
        acts = find_expirations(self.marking, self.at, self._compute_left_ms())
        return RecordExpired(acts=tuple(acts)) if acts else None

    def may_claim(self) -> bool:
        """Return whether this process may start one more node, if there is one."""
        return not self._is_code_busy and self._budget.slots(len(self.running)) > 0

    def find_due_time(self) -> datetime | None:
        """Return when the next try starts, a question expires, or the agents' time is up.

        Tries that were due before this process tried to claim wait for a free slot. The process
        wakes anyway when an attempt ends.
        """
        start, left_ms = self.tried_at or self.at, self._compute_left_ms()
        due_times = [time for time in _iter_due_times(self.marking) if time > start]
        if left_ms < math.inf:
            due_times.append(self.at + timedelta(milliseconds=left_ms))
        return min(due_times, default=None)

    def find_end_reason(self) -> str | None:
        """Return why this invocation ends; see `GraphBudget.find_end_reason`.

        Raises: see `WorkLoop.work`.
        """
        return self._budget.find_end_reason(self.head, self.marking, self.at)

    def make_wait(self) -> Wait:
        """Return the `Wait` for other processes, or else for the next try."""
        if self._budget.is_waiting_for_others(self.head, self.at):
            message = format_wait_message(self.head)
            hint = "use 'sequencer takeover --force' if their processes are really gone"
            if not self.head.claims:
                hint = f"{format_command(self.head.run_name, 'resume')} lets it continue"
            report = f"{message}; this process waits"
            return Wait(message, self.find_due_time(), is_for_others=True, hint=hint, report=report)
        next_date = self._budget.next_try(self.marking)
        message = "" if next_date is None else "the next try starts"
        return Wait(message, self.find_due_time(), date=next_date)


def _iter_due_times(marking: Marking) -> Iterator[datetime]:
    """Yield when each active node is tried again, or its question expires; skip the others."""
    for execution in marking.active.values():
        due_time = parse_time(execution.due) if execution.due else None
        if due_time is not None:
            yield due_time
