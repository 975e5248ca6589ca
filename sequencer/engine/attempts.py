"""The attempts that this process makes at once, each in a thread that it has for itself.

A thread that is done waits for the next attempt: to make one takes longer than the rest of
what starts a short attempt. A thread performs and keeps the output; it decides nothing.
What an attempt means for the run is recorded by the one thread that started it, in the
order in which they ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from sequencer.engine.attempt import Prepared
from sequencer.engine.heartbeat import Heartbeat
from sequencer.engine.markings import FlowControl
from sequencer.engine.performing import Performer
from sequencer.engine.records import (
    INLINE_BYTES,
    broken,
    chance,
    circumstances,
    journal_record,
    shown_log,
)
from sequencer.engine.workplaces import Left
from sequencer.errors import AgentMissing, MachineBusy, SequencerError, out_of_resources
from sequencer.executors.protocol import Cancellation, StopReason
from sequencer.model.head import Claim
from sequencer.model.kind import Performed
from sequencer.model.net.ending import NodeEnded, Taken
from sequencer.model.net.marking import Reference
from sequencer.model.net.net import Act
from sequencer.model.net.transition import OpenTransition
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.store.watch import readable

WAIT_S = 1.0
_RESERVE = 4
"""Descriptors that are kept for the records of what has ended: where an agent gets none any
more, its claim can still be released."""
Perform = Callable[["Running"], None]


class Running(Struct):
    """One attempt, from its claim to its record."""

    claim: Claim
    prepared: Prepared
    run_id: str
    cancellation: Cancellation = field(default_factory=Cancellation)
    used: Usage = field(default=Usage())
    """So far, where its executor tells and somebody wants to know."""
    performed: Performed | None = None
    reference: Reference | None = None
    """Where its output was kept."""
    left: Left | None = None
    """Of a team's task: what became of what its agent has left."""
    taken: Taken = field(default=Taken())
    """What the run has made of its end."""
    error: BaseException | None = None
    """What was raised instead."""

    @property
    def ends_the_work(self) -> bool:
        """Return whether the process can't go on: it is to end, or it can't keep an output.

        Any other exception is a bug of one executor, and a failure of its node; or this
        machine was short of something, and other attempts may end well all the same.
        """
        if self.busy is not None:
            return False
        is_bug = isinstance(self.error, Exception) and not isinstance(self.error, SequencerError)
        return self.error is not None and not is_bug

    @property
    def busy(self) -> MachineBusy | None:
        """Return why this machine could not run the agent, if that was it."""
        return out_of_resources(self.error)


class Attempts:
    """The threads, and the queue of those that are done."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        """Begin with none; *heartbeat* keeps their claims alive."""
        self._heartbeat = heartbeat
        self._begun: queue.SimpleQueue[tuple[Running, Perform] | None] = queue.SimpleQueue()
        """What the threads take from; None ends one of them."""
        self._ended: queue.SimpleQueue[Running] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.running: dict[int, Running] = {}
        """By the tokens of their claims; those included that have ended and wait for a record."""
        self._taken: list[Claim] = []
        """Claims that are kept alive until their ends are recorded."""
        self._is_drained = False
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._reserve = [os.open(os.devnull, os.O_RDONLY) for _ in range(_RESERVE)]

    def fileno(self) -> int:
        """Return a descriptor that is readable when an attempt has ended or somebody woke us."""
        return self._read_fd

    def wake(self) -> None:
        """Make the descriptor readable; safe in a signal handler."""
        with contextlib.suppress(OSError):
            os.write(self._write_fd, b"x")

    def drain(self) -> None:
        """Make the descriptor unreadable until the next one."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_fd, 4096):
                pass

    def wait(self) -> None:
        """Sleep until an attempt has ended, or somebody woke us."""
        readable((self._read_fd,), WAIT_S)
        self.drain()

    def start(self, running: Running, perform: Perform) -> None:
        """Let *perform* make the attempt in a thread; where there is none, it has ended."""
        self.running[running.claim.token] = running
        if len(self._threads) < len(self.running):
            name = f"attempt-{len(self._threads)}"
            thread = threading.Thread(target=self._make_attempts, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                running.error = error
                self._ended.put(running)
                self.wake()
                return
            self._threads.append(thread)
        self._begun.put((running, perform))

    def _make_attempts(self) -> None:
        while (begun := self._begun.get()) is not None:
            self._run(*begun)
            # Else what the attempt has held lives until the next one comes.
            del begun

    def _run(self, running: Running, perform: Perform) -> None:
        try:
            self._heartbeat.begin(running.claim, running.cancellation)
            perform(running)
        except BaseException as error:  # noqa: BLE001 - the claim has to end in a record
            running.error = error
        finally:
            self._heartbeat.end(running.claim)
            self._heartbeat.go_on(running.claim)
            self._ended.put(running)
            self.wake()

    def next_ended(self) -> Running | None:
        """Return the attempt that ended first and was not taken yet.

        After a None those that were taken before have been recorded with the next call.
        """
        if self._is_drained:
            self._is_drained = False
            while self._taken:
                self._heartbeat.end(self._taken.pop())
        try:
            ended = self._ended.get_nowait()
        except queue.Empty:
            self._is_drained = True
            return None
        self._taken.append(ended.claim)
        self.running.pop(ended.claim.token, None)
        ended.cancellation.close()
        return ended

    def cancel(self, reason: StopReason, but: frozenset[int] = frozenset()) -> None:
        """Ask all attempts to end whose tokens are not in *but*; safe in a signal handler."""
        for token, running in tuple(self.running.items()):
            if token not in but:
                running.cancellation.set(reason)

    def free_reserve(self) -> None:
        """Let the last records have the descriptors that were kept for them."""
        while self._reserve:
            os.close(self._reserve.pop())

    def close(self) -> None:
        """End the threads and free the descriptors; every attempt was taken."""
        for _ in self._threads:
            self._begun.put(None)
        # After an error in between one may still run; its thread ends with the process.
        for thread in () if self.running else self._threads:
            thread.join()
        self._threads.clear()
        self.free_reserve()
        for fd in (self._read_fd, self._write_fd):
            os.close(fd)
        self._read_fd = self._write_fd = -1


class Recorder:
    """Tells how attempts have ended, for the journal and for what the net makes of them."""

    def __init__(self, control: FlowControl, performer: Performer) -> None:
        """Record in the run of *control* what *performer* has performed."""
        self.control = control
        self.performer = performer

    def performed(self, ended: Running) -> Performed:
        """Return how *ended* ended, where it ended with an exception as well."""
        performed, error = ended.performed, ended.error
        if performed is not None and error is None:
            return performed
        error = error or RuntimeError("the attempt ended without a result")
        usage = performed.outcome.usage if performed else Usage()
        outcome, made = broken(error, usage, self.performer.redact), ended.prepared
        return Performed(outcome, made.step, made.place, made.agent)

    def failing(self, error: Exception) -> Perform:
        """Return what makes an attempt of a node that can't be prepared: it fails.

        But for a lack of descriptors, say, or of the program of an agent, which is no fault of
        the node.
        """
        is_missing = isinstance(error, AgentMissing)
        status = OutcomeStatus.UNAVAILABLE if is_missing else OutcomeStatus.FAILED
        outcome = Outcome(status=status, error=self.performer.redact(str(error)))

        busy = out_of_resources(error)

        def fail(attempt: Running) -> None:
            if busy is not None:
                raise busy
            made = attempt.prepared
            attempt.performed = Performed(outcome, made.step, made.place, made.agent)

        return fail

    def recording(self, ended: Running) -> Act:
        """Return what the end of *ended* does to the run."""
        performed, record, busy = self.performed(ended), self.record(ended), ended.busy is not None
        if performed.outcome.status is OutcomeStatus.INTERRUPTED and ended.cancellation.reason:
            record = {**record, "reason": str(ended.cancellation.reason)}
        end = NodeEnded(
            ended.claim, performed, record, ended.reference, chance(), is_postponed=busy
        )

        def act(step: OpenTransition) -> None:
            ended.taken = self.control.net.take(step, end)

        return act

    def record(self, ended: Running) -> Mapping[str, Any]:
        """Return what the journal has about *ended*."""
        performed = self.performed(ended)
        outcome = performed.outcome
        output: dict[str, Any] = {}
        size = len(outcome.output.encode("utf-8", "replace"))
        if outcome.output and size <= INLINE_BYTES:
            output["output"] = outcome.output
        if isinstance(ended.reference, str):
            output["output_file"] = f"results/{ended.reference}/output.txt"
            output["output_bytes"] = size
        if self.control.work is not None and outcome.is_accepted:
            output["work"] = self.control.work.model_dump()
        log = shown_log(performed.log, self.performer.project)
        record = journal_record(outcome, performed.agent, log, output)
        return {**record, **circumstances(performed), **_left(ended)}


def _left(ended: Running) -> dict[str, Any]:
    """Return what became of what a task has left where it worked."""
    left = ended.left
    if left is None:
        return {}
    found: dict[str, Any] = {"left": dict(left.told)} if left.told else {}
    if left.notices:
        found["notices"] = [text[:1000] for text in left.notices[:20]]
    return found


def has_cost(ended: Running) -> bool:
    """Return whether an attempt has used what a run has limits on."""
    usage = ended.performed.outcome.usage if ended.performed else Usage()
    return bool(usage.cost_usd or usage.input_tokens or usage.output_tokens)
