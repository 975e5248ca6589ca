"""Run one agent program and turn its end into an outcome.

`ProcessCore` runs an argv under a guard process; `conclude` judges the end. The agent's result
file is untrusted: see `apply_result`.

Relied on: `guard` ends every process of the attempt, however the attempt or this process
ends. Not promised: that a listener sees stdout and stderr in the order in which they were
written; only the order within each stream is kept.
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
    to_machine_busy,
)
from sequencer.executors.answers import make_ignored_notifier, with_answer_digest
from sequencer.executors.attempt_lock import end_marked
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.file_watch import FileWatch
from sequencer.executors.guard import COMMAND_BYTES
from sequencer.executors.guard_process import Guard, GuardUnreachable
from sequencer.executors.launch import GRACE_S, Launch
from sequencer.executors.protocol import (
    Listener,
    Piece,
    StepRequest,
    repetition_message,
    timeout_message,
)
from sequencer.executors.pump import DONE, STUCK, OutputConsumer, Pump
from sequencer.executors.result_file import apply_result
from sequencer.executors.wall import WITHOUT_WALL, Wall
from sequencer.model.evidence import Evidence, TurnEnd
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import FileMark

_COMMAND_CHARS = 200
"""Maximum characters of a command line in a message."""
START_RETRY_S = 5.0
"""How long to retry a start while this machine has no free process or descriptor."""
_FIRST_PAUSE_S = 0.1


class ProcessCore:
    """Runs agents under guards; safe to use from several threads at once."""

    def __init__(self) -> None:
        """Create the core; it starts no guard yet."""
        self._spare: Guard | None = None
        self._lock = threading.Lock()
        self._has_reported_no_wall = False

    def __enter__(self) -> Self:
        """Return the core itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the spare guard."""
        self.close()

    def prepare(self) -> None:
        """Start the guard of the next `run` ahead of time; it waits without using CPU.

        If the system refuses it, nothing is lost: `run` tries again and says why.
        """
        with self._lock:
            old_guard = self._spare
            if old_guard is not None and self._is_usable(old_guard):
                return
            self._spare = None
            with suppress(GuardUnreachable, MachineBusy):
                self._spare = Guard()
        if old_guard is not None:
            old_guard.close()

    def close(self) -> None:
        """End the spare guard, if there is one; the core may be used again."""
        with self._lock:
            spare_guard, self._spare = self._spare, None
        if spare_guard is not None:
            spare_guard.close()

    def run(
        self, launch: Launch, consumer: OutputConsumer, cancellation: Cancellation
    ) -> ProcessEnd:
        """Run one agent until it exits, and leave none of its processes running.

        An exception of *consumer* (a full disk) ends the agent's tree before it is raised here.

        Raises:
            MachineBusy: no agent was started, because processes of an earlier attempt are
                still running, or because this machine had no free process, descriptor or
                memory for `START_RETRY_S`.
            StorageFailed: see `AttemptLock`; no agent was started.
        """
        has_lock = launch.lock is None or launch.lock.acquire(cancellation)
        if cancellation.reason is not None or not has_lock:
            return ProcessEnd(ended_by=cancellation.reason)
        deadline, pause_s = time.monotonic() + START_RETRY_S, _FIRST_PAUSE_S
        while True:
            try:
                return self._run(launch, consumer, cancellation)
            except MachineBusy:
                if time.monotonic() > deadline or cancellation.wait(pause_s):
                    raise
                pause_s *= 2

    def _run(
        self, launch: Launch, consumer: OutputConsumer, cancellation: Cancellation
    ) -> ProcessEnd:
        start = time.monotonic()
        # Open all descriptors before the agent costs anything: the rest needs no others.
        mark = FileWatch(launch.cwd, launch.done_file) if launch.done_file else None
        with _selector(cancellation) as selector:
            try:
                guard = self._start_guard(launch)
            except (MachineBusy, StorageFailed):
                raise
            except SequencerError as error:
                return ProcessEnd(spawn_error=str(error))
            pump = Pump(guard, launch, consumer, cancellation, selector, mark=mark)
            is_guard_lost = True
            try:
                pump.run()
                if pump.report is None:
                    # While the guard runs, orphans can be identified by their parent.
                    end_marked(guard.mark)
            finally:
                # Runs after an exception too: closing the control socket ends the agent.
                is_clean = guard.close()
                is_guard_lost = pump.report is None or not is_clean
                survivors = _end_strays(guard, pump.report, is_guard_lost=is_guard_lost)
                if survivors and launch.lock is not None:
                    launch.lock.is_clean = False
        _ensure_started(pump, guard)
        end = _build_process_end(pump, launch, cancellation, time.monotonic() - start, survivors)
        if self._has_reported_no_wall or not pump.lacks_wall:
            return end
        self._has_reported_no_wall = True
        return replace(end, lacks_wall=True)

    def _start_guard(self, launch: Launch) -> Guard:
        """Return a guard that has its launch record.

        The spare guard may have died while it waited; then a new one is started.
        """
        with self._lock:
            spare_guard, self._spare = self._spare, None
        if spare_guard is not None:
            try:
                if self._is_usable(spare_guard):
                    spare_guard.run(launch)
                    return spare_guard
            except GuardUnreachable:
                pass
            except BaseException:
                spare_guard.close()
                raise
            spare_guard.close()
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
    """Return a new selector, and open the descriptor of *cancellation* too.

    Raises:
        MachineBusy: there is no free descriptor.
    """
    try:
        cancellation.fileno()
        return selectors.DefaultSelector()
    except OSError as error:
        busy_error = to_machine_busy(error)
        if busy_error is None:
            raise
        raise busy_error from error


def build_launch(
    argv: Sequence[str],
    env: Mapping[str, str],
    request: StepRequest,
    *,
    hint: str = "",
    grace_s: float = GRACE_S,
    wall: Wall = Wall.SCOPES,
) -> Launch:
    """Return the launch of *argv* for *request*; *env* is complete except for the identity."""
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


def resolve_program(program: str, project: Path) -> str:
    """Return *program* so that it works from any folder; a path is relative to *project*.

    >>> resolve_program("./bin/agent", Path("/p")), resolve_program("claude", Path("/p"))
    ('/p/bin/agent', 'claude')
    """
    return str(project / program) if os.sep in program else program


def conclude(
    end: ProcessEnd,
    request: StepRequest,
    listener: Listener,
    judge: Callable[[ProcessEnd], Outcome],
) -> Outcome:
    """Return the outcome of *end*: ours if we stopped the agent, else the outcome from *judge*.

    The agent's result file is applied last; it can't turn a failure into a success. Evidence
    that only the process shows is added.
    """
    if end.lacks_wall:
        text = f"[sequencer] there is no wall around agents on this machine: {WITHOUT_WALL}\n"
        listener.write(text.encode(), Piece.NOTICE)
    if end.spawn_error is not None:
        # An update of a client removes its program for a moment.
        status = OutcomeStatus.UNAVAILABLE if end.has_vanished else OutcomeStatus.FAILED
        return Outcome(status=status, error=end.spawn_error)
    is_done = end.ended_by == DONE and not end.is_guard_lost
    # We ended it with a signal, so its exit code says nothing about its work.
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
    report_leftovers(end, listener)
    update["evidence"] = _complete_evidence(outcome.evidence or Evidence(), end, is_done=is_done)
    notify_ignored = make_ignored_notifier(request, listener)
    return with_answer_digest(
        apply_result(request.result_path, outcome.replace(**update), notify_ignored)
    )


def _complete_evidence(evidence: Evidence, end: ProcessEnd, *, is_done: bool) -> Evidence:
    """Return *evidence* with the facts from the end of the process."""
    cut_off = {"turn_end": TurnEnd.CUT_OFF} if end.is_cut_short and not is_done else {}
    update = {"is_stated": True} if is_done else {}
    return evidence.replace(ended_processes=end.left_running, **cut_off, **update)


def report_leftovers(end: ProcessEnd, listener: Listener) -> None:
    """Report to *listener* which processes the agent left running, if any."""
    if end.left_running:
        listener.write(f"[sequencer] {leftover_message(end)}\n".encode(), Piece.NOTICE)


def leftover_message(end: ProcessEnd) -> str:
    r"""Return the message about the processes that the agent left running.

    >>> leftover_message(ProcessEnd(left_running=1, first_left=b"python3\0-m\0http.server\0"))
    '1 process that the agent had left running was ended: python3 -m http.server'
    >>> leftover_message(ProcessEnd(left_running=2, first_left=b"npm start"))
    '2 processes that the agent had left running were ended, first: npm start'
    """
    number, words = end.left_running, _format_command(end.first_left)
    if number == 1:
        return f"1 process that the agent had left running was ended: {words}"
    return f"{number} processes that the agent had left running were ended, first: {words}"


def _format_command(line: bytes) -> str:
    """Return a command *line* for people, cut only between words.

    Redaction would not find a secret that was cut in two.
    """
    text = line.decode("utf-8", "replace").replace("\0", " ")
    words = "".join(letter if letter.isprintable() else "?" for letter in text).split()
    is_cut = len(line) >= COMMAND_BYTES
    shown_words: list[str] = []
    for word in words[: -1 if is_cut else None]:
        if len(" ".join([*shown_words, word])) > _COMMAND_CHARS:
            is_cut = True
            break
        shown_words.append(word)
    return " ".join([*shown_words, "…"] if is_cut else shown_words)


def _end_strays(guard: Guard, report: dict[str, Any] | None, *, is_guard_lost: bool) -> int:
    """End processes that the guard left, and return how many could not be ended."""
    if is_guard_lost or sys.platform != "linux":
        return len(end_marked(guard.mark))
    return int(report.get("survivors", 0)) if report else 0


def _ensure_started(pump: Pump, guard: Guard) -> None:
    """Check that the machine had the resources for the start.

    A start that failed for another reason passes.

    Raises:
        MachineBusy: the agent or its guard got no process, descriptor or memory.
    """
    report = pump.report
    if report is not None and report["event"] == "refused":
        code = int(report["errno"])
        busy_error = to_machine_busy(OSError(code, os.strerror(code)))
        if busy_error is not None:
            raise busy_error
    exit_code = guard.exit_code
    if report is None and not pump.has_started and exit_code is not None and exit_code > 0:
        raise MachineBusy(
            f"the guard process ended with exit code {exit_code} before it started the agent",
            hint=f"make sure that '{sys.executable} -I -S -c pass' works here",
        )


def _build_process_end(
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
        # It ended by itself just before the stop reached it, so its own exit code stands, unless
        # the signal that stopped the sequencer also killed the agent.
        ended_by = cancellation.reason if exit_code != 0 else None
    elif report and ended_by is None:
        # Another process sent TERM to the guard: a shutdown, not a failure of the agent.
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
    """How one agent process ended: facts without a judgment."""

    exit_code: int | None = None
    """Negative for a signal; None if it never ran or its guard was lost."""
    spawn_error: str | None = None
    """Why it could not be started, and what to do about it."""
    has_vanished: bool = False
    """The program is not on PATH, although it was when the step was claimed."""
    ended_by: StopReason | str | None = None
    """None if it ended by itself, else "timeout", "idle", "done", "stuck" or the reason of a
    cancellation."""
    seconds: float = 0.0
    stderr_tail: str = ""
    """The last 4 KiB of its standard error."""
    is_guard_lost: bool = False
    """Another process killed the guard; the agent was killed with it."""
    lacks_wall: bool = False
    """It ran without the wall that its entry asks for; set only for the first such agent."""
    survivors: int = 0
    """How many processes could not be ended (for example another user's, after sudo)."""
    left_running: int = 0
    """How many processes it left running when it ended by itself; they were ended."""
    first_left: bytes = b""
    """The beginning of the command line of one of those processes."""

    @property
    def is_cut_short(self) -> bool:
        """Return whether a signal ended it, from us or from others, or its guard was lost.

        Codes above 128 + SIGTERM are not signals: gemini makes exit codes from HTTP statuses.
        """
        code = -1 if self.exit_code is None else self.exit_code
        is_signal = code < 0 or 0 < code - _SHELL_SIGNAL_BASE <= signal.SIGTERM
        return self.ended_by is not None or is_signal


LOOK_FIRST = "look at its log for what it did last"
"""What to do about a client that made no progress."""


def describe_exit(end: ProcessEnd) -> str:
    """Return one to three lines about how a process ended, with its last lines of stderr.

    >>> describe_exit(ProcessEnd(exit_code=137))
    'exit code 137 (128 + SIGKILL; often because memory ran out)'
    """
    code = end.exit_code
    if code is None:
        text = "it left no exit code"
    elif code < 0:
        text = f"it was ended by {_signal_name(-code)}"
    elif code > _SHELL_SIGNAL_BASE and _signal_name(code - _SHELL_SIGNAL_BASE).startswith("SIG"):
        text = f"exit code {code} (128 + {_signal_name(code - _SHELL_SIGNAL_BASE)})"
    else:
        text = f"exit code {code}"
    if code is not None and signal.SIGKILL in (-code, code - _SHELL_SIGNAL_BASE):
        cause = "; often because memory ran out"
        text = f"{text[:-1]}{cause})" if text.endswith(")") else f"{text}{cause}"
    lines = [line.strip() for line in end.stderr_tail.splitlines() if line.strip()]
    return "\n".join([text, *(line[:300] for line in lines[-2:])])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def stop_error(end: ProcessEnd, request: StepRequest) -> str:
    """Return why an agent failed that was stopped or whose guard was killed."""
    consequence = "the agent and everything that it started were ended"
    step = request.step.name
    if end.ended_by == "timeout":
        return timeout_message(request, consequence)
    if end.ended_by == "idle":
        return (
            f"no progress for {request.idle_timeout_s:g} s; {consequence}\n"
            f"{LOOK_FIRST}; raise idle_timeout_s of step {step!r} only if it was at work in silence"
        )
    if end.ended_by == STUCK:
        return f"{repetition_message(request)}; {consequence}"
    return (
        "the guard process of the agent was killed, and the agent with it; what it had started was "
        "ended as far as it could be found"
    )


def has_no_program(report: Mapping[str, Any], launch: Launch) -> bool:
    """Return whether the program of *launch* was not found, on PATH or at an absolute path.

    Always False for a relative path: it may be missing on another branch, and that is a mistake.
    """
    program = launch.argv[0]
    is_relative = os.sep in program and not os.path.isabs(program)  # noqa: PTH117 - argv's text
    is_missing = report["stage"] != "folder" and int(report["errno"]) == errno.ENOENT
    return is_missing and not is_relative


def spawn_error(report: dict[str, Any], launch: Launch) -> str:
    """Return why the agent of *launch* could not be started, according to its guard's *report*."""
    code, program = int(report["errno"]), launch.argv[0]
    if report["stage"] == "folder":
        return f"can't work in the folder {str(launch.cwd)!r}: {os.strerror(code)}"
    program_path = shutil.which(program, path=launch.environment.get("PATH"))
    if code == errno.ENOENT and program_path is None:
        search_path = launch.environment.get("PATH", os.defpath)
        problem = (
            "there is no such file" if os.sep in program else f"it is not on PATH ({search_path})"
        )
        return f"the program {program!r} can't be started: {problem}"
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
