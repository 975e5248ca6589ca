"""One side of the fleet's rows: runs of ours on a Temporal server, or bare workflows there."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

# The bare workflow uses none of it, so its sandbox need not load it again.
with workflow.unsafe.imports_passed_through():
    from bench.project import Marks, make_project, no_op_run
    from bench.serving import Answer, serve
    from sequencer.engine.events import Emit
    from sequencer.engine.invocation_budget import Mode
    from sequencer.engine.worker import Worker as OurWorker
    from sequencer.model.limits import InvocationLimits
    from sequencer.plugins.temporal.client import FleetStore
    from sequencer.plugins.temporal.worker import polls
    from sequencer.plugins.temporal.worker import serve as serve_runs

QUEUE = "bare"
STEP_S = timedelta(seconds=60)
STARTERS = 8
"""Commands at once that start runs."""
SAMPLES, SAMPLED = 8, 25
"""Looks at the memory, one after so many steps each; their median counts."""


BEGUN: list[float] = []
"""When each attempt of this process has begun, by a clock that all processes have."""


@activity.defn(name="nothing")
async def nothing(number: int) -> tuple[int, float, float]:
    """Do nothing; return when it began, by the clocks of the wall and of this process."""
    BEGUN.append(time.monotonic())
    return number, time.monotonic(), time.process_time()


@workflow.defn(name="bare")
class Bare:
    """The least workflow that makes steps one after the other."""

    @workflow.run
    async def run(self, count: int) -> list[tuple[int, float, float]]:
        """Make *count* steps."""
        once = RetryPolicy(maximum_attempts=1)
        return [
            await workflow.execute_activity(
                nothing, number, start_to_close_timeout=STEP_S, retry_policy=once
            )
            for number in range(count)
        ]


class BareSide:
    """A client of bare workflows, which has a worker where it makes the steps itself."""

    def __init__(self, address: str) -> None:
        """Work for the server at *address*."""
        self._address = address
        self._number = 0

    def made(self, count: int, skip: int) -> dict[str, Any]:
        """Make so many steps; return what one takes, from its beginning to the next one's."""
        return asyncio.run(self._made(count, skip))

    async def _made(self, count: int, skip: int) -> dict[str, Any]:
        client = await Client.connect(self._address)
        async with Worker(client, task_queue=QUEUE, workflows=[Bare], activities=[nothing]):
            begun = await client.execute_workflow(
                Bare.run, count, id=self._name(), task_queue=QUEUE
            )
        wall = [after[1] - before[1] for before, after in pairwise(begun)]
        cpu = [after[2] - before[2] for before, after in pairwise(begun)]
        return {"wall": wall[skip:], "cpu": cpu[skip:]}

    def started(self, runs: int, count: int) -> dict[str, Any]:
        """Start so many workflows that workers make."""
        asyncio.run(self._started(runs, count))
        return {}

    async def _started(self, runs: int, count: int) -> None:
        client = await Client.connect(self._address)
        for _ in range(runs):
            await client.start_workflow(Bare.run, count, id=self._name(), task_queue=QUEUE)

    def _name(self) -> str:
        self._number += 1
        return f"bare-{os.getpid()}-{self._number}"

    def serve(self, places: int) -> None:
        """Make steps of every workflow, as long as this process lives."""
        asyncio.run(self._served(places))

    async def _served(self, places: int) -> None:
        client = await Client.connect(self._address)
        # As many polls as ours: more of them than places would keep a step from its own worker.
        await Worker(
            client,
            task_queue=QUEUE,
            workflows=[Bare],
            activities=[nothing],
            max_concurrent_activities=places,
            max_concurrent_activity_task_polls=polls(places),
        ).run()


class OurSide:
    """A project whose runs are on the server."""

    def __init__(self, folder: Path, address: str) -> None:
        """Make the project in *folder*."""
        extra = f"store: {{kind: temporal, address: '{address}', project: bench}}\n"
        self._project = make_project(folder, extra)
        self._marks = Marks()
        self._number = 0

    def made(self, count: int, skip: int) -> dict[str, Any]:
        """Make so many steps of a new run; return what one takes, and what it leaves behind."""
        self._marks.clear()
        run = no_op_run(self._project, self._marks, self._name())
        run.work(Mode.COMBINED, InvocationLimits(max_steps=count))
        wall, cpu = self._marks.between_steps(skip)
        return {"wall": wall, "cpu": cpu, **_left(run.store)}

    def grown(self, early: int, late: int) -> dict[str, Any]:
        """Make *late* steps of a new run; return the memory before *early* and *late*, in MB."""
        found: dict[int, list[tuple[float, float]]] = {early: [], late: []}

        def look(index: int) -> None:
            # The marks are the bench's own, and would grow too.
            self._marks.clear()
            for end, values in found.items():
                # The collector and the allocator give back now and then, by some MB.
                if index + 1 in range(end - SAMPLES * SAMPLED, end + 1, SAMPLED):
                    gc.collect()
                    memory = psutil.Process().memory_full_info()
                    values.append((memory.uss / 2**20, memory.rss / 2**20))

        run = no_op_run(self._project, self._marks, self._name(), look)
        run.work(Mode.COMBINED, InvocationLimits(max_steps=late))
        return {
            str(end): {
                "own": statistics.median(own for own, _ in values),
                "all": statistics.median(whole for _, whole in values),
            }
            for end, values in found.items()
        }

    def started(self, runs: int, count: int) -> dict[str, Any]:
        """Let workers make so many runs of *count* steps."""
        limits = InvocationLimits(max_steps=count)

        def detach(name: str) -> None:
            run = no_op_run(self._project, self._marks, name)
            run.work(Mode.COMBINED, limits, is_detached=True)

        with ThreadPoolExecutor(STARTERS) as threads:
            list(threads.map(detach, [self._name() for _ in range(runs)]))
        return {}

    def _name(self) -> str:
        self._number += 1
        return f"run-{os.getpid()}-{self._number}"

    def serve(self, places: int) -> None:
        """Make steps of every run, as long as this process lives."""
        store = self._project.store(None)
        if not isinstance(store, FleetStore):
            message = "the runs are not on the server"
            raise TypeError(message)
        store.build_worker = self._worker
        serve_runs(store, places, lambda _: None, lambda *_: None)

    def _worker(self, name: str | None, emit: Emit) -> OurWorker:
        run = no_op_run(self._project, Marks(), name, lambda _: BEGUN.append(time.monotonic()))
        return run.worker(emit)


def _left(store: Any) -> dict[str, Any]:
    """Return how many events and bytes the newest execution of a run has."""
    if not isinstance(store, FleetStore):
        message = "the run is not on the server"
        raise TypeError(message)

    async def described() -> dict[str, Any]:
        handle = await store.get_handle()
        info = (await handle.describe()).raw_description.workflow_execution_info
        return {"events": info.history_length, "bytes": info.history_size_bytes}

    return store.connection.call(described())


def begin() -> tuple[dict[str, Any], Answer]:
    """Be the side that the arguments say; with a number of places a worker of it."""
    what, address, folder, *places = sys.argv[1:]
    side = OurSide(Path(folder), address) if what == "ours" else BareSide(address)
    if places:
        threading.Thread(target=side.serve, args=(int(places[0]),), daemon=True).start()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        call = request.pop("call")
        if call == "begun":
            return {"begun": BEGUN[request["after"] :], "cpu": time.process_time()}
        made: dict[str, Any] = getattr(side, call)(**request)
        return made

    return {"pid": os.getpid()}, answer


if __name__ == "__main__":
    serve(begin)
    sys.stdout.flush()
    # The client's threads may abort an interpreter that ends.
    os._exit(0)
