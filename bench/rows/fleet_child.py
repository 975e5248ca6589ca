"""One side of the fleet's rows: a run of ours on a Temporal server, or a bare workflow there."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from bench.project import Marks, make_project, no_op_run
from bench.serving import Answer, serve
from sequencer.engine.stint import Mode
from sequencer.fleet.client import FleetStore
from sequencer.model.limits import InvocationLimits

QUEUE = "bare"
STEP_S = timedelta(seconds=60)


@activity.defn(name="nothing")
async def nothing(number: int) -> tuple[int, float, float]:
    """Do nothing; return when it began, by the clocks of the wall and of this process."""
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
    """A worker and a client of bare workflows."""

    def __init__(self, address: str) -> None:
        """Work for the server at *address*."""
        self._address = address
        self._number = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make so many steps; return what one takes, from its beginning to the next one's."""
        return asyncio.run(self._made(request["count"], request["skip"]))

    async def _made(self, count: int, skip: int) -> dict[str, Any]:
        client = await Client.connect(self._address)
        self._number += 1
        name = f"bare-{os.getpid()}-{self._number}"
        async with Worker(client, task_queue=QUEUE, workflows=[Bare], activities=[nothing]):
            begun = await client.execute_workflow(Bare.run, count, id=name, task_queue=QUEUE)
        wall = [after[1] - before[1] for before, after in pairwise(begun)]
        cpu = [after[2] - before[2] for before, after in pairwise(begun)]
        return {"wall": wall[skip:], "cpu": cpu[skip:]}


class OurSide:
    """A project whose runs are on the server."""

    def __init__(self, folder: Path, address: str) -> None:
        """Make the project in *folder*."""
        extra = f"store: {{kind: temporal, address: '{address}', project: bench}}\n"
        self._project = make_project(folder, extra)
        self._marks = Marks()
        self._number = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make so many steps of a new run; return what one takes, and what it leaves behind."""
        self._number += 1
        self._marks.clear()
        run = no_op_run(self._project, self._marks, f"run-{self._number}")
        run.work(Mode.COMBINED, InvocationLimits(max_steps=request["count"]))
        wall, cpu = self._marks.between_steps(request["skip"])
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"wall": wall, "cpu": cpu, "memory_mb": memory_mb, **_left(run.store)}


def _left(store: Any) -> dict[str, Any]:
    """Return how many events and bytes the newest execution of a run has."""
    if not isinstance(store, FleetStore):
        message = "the run is not on the server"
        raise TypeError(message)

    async def described() -> dict[str, Any]:
        handle = await store.handle()
        info = (await handle.describe()).raw_description.workflow_execution_info
        return {"events": info.history_length, "bytes": info.history_size_bytes}

    return store.connection.call(described())


def begin() -> tuple[dict[str, Any], Answer]:
    """Be the side that the arguments say."""
    what, address, folder = sys.argv[1:4]
    side = BareSide(address) if what == "bare" else OurSide(Path(folder), address)
    return {"pid": os.getpid()}, side.answer


if __name__ == "__main__":
    serve(begin)
    sys.stdout.flush()
    # The client's threads may abort an interpreter that ends.
    os._exit(0)
