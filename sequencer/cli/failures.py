"""The one place where an exception becomes a text and an exit code.

Deliberate errors say what, where and what to do. Anything else is a bug, and is called
one; its traceback is shown on request, and secrets are hidden in both.
"""

from __future__ import annotations

import os
import sys
import traceback

import click

from sequencer.cli.context import complain, hidden
from sequencer.errors import Interrupted, MachineBusy, SequencerError, out_of_resources

BUG = 70
USAGE = 2
INTERRUPTED = Interrupted.exit_code
REPORT_TO = "report it with the output of the same command with --verbose, and 'sequencer check'"


def report(error: BaseException, *, is_verbose: bool) -> tuple[int, str]:
    """Tell a person about *error* on standard error; return the exit code and what was said."""
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        return 0, ""
    code, text = _words(_as_shortage(error), is_verbose=is_verbose)
    complain(text)
    return code, text


def _words(error: BaseException, *, is_verbose: bool) -> tuple[int, str]:
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED, "interrupted"
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.exit_code, error.format_message()
    if isinstance(error, click.ClickException):
        return error.exit_code, hidden(_usage_text(error))
    trace = f"\n{_trace(error)}" if is_verbose else ""
    if isinstance(error, SequencerError):
        trace = trace if error.__cause__ is not None else ""
        return error.exit_code, hidden(f"error: {error}{trace}")
    text = f"error: this is a bug: {type(error).__name__}: {error}"
    return BUG, hidden(text + (trace or f"\n  {REPORT_TO}"))


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
