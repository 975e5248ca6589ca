"""Keeps nodes of a graph from running at the same time if no wall separates them.

An agent without a wall can write to the output of any other agent of the same user. So it never
runs together with a node whose answer picks an edge; each waits until the other has ended.

Not promised: the same between runs, or between a run and other programs of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import Struct

from sequencer.engine.agents import Agents
from sequencer.engine.records import is_deciding_step
from sequencer.errors import SequencerError
from sequencer.executors.protocol import HasWall
from sequencer.executors.wall import Wall, unavailable_reason
from sequencer.model.graph.graph import Graph, NodeKind
from sequencer.model.graph.marking import Marking
from sequencer.model.head import Head
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow

_NONE: frozenset[str] = frozenset()


class _Groups(Struct, frozen=True):
    graph: Graph
    deciding: frozenset[str]
    without_wall: frozenset[str]


class Exclusion:
    """Separates the decisions of one graph's run from agents without a wall."""

    def __init__(
        self,
        agents: Agents,
        with_defaults: Callable[[Step], Step],
        workflow_at: Callable[[Marking], Workflow],
    ) -> None:
        """Note the functions to call; the nodes are examined on first use."""
        self._agents = agents
        self._with_defaults = with_defaults
        self._workflow_at = workflow_at
        self._cached: _Groups | None = None

    def find_excluded(
        self, head: Head, marking: Marking, expired: Collection[int]
    ) -> frozenset[str]:
        """Return the nodes that must not start while the current claims are held.

        *expired* are the tokens of claims that may be taken over; they don't count.
        """
        groups = self._groups(marking)
        deciding_names, unwalled_names = groups.deciding, groups.without_wall
        if not (deciding_names and unwalled_names):
            return _NONE
        live_names = {claim.step for claim in head.claims if claim.token not in expired}
        closed_names = _NONE
        if live_names & deciding_names:
            closed_names |= unwalled_names
        if live_names & unwalled_names:
            closed_names |= deciding_names
        return closed_names

    def _groups(self, marking: Marking) -> _Groups:
        # A new graph has added tasks.
        if self._cached is None or self._cached.graph is not marking.graph:
            workflow = self._workflow_at(marking)
            deciding_names = frozenset(
                step.name for step in workflow.steps if is_deciding_step(workflow, step)
            )
            unwalled_names = _NONE
            if deciding_names:
                agents = (node.id for node in marking.graph.nodes if node.kind is NodeKind.AGENT)
                unwalled_names = frozenset(name for name in agents if self._is_open(workflow, name))
            self._cached = _Groups(marking.graph, deciding_names, unwalled_names)
        return self._cached

    def _is_open(self, workflow: Workflow, name: str) -> bool:
        """Return whether the agent of node *name* runs without a wall."""
        try:
            _, executor = self._agents.choose(
                self._with_defaults(workflow.steps_by_name[name]), name
            )
        except (SequencerError, KeyError):
            # The error is reported by the attempt at the node.
            return False
        return isinstance(executor, HasWall) and (
            executor.wall is Wall.NONE or unavailable_reason() is not None
        )
