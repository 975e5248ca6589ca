"""The execution rules of flows by brute force, straight from their text.

Nothing of the program's own rules is used: whether a token can still reach a node is found
by a search at every event, edges that lead back by a recursive search, labels by other code.
Slow and plain on purpose; the program's counters have to give the same trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sequencer import Graph, Node, Workflow

Script = Mapping[str, tuple[tuple[Any, ...], tuple[int, ...]]]
"""By node: its answers, one an attempt, and how long each takes."""


def plain(text: str) -> str:
    """Return *text* as labels are compared."""
    text = re.sub(r"^[\s\"'`*]+|[\s\"'`*.!]+$", "", text)
    return " ".join(re.split(r"[\s_-]+", text)).strip().casefold()


def said(output: str) -> Iterator[str]:
    """Yield what may be a label in *output*."""
    text = output.strip()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict):
        for key in ("decision", "branch", "result"):
            if isinstance(found.get(key), str):
                yield plain(found[key])
                break
    lines = [line for line in text.split("\n") if line.strip()] or [""]
    for candidate in (text, lines[-1]):
        yield plain(candidate)
        word, colon, rest = candidate.strip(" *").partition(":")
        if colon and word[:1].isalpha():
            yield plain(rest)


@dataclass
class Execution:
    """A node that runs, or that waits for its next try."""

    sources: list[str]
    ends_at: int = 0
    failures: int = 0
    rests: bool = False
    is_overdue: bool = False


@dataclass
class Oracle:
    """One run."""

    workflow: Workflow
    script: Script
    trace: list[str] = field(default_factory=list)
    status: str = "running"
    state: dict[str, Any] = field(default_factory=dict)
    iterations: int = 0

    def __post_init__(self) -> None:
        assert self.workflow.graph is not None
        self.graph: Graph = self.workflow.graph
        self.names = [node.id for node in self.graph.nodes]
        self.nodes = {node.id: node for node in self.graph.nodes}
        self.back = set(self._back_edges())
        self.state = json.loads(json.dumps(self.graph.state))
        self.waiting: dict[str, list[str]] = {}
        self.running: dict[str, Execution] = {}
        self.outputs: dict[str, Any] = {}
        self.attempts = dict.fromkeys(self.names, 0)
        self.has_diverted = False
        self.now = self.busy = 0

    # --- the graph -----------------------------------------------------------------

    def _back_edges(self) -> Iterator[int]:
        seen: set[str] = set()
        found: list[int] = []

        def visit(name: str, path: frozenset[str]) -> None:
            seen.add(name)
            for place, edge in enumerate(self.graph.edges):
                if edge.source != name:
                    continue
                if edge.target in path | {name}:
                    found.append(place)
                elif edge.target not in seen:
                    visit(edge.target, path | {name})

        handler = [self.graph.on_error] if self.graph.on_error else []
        jumps = [node.on_timeout for node in self.graph.nodes if node.on_timeout]
        for root in [*self.graph.entries, *handler, *jumps, *self.names]:
            if root not in seen:
                visit(root, frozenset())
        return iter(found)

    def edges_of(self, name: str) -> list[int]:
        return [place for place, edge in enumerate(self.graph.edges) if edge.source == name]

    def reach(self, name: str) -> set[str]:
        """Return what lies behind *name* along forward edges."""
        found: set[str] = set()
        for place in self.edges_of(name):
            target = self.graph.edges[place].target
            if place not in self.back and target not in found:
                found |= {target} | self.reach(target)
        return found

    def back_jumps(self) -> set[str]:
        """Return the nodes whose time limit leads back, the first ones of a loop ahead."""
        ways = {(edge.source, edge.target) for place, edge in enumerate(self.graph.edges)
                if place not in self.back}  # fmt: skip
        found: set[str] = set()
        for node in self.graph.nodes:
            if node.on_timeout is not None:
                behind = {node.on_timeout}
                for _ in self.names:
                    behind |= {target for source, target in ways if source in behind}
                if node.id in behind:
                    found.add(node.id)
                else:
                    ways.add((node.id, node.on_timeout))
        return found

    # --- the run -------------------------------------------------------------------

    def tell(self, text: str) -> None:
        self.trace.append(f"{self.now} {text}")

    def run(self) -> Oracle:
        for name in self.graph.entries:
            self.put(name, None)
        self.start_all()
        while self.status == "running":
            if not self.waiting and not self.running:
                self.status = "completed_after_error" if self.has_diverted else "completed"
                break
            events = [(run.ends_at, self.names.index(name), name)
                      for name, run in self.running.items() if not run.is_overdue]  # fmt: skip
            assert events, "a deadlock"
            due, _, name = min(events)
            if self.is_late(due):
                break
            if self.running[name].rests:
                self.running[name].is_overdue = True
            else:
                self.finish(name)
            self.retry_all()
            self.start_all()
        return self

    def is_late(self, due: int) -> bool:
        limit = self.graph.timeout_ms
        works = any(self.nodes[name].kind == "agent" for name in self.running)
        left = None if limit is None else limit - self.busy
        if works and left is not None and due - self.now > left:
            self.now += left
            self.tell("workflow timeout" + self.cancelled())
            self.status = "timed_out"
            return True
        self.busy += due - self.now if works else 0
        self.now = due
        return False

    def put(self, name: str, source: str | None) -> None:
        found = self.waiting.setdefault(name, [])
        if source is not None and source not in found:
            found.append(source)

    def may_start(self, name: str) -> bool:
        others = (set(self.waiting) | set(self.running)) - {name}
        can_still_come = any(name in self.reach(other) for other in others)
        return name in self.waiting and name not in self.running and not can_still_come

    def has_place(self) -> bool:
        agents = [1 for name, run in self.running.items()
                  if self.nodes[name].kind == "agent" and not run.rests]  # fmt: skip
        limit = self.graph.max_parallel
        return limit is None or len(agents) < limit

    def start_all(self) -> None:
        if self.status != "running":
            return
        for name in self.names:
            is_held_up = self.nodes[name].kind == "agent" and not self.has_place()
            if self.may_start(name) and not is_held_up:
                sources = self.waiting.pop(name)
                merged = f" <- {'+'.join(sources)}" if len(sources) > 1 else ""
                self.tell(f"start {name}{merged}")
                self.running[name] = Execution(sources)
                self.attempt(name)

    def retry_all(self) -> None:
        for name in self.names:
            run = self.running.get(name)
            if run is not None and run.is_overdue and self.has_place():
                self.tell(f"retry {name} attempt {run.failures + 1}")
                run.rests = run.is_overdue = False
                self.attempt(name)

    def length(self, name: str) -> tuple[int, int | None]:
        node = self.nodes[name]
        _, lengths = self.script.get(name, ((), ()))
        usual = 10 if node.kind in ("agent", "human") else 0
        number = self.attempts[name] - 1
        length = lengths[min(number, len(lengths) - 1)] if lengths else usual
        step = self.workflow.steps_by_name.get(name)
        limit = node.timeout_ms
        if step is not None and step.timeout_s is not None:
            limit = round(step.timeout_s * 1000)
        return length, limit

    def attempt(self, name: str) -> None:
        self.attempts[name] += 1
        length, limit = self.length(name)
        self.running[name].ends_at = self.now + (length if limit is None else min(length, limit))

    # --- an end --------------------------------------------------------------------

    def finish(self, name: str) -> None:
        node = self.nodes[name]
        length, limit = self.length(name)
        if limit is not None and length > limit:
            if node.kind == "human":
                self.nobody_answered(node)
            else:
                self.failed(name, "timeout")
            return
        answers, _ = self.script.get(name, ((), ()))
        answer = self.reached(name)
        if node.kind in ("agent", "human"):
            answer = answers[min(self.attempts[name] - 1, len(answers) - 1)] if answers else ""
            if isinstance(answer, dict):
                self.failed(name, answer["error"])
                return
        if node.output_key is not None and not self.keep(node, answer):
            return
        self.outputs[name] = answer
        text = answer if isinstance(answer, str) else compact(answer)
        self.choose(name, text)

    def reached(self, name: str) -> Any:
        """Return the output that reached *name*, or a map of those that did."""
        sources = self.running[name].sources
        if len(sources) == 1:
            return self.outputs.get(sources[0], "")
        found: dict[str, str] = {}
        for source in sources:
            output = self.outputs.get(source, "")
            found |= output if isinstance(output, dict) else {source: output}
        return found or ""

    def keep(self, node: Node, answer: str) -> bool:
        assert node.output_key is not None
        here = self.state
        *above, last = node.output_key.split(".")
        for number, part in enumerate(above, 1):
            below = {} if here.get(part) is None else here[part]
            if not isinstance(below, dict):
                prefix = ".".join(above[:number])
                message = f"output.key {node.output_key!r}: {prefix!r} in the state is not a map"
                self.tell(f"fail {node.id}: {message}")
                self.give_up(node.id)
                return False
            here = below
        here = self.state
        for part in above:
            here[part] = {} if here.get(part) is None else here[part]
            here = here[part]
        here[last] = answer
        return True

    def choose(self, name: str, output: str) -> None:
        labels = [plain(self.graph.edges[place].label) for place in self.edges_of(name)]
        is_human = self.nodes[name].kind == "human"
        if len(set(labels)) < 2 and not (is_human and any(labels)):
            self.tell(f"done {name}")
            self.follow(name, self.edges_of(name))
            return
        self.tell(f"done {name} = {cut(output)}")
        for label in [*filter(None, said(output)), "default", ""]:
            if label in labels:
                found = [p for p, one in zip(self.edges_of(name), labels, strict=True)
                         if one == label]  # fmt: skip
                self.follow(name, found)
                return
        self.tell(f"fail {name}: no matching branch for {cut(output)!r}")
        self.give_up(name)

    def follow(self, name: str, places: list[int]) -> None:
        for place in places:
            if place in self.back and not self.loop(name, self.graph.edges[place].target):
                return
        for place in places:
            self.put(self.graph.edges[place].target, name)
        del self.running[name]

    def loop(self, name: str, target: str) -> bool:
        self.iterations += 1
        limit = self.graph.max_iterations
        if self.iterations <= limit:
            self.tell(f"loop {name} -> {target} #{self.iterations}")
            return True
        text = f"maxIterations {limit} exceeded at {name} -> {target}"
        self.tell(text + self.cancelled(name))
        self.status = "max_iterations"
        return False

    def cancelled(self, but: str | None = None) -> str:
        names = [name for name in self.names if name in self.running and name != but]
        return f"; cancelled {', '.join(names)}" if names else ""

    def nobody_answered(self, node: Node) -> None:
        self.outputs.pop(node.id, None)
        labels = [plain(self.graph.edges[place].label) for place in self.edges_of(node.id)]
        if node.on_timeout is not None:
            self.tell(f"timeout {node.id} -> {node.on_timeout}")
            if node.id not in self.back_jumps() or self.loop(node.id, node.on_timeout):
                self.put(node.on_timeout, node.id)
                del self.running[node.id]
        elif any(labels):
            self.choose(node.id, "timeout")
        elif not labels:
            self.tell(f"fail {node.id}: no matching branch for 'timeout'")
            self.give_up(node.id)
        else:
            self.tell(f"timeout {node.id}")
            self.follow(node.id, self.edges_of(node.id))

    def failed(self, name: str, message: str) -> None:
        run = self.running[name]
        run.failures += 1
        self.tell(f"fail {name} attempt {run.failures}: {message}")
        step = self.workflow.steps_by_name.get(name)
        retry = step.retry if step is not None else None
        if retry is None or run.failures >= retry.max_attempts:
            self.give_up(name)
            return
        growth = {"fixed": 1, "linear": run.failures, "exponential": 2 ** (run.failures - 1)}
        wait_s = min(retry.initial_delay_s * growth[retry.backoff], retry.max_delay_s)
        # Without a wait the next attempt is due now: before anything that has not started yet.
        run.rests, run.is_overdue = True, wait_s == 0
        run.ends_at = self.now + round(wait_s * 1000)

    def give_up(self, name: str) -> None:
        handler = self.graph.on_error
        if handler is None or self.has_diverted or name == handler:
            self.trace[-1] += self.cancelled(name)
            self.status = "failed"
            return
        self.tell(f"onError -> {handler}" + self.cancelled(name))
        self.has_diverted = True
        self.waiting, self.running = {}, {}
        self.put(handler, None)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def cut(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "…"
