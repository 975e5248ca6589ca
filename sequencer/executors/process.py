"""Run one agent program and turn what it did into an outcome.

`ProcessCore` runs an argv under a guard process of its own; `conclude` judges its end. What the
agent wrote to its result file is data from an agent and trusted for nothing: see `apply_result`.

Relied on: `guard` ends every process of the attempt, however the attempt or this process
ends. Not promised: that a listener sees stdout and stderr in the exact order in which
they were written; each stream's own order is kept.
"""

from __future__ import annotations

import errno
import os
import selectors
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import (
    MachineBusy,
    SequencerError,
    StorageFailed,
    out_of_resources,
)
from sequencer.executors.answers import result_ignored, with_answer
from sequencer.executors.attempt_lock import end_marked
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.file_watch import FileWatch
from sequencer.executors.guard import COMMAND_BYTES
from sequencer.executors.guard_process import Guard, GuardUnreachable
from sequencer.executors.launch import GRACE_S, Launch
from sequencer.executors.protocol import Listener, Piece, StepRequest, repeats_itself, time_is_over
from sequencer.executors.pump import DONE, STUCK, OutputConsumer, Pump
from sequencer.executors.result_file import apply_result
from sequencer.executors.wall import WITHOUT_WALL, Wall
from sequencer.model.evidence import Evidence, TurnEnd
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import FileMark

_COMMAND_CHARS = 200
"""How much of a command line is shown."""
PATIENCE_S = 5.0
"""How long a start is tried again that this machine has no process or descriptor for."""
_FIRST_PAUSE_S = 0.1


class ProcessCore:
    """Runs agents under guards; safe to use from several threads at once."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._spare: Guard | None = None
        self._lock = threading.Lock()
        self._has_told_of_no_wall = False

    def __enter__(self) -> Self:
        """Return the core itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the spare guard."""
        self.close()

    def prepare(self) -> None:
        """Start the guard of the next `run` ahead of time; it waits without using CPU.

        Where the system refuses it nothing is lost: `run` tries again and says why.
        """
        with self._lock:
            stale = self._spare
            if stale is not None and self._is_usable(stale):
                return
            self._spare = None
            with suppress(GuardUnreachable, MachineBusy):
                self._spare = Guard()
        if stale is not None:
            stale.close()

    def close(self) -> None:
        """End the spare guard, if there is one; the core may be used again."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def run(
        self, launch: Launch, consumer: OutputConsumer, cancellation: Cancellation
    ) -> ProcessEnd:
        """Run one agent to its end and leave nothing of it behind.

        An exception of *consumer* (a full disk) ends the agent's tree before it leaves.

        Raises:
            MachineBusy: no agent was started, because processes of an earlier attempt are
                there, or because this machine had no process, descriptor or memory for it
                for `PATIENCE_S`.
            StorageFailed: see `AttemptLock`; no agent was started.
        """
        has_lock = launch.lock is None or launch.lock.take(cancellation)
        if cancellation.reason is not None or not has_lock:
            return ProcessEnd(ended_by=cancellation.reason)
        until, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
        while True:
            try:
                return self._run(launch, consumer, cancellation)
            except MachineBusy:
                if time.monotonic() > until or cancellation.wait(pause_s):
                    raise
                pause_s *= 2

    def _run(
        self, launch: Launch, consumer: OutputConsumer, cancellation: Cancellation
    ) -> ProcessEnd:
        started = time.monotonic()
        # Before anything is paid for: what is left to do needs no descriptor.
        mark = FileWatch(launch.cwd, launch.done_file) if launch.done_file else None
        with _selector(cancellation) as selector:
            try:
                guard = self._launched(launch)
            except (MachineBusy, StorageFailed):
                raise
            except SequencerError as error:
                return ProcessEnd(spawn_error=str(error))
            pump = Pump(guard, launch, consumer, cancellation, selector, mark=mark)
            is_guard_lost = True
            try:
                pump.run()
                if pump.report is None:
                    # While the guard is there, what it has adopted is known by its parent.
                    end_marked(guard.mark)
            finally:
                # Also on the way out of an exception: no control pipe, no agent.
                is_clean = guard.close()
                is_guard_lost = pump.report is None or not is_clean
                survivors = _end_strays(guard, pump.report, is_guard_lost=is_guard_lost)
                if survivors and launch.lock is not None:
                    launch.lock.is_clean = False
        _ensure_started(pump, guard)
        end = _end_of(pump, launch, cancellation, time.monotonic() - started, survivors)
        if self._has_told_of_no_wall or not pump.lacks_wall:
            return end
        self._has_told_of_no_wall = True
        return replace(end, lacks_wall=True)

    def _launched(self, launch: Launch) -> Guard:
        """Return a guard that has its record; a spare one may have died while it waited."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            try:
                if self._is_usable(spare):
                    spare.run(launch)
                    return spare
            except GuardUnreachable:
                pass
            except BaseException:
                spare.close()
                raise
            spare.close()
        guard = Guard()
        try:
            guard.run(launch)
        except BaseException:
            guard.close()
            raise
        return guard

    def _is_usable(self, guard: Guard) -> bool:
        return guard.owner_pid == os.getpid() and guard.is_alive


def _selector(cancellation: Cancellation) -> selectors.BaseSelector:
    """Return a fresh selector; the descriptor of *cancellation* is made as well.

    Raises:
        MachineBusy: there is no descriptor left.
    """
    try:
        cancellation.fileno()
        return selectors.DefaultSelector()
    except OSError as error:
        busy = out_of_resources(error)
        if busy is None:
            raise
        raise busy from error


def launch_of(
    argv: Sequence[str],
    env: Mapping[str, str],
    request: StepRequest,
    *,
    hint: str = "",
    grace_s: float = GRACE_S,
    wall: Wall = Wall.SCOPES,
) -> Launch:
    """Return how to start *argv* for *request*; *env* lacks only the request's identity."""
    mark = request.step.complete_when
    return Launch(
        identity=request.identity,
        argv=tuple(argv),
        environment=env,
        cwd=request.cwd,
        prompt=request.prompt.encode("utf-8", "surrogateescape"),
        timeout_s=request.timeout_s,
        idle_timeout_s=request.idle_timeout_s,
        done_file=mark.file if isinstance(mark, FileMark) else None,
        grace_s=grace_s if request.grace_s is None else min(grace_s, request.grace_s),
        lock=request.lock,
        hint=hint,
        wall=wall,
    )


def located(program: str, project: Path) -> str:
    """Return *program* as it is found from any folder; a path is relative to *project*.

    >>> located("./bin/agent", Path("/p")), located("claude", Path("/p"))
    ('/p/bin/agent', 'claude')
    """
    return str(project / program) if os.sep in program else program


def conclude(
    end: ProcessEnd,
    request: StepRequest,
    listener: Listener,
    judge: Callable[[ProcessEnd], Outcome],
) -> Outcome:
    """Return the outcome of *end*: ours where we stopped it, else what *judge* says.

    The agent's result file is applied last; it can't make a failure a success. The evidence is
    completed by what only the process shows.
    """
    if end.lacks_wall:
        text = f"[sequencer] there is no wall around agents on this machine: {WITHOUT_WALL}\n"
        listener.write(text.encode(), Piece.NOTICE)
    if end.spawn_error is not None:
        # An update of a client takes its program away for a moment.
        status = OutcomeStatus.UNAVAILABLE if end.has_vanished else OutcomeStatus.FAILED
        return Outcome(status=status, error=end.spawn_error)
    is_done = end.ended_by == DONE and not end.is_guard_lost
    # Its exit code is that of our signal.
    outcome = judge(replace(end, exit_code=0) if is_done else end)
    update: dict[str, Any] = {"exit_code": end.exit_code}
    if not outcome.usage.seconds:
        update["usage"] = outcome.usage.replace(seconds=round(end.seconds, 6))
    if isinstance(end.ended_by, StopReason):
        update |= {"status": OutcomeStatus.INTERRUPTED, "error": f"stopped: {end.ended_by}"}
    elif is_done:
        update["exit_code"] = None
        listener.write(
            b"[sequencer] the file of complete_when is there: the step is done, and "
            b"its agent was ended\n",
            Piece.NOTICE,
        )
    elif end.ended_by is not None or end.is_guard_lost:
        update |= {"status": OutcomeStatus.FAILED, "error": stop_error(end, request)}
        update["is_timed_out"] = end.ended_by == "timeout"
    elif end.exit_code != 0 and outcome.is_accepted:
        # No parser may call a failed process a success.
        update |= {"status": OutcomeStatus.FAILED, "error": describe_exit(end)}
    if end.survivors:
        notice = f"{end.survivors} processes of the agent could not be ended\n"
        listener.write(notice.encode(), Piece.NOTICE)
    tell_left(end, listener)
    update["evidence"] = _shown(outcome.evidence or Evidence(), end, is_done=is_done)
    ignored = result_ignored(request, listener)
    return with_answer(apply_result(request.result_path, outcome.replace(**update), ignored))


def _shown(evidence: Evidence, end: ProcessEnd, *, is_done: bool) -> Evidence:
    """Return *evidence* with what the end of the process adds to it."""
    cut_off = {"turn_end": TurnEnd.CUT_OFF} if end.is_cut_short and not is_done else {}
    stated = {"is_stated": True} if is_done else {}
    return evidence.replace(ended_processes=end.left_running, **cut_off, **stated)


def tell_left(end: ProcessEnd, listener: Listener) -> None:
    """Tell *listener* which processes the agent had left running, if there were any."""
    if end.left_running:
        listener.write(f"[sequencer] {left_words(end)}\n".encode(), Piece.NOTICE)


def left_words(end: ProcessEnd) -> str:
    r"""Return what became of the processes that were left running.

    >>> left_words(ProcessEnd(left_running=1, first_left=b"python3\0-m\0http.server\0"))
    '1 process that the agent had left running was ended: python3 -m http.server'
    >>> left_words(ProcessEnd(left_running=2, first_left=b"npm start"))
    '2 processes that the agent had left running were ended, first: npm start'
    """
    number, words = end.left_running, _command_words(end.first_left)
    if number == 1:
        return f"1 process that the agent had left running was ended: {words}"
    return f"{number} processes that the agent had left running were ended, first: {words}"


def _command_words(line: bytes) -> str:
    """Return a command *line* for people; cut between two words, for one may be a secret."""
    text = line.decode("utf-8", "replace").replace("\0", " ")
    words = "".join(each if each.isprintable() else "?" for each in text).split()
    is_cut = len(line) >= COMMAND_BYTES
    kept: list[str] = []
    for word in words[: -1 if is_cut else None]:
        if len(" ".join([*kept, word])) > _COMMAND_CHARS:
            is_cut = True
            break
        kept.append(word)
    return " ".join([*kept, "…"] if is_cut else kept)


def _end_strays(guard: Guard, report: dict[str, Any] | None, *, is_guard_lost: bool) -> int:
    """End what the guard did not, and return how much is left of the attempt."""
    if is_guard_lost or sys.platform != "linux":
        return end_marked(guard.mark)
    return int(report.get("survivors", 0)) if report else 0


def _ensure_started(pump: Pump, guard: Guard) -> None:
    """Return if an agent was started, or could not be for a reason of its own.

    Raises:
        MachineBusy: there was no process, descriptor or memory for it, or for its guard.
    """
    report = pump.report
    if report is not None and report["event"] == "refused":
        code = int(report["errno"])
        busy = out_of_resources(OSError(code, os.strerror(code)))
        if busy is not None:
            raise busy
    exit_code = guard.exit_code
    if report is None and not pump.has_started and exit_code is not None and exit_code > 0:
        raise MachineBusy(
            f"the guard process ended with exit code {exit_code} before it started the agent",
            hint=f"make sure that '{sys.executable} -I -S -c pass' works here",
        )


def _end_of(
    pump: Pump, launch: Launch, cancellation: Cancellation, seconds: float, survivors: int
) -> ProcessEnd:
    tail = pump.stderr_tail.decode("utf-8", "replace")
    report = pump.report
    if report is not None and report["event"] == "refused":
        error = f"{spawn_error(report, launch)}\n{launch.hint}".rstrip()
        has_vanished = has_no_program(report, launch)
        return ProcessEnd(spawn_error=error, has_vanished=has_vanished, seconds=seconds)
    ended_by: StopReason | str | None = pump.stop_cause
    exit_code = report["exit_code"] if report else None
    if report and report["stopped_by"] is None:
        # It ended by itself just before it heard of the stop; its own end counts, but not
        # a death by the very signal that reached the sequencer too.
        ended_by = cancellation.reason if exit_code != 0 else None
    elif report and ended_by is None:
        # Somebody sent TERM to the guard: a shutdown, which is nobody's failure.
        ended_by = cancellation.reason or StopReason.INTERRUPTED
    return ProcessEnd(
        exit_code=exit_code,
        ended_by=ended_by,
        seconds=seconds,
        stderr_tail=tail,
        is_guard_lost=report is None,
        survivors=survivors,
        left_running=int(report.get("left", 0)) if report else 0,
        first_left=bytes.fromhex(report.get("first", "")) if report else b"",
    )


_SHELL_SIGNAL_BASE = 128


class ProcessEnd(Struct, frozen=True, kw_only=True):
    """How one agent process ended; plain facts, no judgement."""

    exit_code: int | None = None
    """Negative for a signal; None if it never ran or its guard was lost."""
    spawn_error: str | None = None
    """Why it could not be started, with what to do about it."""
    has_vanished: bool = False
    """There is no such program on PATH, where one was found before the step was claimed."""
    ended_by: StopReason | str | None = None
    """None if it ended by itself, else "timeout", "idle", "done", "stuck" or the reason of a
    cancellation."""
    seconds: float = 0.0
    stderr_tail: str = ""
    """The last 4 KiB of its standard error."""
    is_guard_lost: bool = False
    """Somebody killed the guard; the agent was killed with it."""
    lacks_wall: bool = False
    """It ran without the wall that it should have had; of the first one only."""
    survivors: int = 0
    """Processes that could not be ended (another user's, after sudo, say)."""
    left_running: int = 0
    """Processes that it had left running when it ended by itself, and that were ended."""
    first_left: bytes = b""
    """The beginning of the command line of one of them."""

    @property
    def is_cut_short(self) -> bool:
        """Return whether a signal ended it, ours or another's, or its guard was lost.

        Codes above 128 + SIGTERM are not meant: gemini makes them of HTTP statuses.
        """
        code = -1 if self.exit_code is None else self.exit_code
        is_signal = code < 0 or 0 < code - _SHELL_SIGNAL_BASE <= signal.SIGTERM
        return self.ended_by is not None or is_signal


LOOK_FIRST = "look at its log for what it did last"
"""What to do about a client that made no progress."""


def describe_exit(end: ProcessEnd) -> str:
    """Return one to three lines that say how a process ended, its last words included.

    >>> describe_exit(ProcessEnd(exit_code=137))
    'exit code 137 (128 + SIGKILL; often because memory ran out)'
    """
    code = end.exit_code
    if code is None:
        said = "it left no exit code"
    elif code < 0:
        said = f"it was ended by {_signal_name(-code)}"
    elif code > _SHELL_SIGNAL_BASE and _signal_name(code - _SHELL_SIGNAL_BASE).startswith("SIG"):
        said = f"exit code {code} (128 + {_signal_name(code - _SHELL_SIGNAL_BASE)})"
    else:
        said = f"exit code {code}"
    if code is not None and signal.SIGKILL in (-code, code - _SHELL_SIGNAL_BASE):
        why = "; often because memory ran out"
        said = f"{said[:-1]}{why})" if said.endswith(")") else f"{said}{why}"
    lines = [line.strip() for line in end.stderr_tail.splitlines() if line.strip()]
    return "\n".join([said, *(line[:300] for line in lines[-2:])])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def stop_error(end: ProcessEnd, request: StepRequest) -> str:
    """Return why an agent that was stopped, or whose guard was killed, has failed."""
    gone = "the agent and everything that it started were ended"
    step = request.step.name
    if end.ended_by == "timeout":
        return time_is_over(request, gone)
    if end.ended_by == "idle":
        return (
            f"no progress for {request.idle_timeout_s:g} s; {gone}\n"
            f"{LOOK_FIRST}; raise idle_timeout_s of step {step!r} only if it was at work in silence"
        )
    if end.ended_by == STUCK:
        return f"{repeats_itself(request)}; {gone}"
    return (
        "the guard process of the agent was killed, and the agent with it; what it had started was "
        "ended as far as it could be found"
    )


def has_no_program(report: Mapping[str, Any], launch: Launch) -> bool:
    """Return whether the program of *launch* was not found on PATH, or where its path leads.

    A path that depends on the folder may lead nowhere on another branch: that is a mistake.
    """
    program = launch.argv[0]
    is_relative = os.sep in program and not os.path.isabs(program)  # noqa: PTH117 - argv's text
    is_missing = report["stage"] != "folder" and int(report["errno"]) == errno.ENOENT
    return is_missing and not is_relative


def spawn_error(report: dict[str, Any], launch: Launch) -> str:
    """Return why the agent of *launch* could not be started, as its guard's *report* has it."""
    code, program = int(report["errno"]), launch.argv[0]
    if report["stage"] == "folder":
        return f"can't work in the folder {str(launch.cwd)!r}: {os.strerror(code)}"
    found = shutil.which(program, path=launch.environment.get("PATH"))
    if code == errno.ENOENT and found is None:
        searched = launch.environment.get("PATH", os.defpath)
        where = "there is no such file" if os.sep in program else f"it is not on PATH ({searched})"
        return f"the program {program!r} can't be started: {where}"
    if code == errno.ENOENT:
        return (
            f"the program {program!r} can't be started: the interpreter that its first line "
            "names is missing"
        )
    reasons = {
        errno.EACCES: "it is not executable for this user (chmod +x)",
        errno.ENOEXEC: "it is neither a program nor a script with a #! line",
        errno.E2BIG: "its arguments and environment are too long",
    }
    return f"the program {program!r} can't be started: {reasons.get(code, os.strerror(code))}"
