"""The process that schedules and runs fans; CPU of its own is what it tells.

In a process by itself: a graph of 10,000 nodes is a large heap, which would make every
collection of garbage dearer for the rows that come after it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from bench.flows import PLACES, fan, flow_run
from bench.project import Marks, make_project, no_op_run
from bench.serving import Answer, serve
from sequencer import InvocationLimits, Mode, Run, Status, Workflow
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.marking import FlowStatus, Marking
from sequencer.model.graph.record import Chain
from sequencer.model.graph.rules import MarkingEditor
from sequencer.model.head import Flow

WARM_UP = 50


class Largest:
    """The largest state.json that was seen on the way."""

    def __init__(self, path: Path) -> None:
        """Look at *path*."""
        self._path = path
        self._size = 0
        self._content = b"{}"

    def look(self, _: int) -> None:
        """Look at the file; it may be replaced at any moment."""
        if self._path.stat().st_size > self._size:
            self._content = self._path.read_bytes()
            self._size = len(self._content)

    def told(self) -> dict[str, int]:
        """Return its size, and how much of that is claims."""
        head: dict[str, Any] = json.loads(self._content)
        rest = json.dumps({**head, "claims": []}, indent=2, ensure_ascii=False)
        claims = len(self._content) - len(rest.encode()) - 1
        return {"head_bytes": self._size, "claims_bytes": claims}


class Fans:
    """Runs of fans and of cycles, each a run of its own in one project."""

    def __init__(self, folder: Path) -> None:
        """Prepare a project in *folder*."""
        self._project = make_project(folder)
        self._runs = self._project.settings.state_file.parent / "runs"
        self._number = 0
        self._known: dict[int, Workflow] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer ``schedule``, ``run`` and ``cycle``, each with what one node or step costs."""
        nodes, is_kept = request["nodes"], request.get("is_kept", False)
        if request["do"] == "schedule":
            used = schedule(self._fan(nodes), is_written=request.get("is_written", True))
            return {"cpu": used / (nodes + 2)}
        found, name = self._run(nodes) if request["do"] == "run" else self._cycle(nodes)
        if not is_kept:
            self._remove(name)
        return found

    def _fan(self, nodes: int) -> Workflow:
        if nodes not in self._known:
            self._known[nodes] = workflow = fan(nodes)
            # What a run derives from its graph once is no part of a node.
            schedule(workflow)
        return self._known[nodes]

    def _run(self, nodes: int) -> tuple[dict[str, Any], str]:
        workflow, name = self._fan(nodes), self._next_name()
        largest = Largest(self._runs / name / "state.json")
        run = flow_run(self._project, workflow, name, largest.look)
        found = self._timed(run, Mode.COMBINED, InvocationLimits(max_steps=None), nodes + 2)
        head = run.head
        if head is None or head.flow is None or head.flow.status != FlowStatus.COMPLETED:
            message = f"the run of {nodes} nodes has not come to its end"
            raise RuntimeError(message)
        return {**found, **largest.told()}, name

    def _cycle(self, steps: int) -> tuple[dict[str, Any], str]:
        name = self._next_name()
        run = no_op_run(self._project, Marks(), name)
        return self._timed(run, Mode.COMBINED, InvocationLimits(max_steps=steps), steps), name

    @staticmethod
    def _timed(run: Run, mode: Mode, limits: InvocationLimits, count: int) -> dict[str, Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        run.work(mode, limits, places=PLACES)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return {"cpu": cpu / count, "wall": wall / count}

    def _next_name(self) -> str:
        self._number += 1
        return f"run-{self._number}"

    def _remove(self, name: str) -> None:
        """Remove the files of a run; in memory they would take what others need."""
        shutil.rmtree(self._runs / name)
        for logs in self._project.settings.logs_dir.glob(f"*/runs/{name}"):
            shutil.rmtree(logs)


def schedule(workflow: Workflow, *, is_written: bool = True) -> float:
    """Take a run from its begin to its end without a store; return the CPU seconds of it.

    For each node: its acceptance, what follows from that for all others, the choice and the
    start of the next one; and, if *is_written*, what the head and its documents have to say
    of the marking then, one transition a node.
    """
    graph = workflow.graph
    if graph is None:
        raise ValueError(workflow.name)
    used = time.process_time()
    marking, flow, chain, token = Marking(graph), Flow(), Chain(), 0
    course, running = MarkingEditor(marking), deque[str]()
    course.begin()
    while True:
        while len(running) < PLACES and (name := marking.find_next_startable()) is not None:
            token += 1
            course.start(name, token)
            running.append(name)
        if is_written:
            written = flow_record.write(marking, Status.RUNNING, flow, chain, course.operations)
            flow, chain = written.flow, written.chain
        course.operations.clear()
        course.facts.clear()
        if not running:
            break
        course.succeed(running.popleft(), "")
    used = time.process_time() - used
    if marking.status is not FlowStatus.COMPLETED:
        raise RuntimeError(marking.status)
    return used


def begin() -> tuple[dict[str, Any], Answer]:
    """Prepare a project in the folder of the first argument."""
    fans = Fans(Path(sys.argv[1]))
    for what in ("cycle", "run"):
        fans.answer({"do": what, "nodes": WARM_UP})
    return {"pid": os.getpid()}, fans.answer


if __name__ == "__main__":
    serve(begin)
