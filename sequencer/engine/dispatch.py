"""A store that hands out the attempts of its runs to workers, and can report on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from sequencer.engine.events import Emit
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.worker import Worker
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits
from sequencer.store.protocol import Store


class RemoteAttempt(Struct, frozen=True):
    """An attempt that has ended on some machine."""

    step: str
    step_index: int
    attempt: int
    token: int
    host: str
    """The machine that wrote its log."""
    log: str
    """Path of the log on that machine."""


@runtime_checkable
class Dispatcher(Protocol):
    """A store that hands out the attempts of a run to every process that works on it."""

    build_worker: Callable[[str | None, Emit], Worker] | None
    """Returns the worker for the attempts of the run with this name; it emits events."""

    def run_names(self) -> list[str]:
        """Return the names of the project's named runs."""
        ...

    def list_attempt_processes(self) -> Mapping[int, str]:
        """Return the processes that run the attempts that were handed out, by token.

        An empty name: no process runs it yet.
        """
        ...

    def find_worker_location(self) -> str:
        """Return where the workers that run its attempts are; empty: on this machine too."""
        ...

    def list_detached_orders(self) -> list[dict[str, Any]]:
        """Return the detached work orders: the open ones and the last one."""
        ...

    def list_ended_attempts(self) -> list[RemoteAttempt]:
        """Return the attempts that have ended, oldest first."""
        ...

    def ensure_served(self, worker: Worker) -> None:
        """Check, before a run starts, that other machines can run the attempts of *worker*.

        Raises:
            UsageRefused: its agents need something that only one machine has.
        """
        ...

    def work(
        self,
        worker: Worker,
        mode: Mode,
        limits: InvocationLimits,
        head: Head,
        places: int,
        *,
        is_detached: bool,
    ) -> Summary:
        """Work with *worker*, at most *places* attempts at once, until a limit, an end or an error.

        If it *is_detached*, other processes do the work, and this call returns immediately.

        Raises: see `WorkLoop.work`.
        """
        ...


def find_dispatcher(store: Store) -> Dispatcher | None:
    """Return *store* if it hands out attempts itself; otherwise None."""
    return store if isinstance(store, Dispatcher) else None
