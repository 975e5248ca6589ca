"""The step that a process waits for: the messages about it, and what a person should do.

They depend on the heads that were read, and on what the store knows about the holder of the
claim. Not promised: that a process that has been silent for a while is gone. Only the death of
a holder can be proven.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from enum import StrEnum

from sequencer.engine.invocation_budget import Mode
from sequencer.errors import quote_words, run_option
from sequencer.model.head import Head
from sequencer.model.kind import Readiness, ReadinessKind
from sequencer.model.sequence.order import is_among, position_at
from sequencer.model.workflow import Workflow
from sequencer.store.protocol import Liveness, Store

UNCLAIMED_S = 5.0
"""How long another process's step may be ready before this process says that none has taken it."""

_MARGIN_S = 0.01
"""Added to a pause, so that it never ends just too early."""


class _Wait(StrEnum):
    """Why this process does not run the step."""

    BLOCKED = "blocked"
    """Something else prevents it; the message of the readiness says what."""
    HELD = "held"
    """Another process runs it at a position of this process."""
    QUEUE = "queue"
    """Other processes have waited longer."""
    OTHERS = "others"
    """It is at a position of another process."""
    UNCLAIMED = "unclaimed"
    """It is at a position of another process, and no process has taken it."""
    GONE = "gone"
    """It is at a position of another process, and the process that ran it is provably gone."""
    SILENT = "silent"
    """It is at a position of another process, and the lease of its holder has run out."""


class AwaitedStep:
    """The step of a sequence that a process waits for, as it was seen last."""

    def __init__(
        self, workflow: Workflow, store: Store, mode: Mode, positions: Collection[str], head: Head
    ) -> None:
        """Start at *head*, for a process in *mode* at *positions* (empty: at every position)."""
        self._workflow, self._store = workflow, store
        self._is_sync, self._positions = mode is Mode.SYNC, frozenset(positions)
        self._head = head
        self._readiness: Readiness | None = None
        self._since = 0.0
        """When this head was first seen, in seconds of the monotonic clock."""
        self._wait = _Wait.BLOCKED

    def observe(self, readiness: Readiness, head: Head) -> None:
        """Note *head* and its *readiness*, which does not count claims that may be taken over."""
        now = time.monotonic()
        if self._readiness is None or head.revision != self._head.revision:
            self._since = now
        self._readiness, self._head = readiness, head
        self._wait = self._classify_wait(readiness, head, now)

    def _classify_wait(self, readiness: Readiness, head: Head, now: float) -> _Wait:
        if readiness.kind not in (ReadinessKind.READY, ReadinessKind.HELD):
            return _Wait.BLOCKED
        if is_among(self._workflow, self._positions, head.step_index):
            return _Wait.QUEUE if readiness.claim is None else _Wait.HELD
        if readiness.claim is None and head.claims:
            is_dead = self._store.liveness(head.claims[0]) is Liveness.DEAD
            return _Wait.GONE if is_dead else _Wait.SILENT
        is_late = readiness.claim is None and now - self._since >= UNCLAIMED_S
        return _Wait.UNCLAIMED if is_late else _Wait.OTHERS

    @property
    def recheck_in_s(self) -> float | None:
        """Return in how many seconds the message may change without a change of the run.

        None: never.
        """
        if self._wait is not _Wait.OTHERS or self._is_held:
            return None
        return max(self._since + UNCLAIMED_S - time.monotonic(), 0.0) + _MARGIN_S

    @property
    def needs_person(self) -> bool:
        """Return whether it waits for a process that a person has to start."""
        return self._wait in (_Wait.GONE, _Wait.SILENT, _Wait.UNCLAIMED)

    @property
    def words(self) -> str:
        """Return the message for the person at the terminal while the process waits."""
        place = " in its terminal" if self._is_sync else ""
        match self._wait:
            case _Wait.OTHERS:
                return f"waiting for {self._step!r}, which another terminal runs"
            case _Wait.GONE | _Wait.SILENT:
                return f"{self._reason_words}; start it again{place}: {self.command}"
            case _Wait.UNCLAIMED:
                return f"{self._reason_words}; start one: {self.command}"
        return self._reason_words

    @property
    def _reason_words(self) -> str:
        match self._wait:
            case _Wait.GONE:
                return f"the process that ran {self._step!r} is gone"
            case _Wait.SILENT:
                return f"the lease of the process that ran {self._step!r} ran out"
            case _Wait.UNCLAIMED:
                return f"waiting for {self._step!r}, which no process runs"
            case _Wait.QUEUE:
                return f"step {self._step!r} goes to a process that has waited longer"
            case _Wait.OTHERS if not self._is_held:
                return f"the next step is {self._step!r}, which this terminal does not run"
        return "" if self._readiness is None else self._readiness.message

    @property
    def refusal(self) -> tuple[str, str]:
        """Return the message and the hint for a process that may not wait any longer."""
        wait = "wait for it with --max-wait"
        if self._is_held:
            return (
                self._reason_words,
                f"{wait}, or 'sequencer takeover --force' if its holder is gone",
            )
        if self._wait in (_Wait.BLOCKED, _Wait.QUEUE):
            return self._reason_words, wait
        return self._reason_words, f"{self.command} runs it; or {wait}"

    @property
    def _is_held(self) -> bool:
        return self._readiness is not None and self._readiness.claim is not None

    @property
    def _step(self) -> str:
        return self._head.expected_step

    @property
    def command(self) -> str:
        """Return the command of the process that this one waits for."""
        mode = "--mode sync " if self._is_sync else ""
        index = self._head.step_index
        positions: Collection[str] = (position_at(self._workflow, index),)
        if self.needs_person:
            # Not at every wait: it looks at files, and most waits are short.
            positions = list_unserved_positions(self._workflow, self._store, index, self._positions)
        options = format_position_options(positions)
        return f"sequencer {run_option(self._head.run_name)}run {mode}{options}"


def list_unserved_positions(
    workflow: Workflow, store: Store, step_index: int, served: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the positions that need a process, in order.

    They are the position of *step_index*, and all others that no process in mode sync waits for.
    The caller waits for the *served* ones. Only the queues for a single position, and for all
    positions but the current one, are checked.
    """
    names = dict.fromkeys(position_at(workflow, index) for index in range(len(workflow.steps)))
    current_name = position_at(workflow, step_index)
    others = frozenset(names) - {current_name}
    if not others or store.wait_queue(others).is_awaited():
        return (current_name,)
    waited_for = {name for name in others if store.wait_queue((name,)).is_awaited()}
    return tuple(name for name in names if name not in waited_for.union(served) - {current_name})


def format_position_options(positions: Collection[str]) -> str:
    """Return the options of `run` for *positions*."""
    return " ".join(f"--position {quote_words(name)}" for name in positions)
