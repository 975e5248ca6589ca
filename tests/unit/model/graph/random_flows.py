"""Random graphs with everything that a flow may have, and what their nodes answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from sequencer import Edge, Graph, Node, NodeKind, Retry, Workflow
from sequencer.workflows.simulate import NodeScript
from tests.flows import workflow_of

MAX_NODES = 12
LABELS = ("yes", "no", "Try again", "default", "timeout")
ANSWERS = (
    "yes",
    "no",
    "**Decision: Try_Again.**",
    "at length:\n\nAnswer: No!",
    '{"result": "no", "decision": "yes"}',
    "neither",
    "",
    "timeout",
)
LENGTHS = (0, 5, 10, 10, 10, 20, 40)
"""Few different ones, so that many end at once."""
DELAYS = (5, 10, 50)
KEYS = ("m", "m.x", "m.x.y", "k")
STATES: tuple[dict[str, Any], ...] = ({}, {}, {"m": {"x": None}}, {"m": "text"})
KINDS = (
    NodeKind.AGENT,
    NodeKind.AGENT,
    NodeKind.AGENT,
    NodeKind.HUMAN,
    NodeKind.MARKER,
    NodeKind.DECISION,
)


@dataclass(frozen=True)
class Case:
    """A workflow and its script."""

    workflow: Workflow
    graph: Graph
    script: Mapping[str, tuple[tuple[Any, ...], tuple[int, ...]]]

    @property
    def parts(self) -> dict[str, NodeScript]:
        return {name: NodeScript(out, ms) for name, (out, ms) in self.script.items()}

    def __repr__(self) -> str:
        """Return what a person can read when a property fails."""
        edges = "; ".join(
            f"{edge.source} -->{f'|{edge.label}|' if edge.label else ''} {edge.target}"
            for edge in self.graph.edges
        )
        nodes = {node.id: node.model_dump(exclude_defaults=True) for node in self.graph.nodes}
        rest = self.graph.model_dump(exclude={"nodes", "edges"}, exclude_defaults=True)
        steps = [step.model_dump(exclude_defaults=True) for step in self.workflow.steps]
        return f"Case({edges}\n{nodes}\n{rest}\n{steps}\n{self.script}\n)"


class _Drawing:
    """One random flow; the same for the same seed."""

    def __init__(self, seed: int, size: int, *, has_ties: bool) -> None:
        self.random = Random(seed)  # noqa: S311 - the same flow for the same seed
        self.lengths = LENGTHS if has_ties else tuple(range(1, 90))
        self.delays = DELAYS if has_ties else self.lengths
        self.names = [chr(ord("a") + number) for number in range(size)]

    def chance(self, per_cent: int) -> bool:
        return self.random.randrange(100) < per_cent

    def edges(self, *, has_loops: bool) -> tuple[Edge, ...]:
        """Return edges under which most nodes lie behind the first one."""
        pick, found = self.random.choice, list[Edge]()
        for place, name in enumerate(self.names):
            behind, before = self.names[place + 1 :], self.names[: place + 1]
            near = behind[:4]
            count = pick([0, 1, 2, 2, 2, 3]) if behind else 0
            targets = [pick(near if self.chance(70) else behind) for _ in range(count)]
            if has_loops and self.chance(15):
                targets.insert(self.random.randint(0, len(targets)), pick(before))
            style = pick(["none", "none", "none", "one", "many"])
            one = pick(LABELS) if style == "one" else ""
            for target in targets:
                label = pick([*LABELS, ""]) if style == "many" else one
                found.append(Edge(source=name, target=target, label=label))
        return tuple(found)

    def node(self, name: str, *, is_plain: bool) -> Node:
        kind = self.random.choice(KINDS)
        fields: dict[str, Any] = {}
        if kind is NodeKind.HUMAN and not is_plain and self.chance(50):
            fields["timeout_ms"] = self.random.choice([5, 10, 15])
            if self.chance(50):
                fields["on_timeout"] = self.random.choice(self.names)
        if kind is NodeKind.AGENT and self.chance(20):
            fields["output_key"] = self.random.choice(KEYS)
        return Node(id=name, kind=kind, **fields)

    def graph(self, *, has_loops: bool, is_plain: bool) -> Graph:
        pick, is_limited = self.random.choice, not is_plain
        entries = self.random.sample(self.names, min(2, len(self.names)))
        return Graph(
            nodes=tuple(self.node(name, is_plain=is_plain) for name in self.names),
            edges=self.edges(has_loops=has_loops),
            entries=tuple(entries if self.chance(15) else self.names[:1]),
            on_error=pick(self.names) if is_limited and self.chance(50) else None,
            max_iterations=pick([0, 1, 3, 5, 9]),
            max_parallel=pick([1, 2, 3]) if self.chance(40) else None,
            timeout_ms=pick([10, 35, 70, 100, 200]) if is_limited and self.chance(20) else None,
            state=pick(STATES),
        )

    def retry(self) -> Retry:
        pick = self.random.choice
        return Retry(
            max_attempts=pick([1, 2, 2, 3]),
            backoff=pick(["fixed", "linear", "exponential"]),
            initial_delay_s=(0 if self.chance(25) else pick(self.delays)) / 1000,
            max_delay_s=pick([0.015, 60.0]),
        )

    def case(self, *, has_loops: bool, is_plain: bool) -> Case:
        graph = self.graph(has_loops=has_loops, is_plain=is_plain)
        known = ANSWERS if is_plain else (*ANSWERS, *({"error": "boom"},) * 2)
        some, script, limits, retries = self.random.choices, {}, {}, {}
        for node in graph.nodes:
            if node.works:
                count = self.random.randint(1, 4)
                # A person can't fail.
                may_fail = node.kind is NodeKind.AGENT and self.chance(30)
                out = tuple(some(known if may_fail else ANSWERS, k=count))
                script[node.id] = (out, tuple(some(self.lengths, k=self.random.randint(0, 2))))
            if node.kind is NodeKind.AGENT and not is_plain:
                retries[node.id] = self.retry()
                if self.chance(10):
                    limits[node.id] = self.random.choice([4, 10, 15])
        return Case(workflow_of(graph, retry=retries, timeouts_ms=limits), graph, script)


def cases(
    *, has_loops: bool = True, is_plain: bool = False, has_ties: bool = True
) -> st.SearchStrategy[Case]:
    """Return random flows; a plain one has no error node, no errors and no time limits.

    Without ties it is rare that two attempts end at once, and none takes no time; a retry
    may still come without a wait.

    A seed and a size are drawn, and not each choice: thirty times as many flows in the same
    time, for which smaller sizes are tried when one fails.
    """

    def made(seed: int, size: int) -> Case:
        return _Drawing(seed, size, has_ties=has_ties).case(has_loops=has_loops, is_plain=is_plain)

    return st.builds(made, st.integers(0, 2**32), st.integers(1, MAX_NODES))
