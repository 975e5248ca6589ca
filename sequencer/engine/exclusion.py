"""Which nodes of a graph never run at the same time, because no wall stands between them.

An agent without a wall can write to the output of any other agent of its user. So it never
runs while another node's answer decides the way, and a decision waits until it has ended.

Not promised: this between runs, or between a run and anything else that its user has started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from sequencer.engine.agents import Agents
from sequencer.engine.records import decides
from sequencer.errors import SequencerError
from sequencer.executors.protocol import HasWall
from sequencer.executors.wall import Wall, unavailable_reason
from sequencer.model.graph.graph import Graph, NodeKind
from sequencer.model.graph.marking import Marking
from sequencer.model.head import Head
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow

_NOBODY: frozenset[str] = frozenset()


class _SyncStatus(NamedTuple):
    graph: Graph
    deciding: frozenset[str]
    open: frozenset[str]


class Exclusion:
    """Keeps decisions of one graph's run apart from agents without a wall."""

    def __init__(
        self,
        agents: Agents,
        with_defaults: Callable[[Step], Step],
        workflow_at: Callable[[Marking], Workflow],
    ) -> None:
        """Look at nothing yet."""
        self._agents = agents
        self._with_defaults = with_defaults
        self._workflow_at = workflow_at
        self._known: _SyncStatus | None = None

    def closed(self, head: Head, marking: Marking, gone: Collection[int]) -> frozenset[str]:
        """Return the nodes that must not start beside what runs now; *gone* are dead claims."""
        deciding, has_no_wall = self._sides(marking)[1:]
        if not (deciding and has_no_wall):
            return _NOBODY
        live = {claim.step for claim in head.claims if claim.token not in gone}
        closed = _NOBODY
        if live & deciding:
            closed |= has_no_wall
        if live & has_no_wall:
            closed |= deciding
        return closed

    def _sides(self, marking: Marking) -> _SyncStatus:
        if self._known is None or self._known.graph is not marking.graph:
            workflow = self._workflow_at(marking)
            deciding = frozenset(step.name for step in workflow.steps if decides(workflow, step))
            has_no_wall = _NOBODY
            if deciding:
                agents = (n.id for n in marking.graph.nodes if n.kind is NodeKind.AGENT)
                has_no_wall = frozenset(n for n in agents if self._is_open(workflow, n))
            self._known = _SyncStatus(marking.graph, deciding, has_no_wall)
        return self._known

    def _is_open(self, workflow: Workflow, name: str) -> bool:
        try:
            _, executor = self._agents.choose(
                self._with_defaults(workflow.steps_by_name[name]), name
            )
        except (SequencerError, KeyError):
            # Its attempt says what is wrong with it.
            return False
        return isinstance(executor, HasWall) and (
            executor.wall is Wall.NONE or unavailable_reason() is not None
        )
