"""Temporal's own server, as people start it for themselves, and what its own client says of a run.

Sequencer has no part in either, so what these tests compare it with does not come from it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from temporalio.client import Client, WorkflowExecution, WorkflowHandle

from tests.loopback import free_ports

HOST = "127.0.0.1"
START_S, END_S = 30.0, 15.0
CALL_TIMEOUT = timedelta(seconds=30)
T = TypeVar("T")


def find_program() -> str | None:
    """Return the path of the server's program; None if it is not installed."""
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return shutil.which("temporal", path=os.pathsep.join(folders))


class TemporalServer:
    """A server on free ports; its data outlives it, so it can be started again."""

    def __init__(self, folder: Path, more: Sequence[str] = (), host: str = HOST) -> None:
        """Keep all data in *folder*; *more* are arguments of the server, *host* leads to it."""
        self.folder, self._more = folder, more
        self._port, self._ui_port = free_ports(2)
        self.address = f"{host}:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process of the server, which has been started."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and return once it answers."""
        program = find_program()
        assert program is not None, "the program of the Temporal server is not installed"
        self.folder.mkdir(parents=True, exist_ok=True)
        argv = [program, "server", "start-dev", "--ip", HOST, "--port", str(self._port)]
        argv += ["--ui-port", str(self._ui_port), "--log-level", "warn"]
        argv += ["--db-filename", str(self.folder / "server.db"), *self._more]
        log = self.folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not self._is_answering():
            if not self.is_running or time.monotonic() > deadline:
                self.__exit__()
                raise AssertionError(f"the server did not start: {log.read_text()[-1000:]}")
            time.sleep(0.1)

    def _is_answering(self) -> bool:
        try:
            # A listening port is not enough: it opens before the server can answer.
            asyncio.run(Client.connect(self.address))
        except RuntimeError:
            return False
        return True

    def kill(self) -> None:
        """End it as a power loss would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None or not self.is_running:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()


# --- what its client says ----------------------------------------------------------------


def ask(address: str, question: Callable[[Client], Awaitable[T]]) -> T:
    """Return the answer that *question* gets from the server at *address*."""

    async def answered() -> T:
        return await question(await Client.connect(address))

    return asyncio.run(answered())


def update(address: str, run: str, name: str, argument: Any) -> Any:
    """Return how the workflow *run* answers the update *name*; a worker has to serve it."""

    async def answered(client: Client) -> Any:
        handle = client.get_workflow_handle(run)
        return await handle.execute_update(name, argument, rpc_timeout=CALL_TIMEOUT)

    return ask(address, answered)


async def executions(client: Client, run: str) -> list[WorkflowExecution]:
    """Return the executions of *run*, oldest first."""
    found = [one async for one in client.list_workflows(f"WorkflowId = '{run}'")]
    return sorted(found, key=lambda one: one.start_time)


async def updates(run: WorkflowHandle[Any, Any], name: str) -> list[Any]:
    """Return the arguments of the updates *name* that *run* has accepted, in order."""
    requests = [
        event.workflow_execution_update_accepted_event_attributes.accepted_request.input
        async for event in run.fetch_history_events()
    ]
    return [json.loads(one.args.payloads[0].data) for one in requests if one.name == name]
