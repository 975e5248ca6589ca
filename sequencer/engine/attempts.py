"""The attempts that this process makes at once, each in a thread that it has for itself.

A thread that is done waits for the next attempt: to make one takes longer than the rest of
what starts a short attempt. A thread performs and keeps the output; it decides nothing.
What an attempt means for the run is recorded by the one thread that started it, in the
order in which they ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sequencer.engine.heartbeat import Heartbeat
from sequencer.engine.markings import FlowControl
from sequencer.engine.performing import Performer
from sequencer.engine.prepared import Prepared
from sequencer.engine.records import INLINE_BYTES, chance, circumstances, journal_record, shown_log
from sequencer.engine.workplaces import Left
from sequencer.errors import AgentMissing, MachineBusy, SequencerError, out_of_resources
from sequencer.executors.protocol import Cancellation, StopReason
from sequencer.model.due import due_again, iso, retry_at
from sequencer.model.head import Claim
from sequencer.model.kind import Performed
from sequencer.model.line.line import POSTPONED_S
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


@dataclass(slots=True)
class Running:
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
    recorded: Outcome | None = None
    """What the run took it as, where that is not what its agent has said."""
    then: str | None = None
    """Of one that was not accepted: what comes of that by itself."""
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
    """Turns attempts that have ended into changes of the run."""

    def __init__(self, control: FlowControl, performer: Performer) -> None:
        """Record in the run of *control* what *performer* has performed."""
        self.control = control
        self.performer = performer

    def performed(self, ended: Running) -> Performed:
        """Return how *ended* ended, where it ended with an exception as well."""
        if ended.performed is None or ended.error is not None:
            return self._of_bug(ended)
        return ended.performed

    def _of_bug(self, ended: Running) -> Performed:
        """Return the failure that an exception is; a refusal and an interrupt are none."""
        error = ended.error or RuntimeError("the attempt ended without a result")
        is_interrupted = ended.ends_the_work or ended.busy is not None
        status = OutcomeStatus.INTERRUPTED if is_interrupted else OutcomeStatus.FAILED
        usage = ended.performed.outcome.usage if ended.performed else Usage()
        told = self.performer.redact(repr(error))
        outcome = Outcome(status=status, error=told, usage=usage)
        return Performed(outcome, ended.prepared.step, ended.prepared.place, ended.prepared.agent)

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
        performed = self.performed(ended)
        outcome, token = performed.outcome, ended.claim.token
        record = self.record(ended)
        if outcome.status is OutcomeStatus.INTERRUPTED:
            reason = ended.cancellation.reason
            more = {"reason": str(reason)} if reason else {}
            due = None
            if ended.busy is not None:
                due = iso(datetime.now(UTC) + timedelta(seconds=POSTPONED_S))
            return lambda step: step.release(token, {**record, **more}, outcome.usage, due)
        if outcome.is_put_off:
            due = due_again(outcome, ended.claim.attempt, datetime.now(UTC), chance())
            return lambda step: step.release(token, record, outcome.usage, due)
        if self._judges(performed):
            return lambda step: self._refuse(step, ended, performed, record)
        if outcome.is_accepted:
            return lambda step: self._accept(step, ended, outcome, record)
        return lambda step: self._fail(step, ended, outcome, record)

    def _fail(
        self, step: OpenTransition, ended: Running, outcome: Outcome, record: Mapping[str, Any]
    ) -> None:
        performed, token = self.performed(ended), ended.claim.token
        held = step.head.claim_with(token)
        failures = step.marking.active[held.step].failures + 1 if held else 1
        kind, due = "timeout" if outcome.is_timed_out else "error", None
        if performed.is_final:
            kind = "Template"
        if not performed.is_final:
            due = retry_at(ended.prepared.step, failures, step.now)
        ended.then = None if due is None else f"{ended.claim.step!r} is tried again at {due}"
        step.fail(token, outcome, record, due=due, kind=kind)

    def _accept(
        self, step: OpenTransition, ended: Running, outcome: Outcome, record: Mapping[str, Any]
    ) -> None:
        """Accept *outcome*, and what a task's answer adds to the graph."""
        token, team = ended.claim.token, self.performer.team
        node = step.marking.graph.by_id.get(ended.claim.step)
        growth = None
        if team is not None and node is not None and node.task is not None and node.task.adds:
            workflow = self.control.workflow_at(step.marking)
            try:
                growth = team.grower.of_answer(workflow, node.id, _answer(outcome))
            except SequencerError as refusal:
                message = self.performer.redact(refusal.message)
                failed = outcome.replace(status=OutcomeStatus.FAILED, error=message)
                told = {**record, "status": str(failed.status), "error": message[:4000]}
                ended.recorded = failed
                self._fail(step, ended, failed, told)
                return
        # A transition may be made anew, on a graph to which the tasks can be added.
        ended.recorded = None
        step.accept(token, outcome, ended.reference, record, growth)

    @staticmethod
    def _judges(performed: Performed) -> bool:
        """Return whether a task that judges has said no."""
        verdict = performed.verdict
        return verdict is not None and not verdict.is_pass and not performed.is_final

    def _refuse(
        self, step: OpenTransition, ended: Running, performed: Performed, record: Mapping[str, Any]
    ) -> None:
        """Take a "no": a fix comes next, or another try, until there were too many."""
        token, name, ended.then = ended.claim.token, ended.claim.step, None
        outcome, validation = performed.outcome, performed.step.validation
        number = step.marking.team.refusals.get(name, 0) + 1
        told = {**record, "verdict": {"pass": False, "round": number}}
        if validation is None or number >= validation.max_attempts:
            if validation is not None and validation.on_exhausted == "continue":
                ended.recorded = outcome.replace(status=OutcomeStatus.OK)
                step.accept(token, ended.recorded, ended.reference, told)
                return
            error = f"{outcome.error} (after {number} judgements)"
            step.fail(token, outcome.replace(error=error), told, due=None, kind="Refused")
            return
        team = self.performer.team
        workflow = self.control.workflow_at(step.marking)
        fix = team.grower.fix(workflow, name, number) if team is not None else None
        step.refuse(token, outcome, told, fix)
        added = "it judges again" if fix is None else f"{fix.nodes[0].id!r} was added"
        ended.then = f"{name!r} said no, and {added}"

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


def _answer(outcome: Outcome) -> str:
    """Return what a task has said, as JSON where the client has told it apart."""
    if outcome.structured is None:
        return outcome.output
    return json.dumps(outcome.structured, ensure_ascii=False)


def has_cost(ended: Running) -> bool:
    """Return whether an attempt has used what a run has limits on."""
    usage = ended.performed.outcome.usage if ended.performed else Usage()
    return bool(usage.cost_usd or usage.input_tokens or usage.output_tokens)
