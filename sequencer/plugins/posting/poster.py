"""Posts the activities of one invocation: the listener for events, and the thread that posts.

The engine's thread only puts bytes into a queue and sets flags. The background thread does the
rest: journal, network and searches for secrets. After the end of the invocation it may post for
a few more seconds, and it tries every sink at least once. A started post is always finished,
because otherwise the next process would post the same result again. The next process also posts
the results that are left after the cursors.

Not promised: thoughts and actions. They are dropped whenever they can't be posted immediately.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import (
    AttemptEnded,
    AttemptStarted,
    AttemptWrote,
    HeadMoved,
    RunEvent,
    Waiting,
)
from sequencer.errors import Interrupted
from sequencer.executors.redaction import Redaction
from sequencer.model.graph.graph import Node
from sequencer.plugins.posting.protocol import Activity, Sink
from sequencer.plugins.posting.sink_queue import THOUGHT_EVERY_S, Clock, SinkContext, SinkQueue
from sequencer.plugins.posting.text import CurrentAction
from sequencer.plugins.posting.web import TIMEOUT_S
from sequencer.store.protocol import Store

DRAIN_S = 5.0
HURRIED_S = 1.0
"""Time for the last posts when a signal ends the invocation."""
UNNOTICED_S = 0.5
"""A wait up to this long is not reported: people don't notice it."""
FINISH_S = 3 * TIMEOUT_S
"""Time limit for finishing a started post; the sinks' own limits are shorter."""
SIGNALED_S = 8.0
"""The same limit after a signal: a program usually has ten seconds before it is killed."""
_SLICE_S = 0.1
"""Interval at which the wait checks for a signal."""


class Poster:
    """Posts the events of a run to *sinks*.

    A context manager: entering creates the cursors, leaving posts the remaining results.
    """

    def __init__(
        self,
        store: Store,
        sinks: Sequence[Sink],
        redaction: Redaction,
        notice: Callable[[str], None],
        *,
        run: str | None = None,
        nodes: Sequence[Node] = (),
        thoughts: bool = True,
        min_interval_s: float = THOUGHT_EVERY_S,
        drain_s: float = DRAIN_S,
        clock: Clock = time.monotonic,
        on_signal: Callable[[], None] = lambda: None,
    ) -> None:
        """Post for the run called *run* in *store*, which only the background thread may use.

        *nodes* are the nodes of its workflow. *notice* gets messages for people. *on_signal* is
        called from the handler of a signal that ends the last wait.
        """
        self._on_signal = on_signal
        self._notice = notice
        self._store = store
        self._drain_s = drain_s
        self._has_thoughts = thoughts and any(sink.takes_thoughts for sink in sinks)
        self._redaction = redaction
        self._actions: dict[int, CurrentAction] = {}
        """Token -> newest action of each running attempt."""
        self._has_nodes = bool(nodes)
        self._subjects = {node.id: node.subject for node in nodes if node.subject is not None}
        context = SinkContext(
            store=store,
            redaction=redaction,
            notice=self._report,
            clock=clock,
            thought_every_s=min_interval_s,
            subjects=self._subjects,
        )
        self._queues = [SinkQueue(sink, context) for sink in sinks]
        self._run_id, self._run = "", run
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._ends_at: float | None = None
        self._gives_up_at = math.inf
        """When the wait for a started post ends, on the monotonic clock."""
        self._is_hurried = False
        self._is_silent = False

    # --- the invocation -------------------------------------------------------------

    def __enter__(self) -> Self:
        """Create the cursors of new sinks, and start to post results of earlier processes."""
        for queue in self._queues:
            queue.begin()
        self._wake_queues()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Post the remaining results for a few seconds; after a signal, for a shorter time."""
        self._is_hurried = isinstance(error, (Interrupted, KeyboardInterrupt, SystemExit))
        self.close(min(self._drain_s, HURRIED_S) if self._is_hurried else self._drain_s)

    def close(self, timeout_s: float) -> None:
        """Start no post after *timeout_s*, and finish the last one; the next process continues."""
        for action in list(self._actions.values()):
            action.end()
        thread = self._thread
        if thread is not None:
            # All attempts have ended and are in the journal, so one more read finds every result.
            self._ends_at = time.monotonic() + timeout_s
            for queue in self._queues:
                queue.note_news()
            self._wake.set()
            with _redirect_signals(self._hurry):
                self._wait_for(thread, timeout_s + UNNOTICED_S)
                if thread.is_alive():
                    self._report_wait()
                    self._wait_for(thread, FINISH_S)
        else:
            self._store.close()
        self._is_silent = True

    def _hurry(self) -> None:
        # A signal handler calls this, so it must not take a lock.
        now = time.monotonic()
        self._is_hurried, self._ends_at = True, now
        self._gives_up_at = min(self._gives_up_at, now + SIGNALED_S)
        self._on_signal()

    def _wait_for(self, thread: threading.Thread, limit_s: float) -> None:
        ends_at = time.monotonic() + limit_s
        while thread.is_alive() and time.monotonic() < min(ends_at, self._gives_up_at):
            thread.join(_SLICE_S)

    def _report_wait(self) -> None:
        queues = [queue for queue in self._queues if queue.is_posting] or self._queues
        names = ", ".join(repr(queue.sink.name) for queue in queues)
        limit_s = SIGNALED_S if self._gives_up_at < math.inf else FINISH_S
        self._report(f"waiting up to {limit_s:g} s for activity sink {names} to answer")

    # --- events -----------------------------------------------------------------------

    def __call__(self, event: RunEvent) -> None:
        """Handle an event in the engine's thread; costs one append."""
        match event:
            case AttemptWrote(attempt, data, kind):
                action = self._actions.get(attempt.token)
                if action is not None and action.write(data, kind):
                    self._wake.set()
            case AttemptStarted(attempt):
                self._begin_attempt(attempt)
                self._wake_queues()
            case AttemptEnded(attempt):
                action = self._actions.pop(attempt.token, None)
                if action is not None:
                    action.end()
            case HeadMoved() | Waiting():
                # Attempts that ended before this event have their results in the journal.
                self._wake_queues()
            case _:
                pass

    def _begin_attempt(self, attempt: Attempt) -> None:
        step, subject = attempt.step, attempt.subject
        if subject is not None:
            self._subjects[step.name] = subject
        if not self._has_thoughts or step.suppress_thoughts or step.single_turn:
            return
        self._run_id = attempt.run_id
        # Nodes run in parallel, and not every sink shows which one a thought is from.
        prefix = f"{step.name}: " if self._has_nodes else ""
        attempt_key = (step.name, attempt.step_index, attempt.number)
        action = CurrentAction(self._redaction, *attempt_key, prefix=prefix, subject=subject)
        self._actions[attempt.token] = action

    # --- the thread -------------------------------------------------------------------

    def _wake_queues(self) -> None:
        for queue in self._queues:
            queue.note_news()
        self._start()

    def _start(self) -> None:
        if self._queues and self._thread is None and not self._is_silent:
            self._thread = threading.Thread(target=self._work, name="activity", daemon=True)
            self._thread.start()
        self._wake.set()

    def _report(self, text: str) -> None:
        # After the end, the terminal belongs to the shell.
        if not self._is_silent:
            self._notice(text)

    def _work(self) -> None:
        try:
            self._post_until_the_end()
        finally:
            for queue in self._queues:
                queue.close()
            self._store.close()

    def _post_until_the_end(self) -> None:
        while True:
            # Clear before reading, so that an event during this round wakes the next one.
            self._wake.clear()
            is_last = self._ends_at is not None
            # Working sinks first: one that hangs until its limit must not use up their time.
            for queue in sorted(self._queues, key=lambda queue: queue.is_in_trouble):
                queue.has_tried = queue.has_tried and not is_last
                if is_last:
                    queue.end_pause_of_thought()
                queue.deliver(partial(self._may_continue, queue))
            if self._ends_at is None:
                self._post_thoughts()
            pause = self._pause_s()
            # A round that started before the end may have missed results.
            if is_last and self._ends_at is not None:
                remaining_s = self._ends_at - time.monotonic()
                if pause is None or pause > remaining_s or remaining_s <= 0:
                    return
            self._wake.wait(pause)

    def _may_continue(self, queue: SinkQueue) -> bool:
        if self._ends_at is None or time.monotonic() < self._ends_at:
            return True
        # Even without time left, try each sink once, so that every process makes progress.
        return not (queue.has_tried or self._is_hurried)

    def _post_thoughts(self) -> None:
        free_queues = [queue for queue in self._queues if queue.can_post_thought()]
        if not free_queues:
            return
        activity = self._pop_newest()
        if activity is not None:
            for queue in free_queues:
                queue.post_thought(activity, self._run_id, self._run)

    def _pop_newest(self) -> Activity | None:
        """Return the newest thought or action of all attempts; older ones are dropped."""
        activity: Activity | None = None
        for action in sorted(self._actions.copy().values(), key=lambda action: action.heard_at):
            if action.has_news:
                activity = action.pop_newest() or activity
        return activity

    @property
    def _has_news(self) -> bool:
        return any(action.has_news for action in self._actions.copy().values())

    def _pause_s(self) -> float | None:
        """Return the seconds until the next post is due; None: wait for an event."""
        pauses = [due_s for queue in self._queues if (due_s := queue.due_in_s) is not None]
        if self._has_news and self._ends_at is None:
            dues = (queue.thought_due_in_s for queue in self._queues)
            pauses += [due_s for due_s in dues if due_s is not None]
        return min(pauses, default=None)


def deliver(
    store: Store,
    sinks: Sequence[Sink],
    redaction: Redaction,
    *,
    notice: Callable[[str], None],
    drain_s: float = DRAIN_S,
) -> None:
    """Post the results after the cursors, for operator commands."""
    with Poster(store, sinks, redaction, notice, drain_s=drain_s):
        pass


@contextmanager
def _redirect_signals(hurry: Callable[[], None]) -> Iterator[None]:
    """During the block, let SIGTERM and SIGHUP call *hurry* instead of ending the program."""
    is_main = threading.current_thread() is threading.main_thread()
    signal_numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if is_main and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in signal_numbers:
        signal.signal(number, lambda *_: hurry())
    try:
        yield
    finally:
        for number in signal_numbers:
            signal.signal(number, signal.SIG_DFL)
