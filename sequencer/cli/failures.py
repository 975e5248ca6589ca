"""The one place where an exception becomes a text and an exit code.

Deliberate errors say what, where and what to do. Anything else is a bug, and is called
one; its traceback is shown on request, and secrets are hidden in both.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping

import click

from sequencer.cli.context import complain, hidden, tell
from sequencer.errors import (
    Interrupted,
    MachineBusy,
    SequencerError,
    WaitsForPerson,
    out_of_resources,
)

BUG = 70
USAGE = 2
INTERRUPTED = Interrupted.exit_code
_PREFIXES: Mapping[type[SequencerError], str] = {WaitsForPerson: "waiting: ", Interrupted: ""}
"""What is no error: a question to a person, and an end that a person has asked for."""
REPORT_TO = "report it with the output of the same command with --verbose, and 'sequencer check'"


def report(error: BaseException, *, is_verbose: bool) -> int:
    """Tell a person about *error* on standard error and return the exit code."""
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        return 0
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        complain("interrupted")
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        complain(error.format_message())
        return error.exit_code
    if isinstance(error, click.ClickException):
        tell(_usage_text(error))
        return error.exit_code
    error = _as_shortage(error)
    if isinstance(error, SequencerError):
        prefix = _PREFIXES.get(type(error), "error: ")
        # Of a flow whose client is missing each node says the same.
        for text in dict.fromkeys(map(str, error.each)):
            tell(f"{prefix}{text}")
        if is_verbose and error.__cause__ is not None:
            complain(hidden(_trace(error)))
        return error.exit_code
    tell(f"error: this is a bug: {type(error).__name__}: {error}")
    if is_verbose:
        complain(hidden(_trace(error)))
    else:
        tell(f"  {REPORT_TO}")
    return BUG


def _as_shortage(error: BaseException) -> BaseException:
    """Return *error*, as what it is if this machine ran out of something: no bug, no refusal."""
    busy = out_of_resources(error)
    if busy is None or busy is error:
        return error
    made = busy
    if isinstance(error, SequencerError):
        made = MachineBusy(f"{error.message}: {busy.message}", where=error.where, hint=busy.hint)
    made.__cause__ = error
    return made


def _usage_text(error: click.ClickException) -> str:
    text = f"error: {error.format_message()}"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        context = error.ctx
        text += f"\n  {context.command.get_usage(context)}"
        text += f"\n  '{context.command_path} --help' explains the options"
    return text


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def _silence_stdout() -> None:
    """Keep the interpreter from failing again when it flushes on the way out."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
