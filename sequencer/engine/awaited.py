"""The step that a process waits for: what it says about it, and who should do what.

Decided from heads that were read, and from what the store knows of a holder. Not promised: that
a process that has not come for a while is gone; only a holder's death can be proven.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from enum import StrEnum

from sequencer.engine.invocation_budget import Mode
from sequencer.errors import run_option, typed
from sequencer.model.head import Head
from sequencer.model.kind import Readiness, ReadinessKind
from sequencer.model.sequence.order import is_among, position_at
from sequencer.model.workflow import Workflow
from sequencer.store.protocol import Liveness, Store

UNCLAIMED_S = 5.0
"""How long a step of others may stand ready before this process says that nobody has taken it."""


class _Wait(StrEnum):
    """Why this process does not run the step."""

    BLOCKED = "blocked"
    """Something else is in the way, and its own words say what."""
    HELD = "held"
    """A process runs it, and another time this one may."""
    QUEUE = "queue"
    """Others have waited longer."""
    OTHERS = "others"
    """It is at a position of another process."""
    UNCLAIMED = "unclaimed"
    """… and none has come to take it."""
    GONE = "gone"
    """… and the one that ran it is provably gone."""
    SILENT = "silent"
    """… and the lease of the one that ran it is over."""


class AwaitedStep:
    """What a process of a line waits for, as it was seen last."""

    def __init__(
        self, workflow: Workflow, store: Store, mode: Mode, positions: Collection[str], head: Head
    ) -> None:
        """Speak for a process that works at *positions* (empty: at all) in *mode*."""
        self._workflow, self._store = workflow, store
        self._is_sync, self._positions = mode is Mode.SYNC, frozenset(positions)
        self._head = head
        self._here: Readiness | None = None
        self._since = 0.0
        """When this head was seen first."""
        self._why = _Wait.BLOCKED

    def see(self, here: Readiness, head: Head) -> None:
        """Take what stands in the way at *head*, where claims of gone holders don't."""
        now = time.monotonic()
        if self._here is None or head.revision != self._head.revision:
            self._since = now
        self._here, self._head = here, head
        self._why = self._reason(here, head, now)

    def _reason(self, here: Readiness, head: Head, now: float) -> _Wait:
        if here.kind not in (ReadinessKind.READY, ReadinessKind.HELD):
            return _Wait.BLOCKED
        if is_among(self._workflow, self._positions, head.step_index):
            return _Wait.QUEUE if here.claim is None else _Wait.HELD
        if here.claim is None and head.claims:
            is_dead = self._store.liveness(head.claims[0]) is Liveness.DEAD
            return _Wait.GONE if is_dead else _Wait.SILENT
        is_late = here.claim is None and now - self._since >= UNCLAIMED_S
        return _Wait.UNCLAIMED if is_late else _Wait.OTHERS

    @property
    def looks_again_in_s(self) -> float | None:
        """Return when there may be more to say without any change of the run; None: never."""
        if self._why is not _Wait.OTHERS or self._is_held:
            return None
        return max(self._since + UNCLAIMED_S - time.monotonic(), 0.0) + 0.01

    @property
    def needs_person(self) -> bool:
        """Return whether it waits for a process that somebody has to start."""
        return self._why in (_Wait.GONE, _Wait.SILENT, _Wait.UNCLAIMED)

    @property
    def words(self) -> str:
        """Return what the process says while it waits, to a person at its terminal."""
        where = " in its terminal" if self._is_sync else ""
        match self._why:
            case _Wait.OTHERS:
                return f"waiting for {self._step!r}, which another terminal runs"
            case _Wait.GONE | _Wait.SILENT:
                return f"{self._reason_words}; start it again{where}: {self.command}"
            case _Wait.UNCLAIMED:
                return f"{self._reason_words}; start one: {self.command}"
        return self._reason_words

    @property
    def _reason_words(self) -> str:
        match self._why:
            case _Wait.GONE:
                return f"the process that ran {self._step!r} is gone"
            case _Wait.SILENT:
                return f"the lease of the process that ran {self._step!r} ran out"
            case _Wait.UNCLAIMED:
                return f"waiting for {self._step!r}, which no process runs"
            case _Wait.QUEUE:
                return f"step {self._step!r} goes to a process that has waited longer"
            case _Wait.OTHERS if not self._is_held:
                return f"the next step is {self._step!r}, which another terminal runs"
        return "" if self._here is None else self._here.message

    @property
    def refusal(self) -> tuple[str, str]:
        """Return why this process ends if it may wait no longer, and what to do then."""
        wait = "wait for it with --max-wait"
        if self._is_held:
            return (
                self._reason_words,
                f"{wait}, or 'sequencer takeover --force' if its holder is gone",
            )
        if self._why in (_Wait.BLOCKED, _Wait.QUEUE):
            return self._reason_words, wait
        return self._reason_words, f"{self.command} runs it; or {wait}"

    @property
    def _is_held(self) -> bool:
        return self._here is not None and self._here.claim is not None

    @property
    def _step(self) -> str:
        return self._head.expected_step

    @property
    def command(self) -> str:
        """Return the command of the process that this one waits for."""
        mode = "--mode sync " if self._is_sync else ""
        position = typed(position_at(self._workflow, self._head.step_index))
        return f"sequencer {run_option(self._head.run_name)}run {mode}--position {position}"
