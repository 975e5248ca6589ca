"""What a person sees of a run of a graph: every node with its state, at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sequencer.model.graph import Graph, Node


class NodeState(StrEnum):
    """Where a node stands."""

    PENDING = "pending"
    """Nothing has reached it yet."""
    WAITING = "waiting"
    """Reached, and it waits for others that can still come, or for a free place."""
    READY = "ready"
    """May start; nobody runs it yet."""
    RUNNING = "running"
    RETRYING = "retrying"
    """An attempt failed; the next one waits for its time."""
    ASKED = "asked"
    """A person has to answer."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node."""

    node: Node
    state: NodeState = NodeState.PENDING
    attempt: int = 0
    """Of the execution that runs or ran last, from 1; 0: none yet."""
    runs: int = 0
    """How often it was done; more than once in a loop."""
    seconds: float = 0.0
    """Of all attempts that have ended."""
    cost_usd: float = 0.0
    """What is known of it."""
    unpriced: int = 0
    """Attempts whose cost nobody told."""
    estimated_usd: float = 0.0
    """Of ``cost_usd``: from tokens and prices."""
    tokens: int = 0
    """Input and output together, of all attempts that have ended."""
    since: str | None = None
    """ISO 8601 UTC: when it began to run or to wait for a person; None in other states."""
    due: str | None = None
    """ISO 8601 UTC: for ``retrying`` the next attempt, for ``asked`` the end of the wait."""
    last_line: str = ""
    """The last line of its output, or its error; from outside: make it safe before showing it."""


@dataclass(frozen=True, slots=True)
class FlowView:
    """The whole run."""

    title: str
    graph: Graph
    nodes: tuple[NodeView, ...]
    """In the graph's order."""
    status: str
    """not-started, running, waiting, completed, completed_after_error, failed, timed_out,
    max_iterations or cancelled."""
    iterations: int = 0
    """Back edges followed so far."""
    followed: frozenset[int] = frozenset()
    """Places in ``graph.edges`` of those that were followed at least once."""
    began: str | None = None
    """ISO 8601 UTC: when the first node began; None: none has."""
    latest: str | None = None
    """ISO 8601 UTC: the newest thing that happened."""
