"""The recorded flows as real runs: the same events in the same order, agents and people apart."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import StepFailed, WaitsForPerson
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import StepRequest
from sequencer.model.graph.choices import normalize
from sequencer.model.graph.graph import Graph, NodeKind
from sequencer.model.outcome import Outcome
from sequencer.model.workflow import Workflow
from sequencer.workflows.flowfile.reader import read_flow
from sequencer.workflows.simulate import read_script
from tests.unit.engine.flow.labs import LIMIT_S, Actor, Lab, failed, interrupted, said, until

FLOWS = json.loads((Path(__file__).parents[3] / "data/flowcharts/flows.json").read_text())
ASKED_AGAIN = ("09-no-match",)
"""A run asks an agent again whose answer picks no way; a script would say the same again."""
VALID = [
    flow
    for flow in FLOWS
    if flow["expect"]["status"] != "invalid" and flow["name"] not in ASKED_AGAIN
]
DONE = re.compile(r"done (\S+)(?: = (.*))?", re.DOTALL)
FAILED = re.compile(r"fail (\S+) attempt \d+: (.*)")
TIME_LIMIT_MS = 700
"""Long enough for what is not cut off."""
CLOCK_SHARE = 0.01
"""Of the waits between tries that the flows ask for."""


class Conductor(Actor):
    """Lets the agents end in the order that was recorded, whatever the clock says."""

    def __init__(self, workflow: Workflow, expect: list[str], outputs: dict[str, Any]) -> None:
        super().__init__()
        self.expect = expect
        self._kinds = (
            {node.id: node.kind for node in workflow.graph.nodes} if workflow.graph else {}
        )
        said_by = {name: _texts(part.get("out")) for name, part in outputs.items()}
        # The last one again and again.
        self._outputs = {n: chain(texts, repeat(texts[-1])) for n, texts in said_by.items()}
        self._turns: dict[str, threading.Semaphore] = {
            n: threading.Semaphore(0) for n in self._kinds
        }
        self._next: dict[str, list[Outcome]] = {name: [] for name in self._kinds}

    def perform(
        self, request: StepRequest, listener: object, cancellation: Cancellation
    ) -> Outcome:
        del listener
        turn = self._turns[request.step.name]
        while not turn.acquire(timeout=0.002):
            if cancellation.is_set():
                return interrupted()
        return self._next[request.step.name].pop(0)

    def play(self, lab: Lab) -> None:
        """Play the whole of what was recorded."""
        for place, line in enumerate(self.expect):
            self._play(lab, line)
            until(partial(_has_lines, lab, place + 1), LIMIT_S)

    def _play(self, lab: Lab, line: str) -> None:
        if (found := FAILED.fullmatch(line)) is not None:
            self._let(found[1], failed(found[2]))
        elif (found := DONE.fullmatch(line)) is not None:
            name = found[1]
            output = next(self._outputs.get(name, repeat("")))
            if self._kinds[name] is NodeKind.AGENT:
                self._let(name, said(output))
            elif self._kinds[name] is NodeKind.HUMAN:
                until(lambda: name in {q.node.id for q in lab.run().flow.questions(lab.head)})
                lab.answer(name, output or "yes")

    def _let(self, name: str, outcome: Outcome) -> None:
        self._next[name].append(outcome)
        self._turns[name].release()


def _has_lines(lab: Lab, count: int) -> bool:
    return len(lab.trace()) >= count


def _texts(value: Any) -> list[str]:
    """Return the texts that a node says; failures are in the trace."""
    listed = value if isinstance(value, list) else [value]
    return [text for text in listed if isinstance(text, str)] or [""]


def _fields(graph: Graph) -> dict[str, Any]:
    return {spec.key: getattr(graph, name) for name, spec in Graph.model_fields.items()}


def _time_limit(graph: Graph) -> dict[str, Any]:
    return {} if graph.timeout_ms is None else {"timeout_ms": TIME_LIMIT_MS}


def prepared(flow: dict[str, Any]) -> tuple[Workflow, list[str]]:
    """Return the workflow with waits that a test has time for, and the lines to come."""
    script = read_script(flow, "script.json")
    made = read_flow(flow["mermaid"], file=Path("f.mmd"), overrides=script.overrides).workflow
    steps = []
    for step in made.steps:
        retry = step.retry
        if retry is not None:
            delay = retry.initial_delay_s * CLOCK_SHARE
            retry = retry.replace(initial_delay_s=delay)
        # Who is to end on time is told so by the conductor.
        steps.append(step.replace(retry=retry, timeout_s=None))
    assert made.graph is not None
    # What people type here need not be one of the options.
    nodes = tuple(
        node.replace(allows_custom_input=node.kind is NodeKind.HUMAN) for node in made.graph.nodes
    )
    # Anew, because a copy has what was worked out for the old one.
    graph = Graph(**{**_fields(made.graph), "nodes": nodes, **_time_limit(made.graph)})
    workflow = Workflow(made.name, steps, kind="graph", graph=graph)
    return workflow, [line.partition(" ")[2] for line in flow["expect"]["trace"]]


@pytest.mark.parametrize("flow", VALID, ids=lambda flow: flow["name"])
def test_a_real_run_follows_the_recorded_trace(flow: dict[str, Any], tmp_path: Path) -> None:
    workflow, expect = prepared(flow)
    conductor = Conductor(workflow, expect, flow.get("nodes", {}))
    lab = Lab(tmp_path, workflow, conductor)
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                lab.work()
                ended.set()
            except WaitsForPerson:
                ended.wait(0.002)
            except StepFailed:
                ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    with contextlib.suppress(AssertionError):
        conductor.play(lab)
    assert ended.wait(LIMIT_S), lab.trace()
    thread.join()
    # An option is kept as it is written, however it was typed.
    assert [*map(normalize, lab.trace())] == [*map(normalize, expect)]
    assert lab.status == flow["expect"]["status"]
    assert lab.head.claims == ()
