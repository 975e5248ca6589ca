"""How one agent process ended, and how a person is told of that."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sequencer.executors.guarding import Launch
from sequencer.executors.protocol import StepRequest, StopReason, time_is_over

_SHELL_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """How one agent process ended; plain facts, no judgement."""

    exit_code: int | None = None
    """Negative for a signal; None if it never ran or its guard was lost."""
    spawn_error: str | None = None
    """Why it could not be started, with what to do about it."""
    has_vanished: bool = False
    """There is no such program on PATH, where one was found before the step was claimed."""
    ended_by: StopReason | str | None = None
    """None if it ended by itself, else "timeout", "idle", "done" or the reason of a
    cancellation."""
    seconds: float = 0.0
    stderr_tail: str = ""
    """The last 4 KiB of its standard error."""
    is_guard_lost: bool = False
    """Somebody killed the guard; the agent was killed with it."""
    survivors: int = 0
    """Processes that could not be ended (another user's, after sudo, say)."""


def describe_exit(end: ProcessEnd) -> str:
    """Return one to three lines that say how a process ended, its last words included.

    >>> describe_exit(ProcessEnd(exit_code=137))
    'exit code 137 (128 + SIGKILL; often for lack of memory)'
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
        why = "; often for lack of memory"
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
            f"raise idle_timeout_s of step {step!r} if it may be silent for so long"
        )
    return f"the guard process of the agent was killed, and the agent with it; {gone}"


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
