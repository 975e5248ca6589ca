"""A store that hands out the attempts of its runs itself, and is asked what it knows of them."""

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
    """An attempt that has ended, and where."""

    step: str
    step_index: int
    attempt: int
    token: int
    host: str
    """The machine that has written its log."""
    log: str
    """Path of the log there."""


@runtime_checkable
class Dispatcher(Protocol):
    """A store that hands out the attempts of a run itself, to every process at work on it."""

    worker_of: Callable[[str | None, Emit], Worker] | None
    """Returns what runs the attempts at the run of this name, and reports on them."""

    def run_names(self) -> list[str]:
        """Return the names of the project's named runs."""
        ...

    def makers(self) -> Mapping[int, str]:
        """Return who runs the attempts that were handed out, by token; empty: nobody yet."""
        ...

    def elsewhere(self) -> str:
        """Return where the workers are that run its attempts; empty: here too."""
        ...

    def detached(self) -> list[dict[str, Any]]:
        """Return the detached permissions to work: the open ones and the last one."""
        ...

    def made(self) -> list[RemoteAttempt]:
        """Return the attempts that have ended, oldest first."""
        ...

    def ensure_served(self, worker: Worker) -> None:
        """Return if others can run attempts like those of *worker*; before a run starts.

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
        """Work with *worker*, at *places* attempts at once, until a limit, an end or an error.

        If it *is_detached*, others do that work, and this returns at once.

        Raises: see `WorkLoop.work`.
        """
        ...


def dispatch_of(store: Store) -> Dispatcher | None:
    """Return what hands out attempts, if *store* does that itself."""
    return store if isinstance(store, Dispatcher) else None
