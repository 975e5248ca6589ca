"""The list of commands, and the one place where an exception becomes a message and an exit code.

A deliberate error says what is wrong, where, and what to do. Any other exception is reported as
a bug; --verbose shows its traceback. Secrets are hidden in both.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import IO, Any, NoReturn

import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from sequencer import extensions, packages
from sequencer.cli import unattended
from sequencer.cli.context import (
    ALWAYS,
    Invocation,
    ensure_available,
    hide_secrets,
    relativize_paths,
    show_message,
    write_to_stderr,
)
from sequencer.cli.options import ALL_HELP, global_options
from sequencer.errors import (
    AgentMissing,
    ClaimHeld,
    Interrupted,
    MachineBusy,
    NotTrusted,
    RemoteUnreachable,
    SequencerError,
    StorageFailed,
    UsageRefused,
    WaitsForPerson,
    WorkTreeRefused,
    set_global_options,
    to_machine_busy,
    to_storage_failed,
)
from sequencer.project.enabled_plugins import read_disabled
from sequencer.store.ownership import explain_refusal

BUG = 70
USAGE = 2
INTERRUPTED = Interrupted.exit_code
_PREFIXES: Mapping[type[SequencerError], str] = {WaitsForPerson: "waiting: ", Interrupted: ""}
"""Messages that don't start with "error": a question to a person, and an end a person asked for."""
REPORT_TO = (
    "please report it: add what the command prints with --verbose, and 'sequencer check --report'"
)


def report(error: BaseException, *, is_verbose: bool) -> int:
    """Write *error* to standard error as people read it, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        if sys.stdout is not None:
            _silence(sys.stdout)
        return 0
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        write_to_stderr("interrupted")
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        write_to_stderr(error.format_message())
        return error.exit_code
    if isinstance(error, click.ClickException):
        show_message(_format_usage_error(error))
        return error.exit_code
    error = _translate_error(error)
    if isinstance(error, SequencerError):
        prefix = _PREFIXES.get(type(error), "error: ")
        # If a flow's agent program is missing, every node reports the same error.
        for text in dict.fromkeys(map(str, error.each)):
            show_message(f"{prefix}{text}")
        if is_verbose and error.__cause__ is not None:
            write_to_stderr(hide_secrets(_format_traceback(error)))
        return error.exit_code
    show_message(f"error: this is a bug: {type(error).__name__}: {error}")
    if is_verbose:
        write_to_stderr(hide_secrets(_format_traceback(error)))
    else:
        show_message(f"  {REPORT_TO}")
    return BUG


def _translate_error(error: BaseException) -> BaseException:
    """Return *error*, or a deliberate error if this machine lacks something or refuses a file."""
    if isinstance(error, ModuleNotFoundError) and (plugin := extensions.missing_plugin(error)):
        return extensions.PluginUnavailable("this command", plugin)
    if not isinstance(error, OSError) and (fault := packages.to_package_error(error)) is not None:
        return fault
    machine_busy = to_machine_busy(error)
    if (storage_error := to_storage_failed(error)) is not None:
        if storage_error is not error:
            storage_error.__cause__ = error
        return storage_error
    if machine_busy is None or machine_busy is error:
        fault = None if isinstance(error, PermissionError) else packages.to_package_error(error)
        return fault or _refuse_file(error) or error
    shortage = MachineBusy(machine_busy.message, where=machine_busy.where, hint=machine_busy.hint)
    if isinstance(error, SequencerError):
        shortage = MachineBusy(
            f"{error.message}: {machine_busy.message}", where=error.where, hint=machine_busy.hint
        )
    # A new error: one that is already in the chain of *error* would become its own cause.
    shortage.__cause__ = error
    return shortage


_HINTS_OF_FILES: Mapping[type[OSError], str] = {
    PermissionError: "check its owner and mode, and those above it",
    NotADirectoryError: "a folder belongs there, or above it; move away what is in its place",
    FileExistsError: "move away what is in its place",
    IsADirectoryError: "a file belongs there; move the folder away",
    FileNotFoundError: "it was removed, or a folder above it is missing; create it again",
}
"""What a person can do about an unusable file or folder, wherever the error comes from."""


def _refuse_file(error: BaseException) -> StorageFailed | None:
    """Return what to report if *error* is about a file that a person can fix; else None."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str):
        return None
    otherwise = _HINTS_OF_FILES.get(type(error))
    if otherwise is None:
        return None
    reason, hint = explain_refusal(error, error.filename, otherwise)
    refusal = StorageFailed(f"can't be used: {reason}", where=error.filename, hint=hint)
    refusal.__cause__ = error
    return refusal


def _format_usage_error(error: click.ClickException) -> str:
    text = f"error: {_import_usage_module().usage_message(error)}"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        context = error.ctx
        text += f"\n  {context.command.get_usage(context)}"
        text += f"\n  '{context.command_path} --help' explains the options"
    return text


def _import_usage_module() -> ModuleType:
    """Return the module that rephrases click's messages. Only a usage error needs it."""
    return import_module("sequencer.cli.usage")


def _format_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def _discard_unwritten_output() -> None:
    """Discard output that a closed, full or vanished stream did not take, and all later output.

    Otherwise the interpreter flushes again when it exits, and ends with code 120 if that fails.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                _silence(stream)


def _silence(stream: IO[str]) -> None:
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, stream.fileno())
    os.close(null_fd)


NAME = "sequencer"


class Command(Struct, frozen=True):
    """The module of a verb, and its line on the help screen."""

    section: str
    module: str
    help: str
    decides: str = ""
    """`ALWAYS`: only a person may use the verb. Else the option that only a person may use."""

    @property
    def plugin(self) -> str | None:
        """Return the plug-in that provides the verb; None: the core does."""
        package, _, rest = self.module.partition(".")
        return rest.partition(".")[0] if package == "plugins" else None


_START, _RUN, _LOOK, _YOU, _FIX, _AUTO = "Start", "Run", "Look", "You", "Fix", "Automate"

COMMANDS: Mapping[str, Command] = {
    "init": Command(_START, "cli.init", "Create a project's files."),
    "demo": Command(_START, "cli.demo", "Watch a run survive kill -9; no agent needed."),
    "check": Command(_START, "cli.check", "Find everything that is wrong."),
    "trust": Command(_START, "cli.trust", "Allow a project to act on this machine."),
    "run": Command(_RUN, "cli.run", "Run steps until a limit.", "--start-at"),
    "tick": Command(_RUN, "cli.tick", "Run one step if one is due; for cron and timers."),
    "start": Command(_RUN, "plugins.requests.cli_start",
                "Make a run from a request, and work on it.", ALWAYS),
    "stop": Command(_RUN, "cli.change", "Stop or pause the run.", "--now"),
    "resume": Command(_RUN, "cli.change", "Let a paused or stopped run continue.", ALWAYS),
    "status": Command(_LOOK, "cli.status", "Show how the run is doing."),
    "log": Command(_LOOK, "cli.log", "Show or follow step logs."),
    "history": Command(_LOOK, "cli.history", "Show what happened, from the journal."),
    "plan": Command(_LOOK, "cli.plan", "Show what would run; nothing is changed."),
    "report": Command(_LOOK, "cli.report",
                "Show what a run did, as text, picture, page or metrics."),
    "web": Command(_LOOK, "plugins.web.cli_web", "Show the runs in a browser, and answer them."),
    "inbox": Command(_YOU, "cli.inbox", "List what waits for a person, in all runs."),
    "answer": Command(_YOU, "cli.inbox", "Answer what waits for a person.", ALWAYS),
    "tell": Command(_YOU, "cli.inbox", "Send a message to a step."),
    "retry": Command(_FIX, "cli.change", "Let the current step be tried again at once.", ALWAYS),
    "skip": Command(_FIX, "cli.change", "Continue without the current step.", ALWAYS),
    "rewind": Command(_FIX, "cli.change", "Go back to an earlier step.", ALWAYS),
    "reset": Command(_FIX, "cli.change", "Start again as a new run.", ALWAYS),
    "set": Command(_FIX, "cli.change", "Set a field of the state.", ALWAYS),
    "adopt": Command(_FIX, "cli.change", "Continue under a changed definition.", ALWAYS),
    "takeover": Command(_FIX, "cli.change", "Show who holds a step, or take it away.", "--force"),
    "repair": Command(_FIX, "cli.repair", "Show what is damaged, and save what can be.", "--apply"),
    "schedule": Command(_AUTO, "plugins.schedules.cli_schedule",
                "Run steps with a timer, or the pages as a service."),
    "sync": Command(_AUTO, "plugins.git.cli_sync",
                "Show both sides of a run that is kept in git.", "--to"),
    "clean": Command(_AUTO, "cli.clean", "Remove old step logs and ended runs.", "--yes"),
    "worker": Command(_AUTO, "plugins.temporal.cli_worker", "Make attempts for runs on Temporal."),
    "mcp": Command(_AUTO, "plugins.web.mcp", "Serve the runs to an editor or an agent (MCP)."),
    "help": Command(_START, "cli.help", "Explain a command, or all of them."),
}  # fmt: skip
"""Verb -> its module below `sequencer`. The function there has the verb's name, or the name with an
underscore after it, such as `set_`."""

_LOOKING = frozenset(
    ("status", "log", "history", "plan", "report", "web", "inbox", "sync", "check", "mcp", "help")
)
"""These run nothing of the project and don't contact a remote."""
_READING = frozenset(("status", "history", "log", "inbox", "repair", "clean", "report", "web"))
"""These read every run, even one that needs a disabled plug-in."""
_CHANGING = frozenset(("stop", "resume", "answer", "tell")) | {
    name for name, entry in COMMANDS.items() if entry.section == _FIX
}
"""These change a run by hand."""
_SYNONYMS = {
    **dict.fromkeys(("list", "ls", "ps", "runs"), "status --all"),
    **dict.fromkeys(("next", "show", "simulate", "preview"), "plan"),
    **dict.fromkeys(("continue", "unpause"), "resume"),
    **dict.fromkeys(("cancel", "abort", "kill"), "stop"),
    **dict.fromkeys(("logs", "tail"), "log"),
    **dict.fromkeys(("approve", "reject", "feedback"), "answer"),
    **dict.fromkeys(("cron", "crontab", "systemd"), "schedule"),
    "pause": "stop --pause", "stamp": "skip --as-done", "gates": "inbox", "message": "tell",
    "validate": "check", "lint": "check", "cost": "report", "costs": "report",
    **dict.fromkeys(("ui", "dashboard", "serve", "browser"), "web"),
    **dict.fromkeys(("graph", "diagram"), "plan --diagram"),
    "doctor": "check", "config": "check --settings", "settings": "check --settings",
    "watch": "log -f", "new": "init", "undo": "rewind", "back": "rewind",
    "version": "--version",
}  # fmt: skip
"""Names of commands in other programs, and the command to use here."""
_FIRST = ("init", "check", "run", "tick", "start", "stop",
          "status", "log", "plan", "inbox", "answer", "web")  # fmt: skip
"""The verbs that the first help screen explains."""

_HELP = """Run AI agents step by step, in the order that a workflow decides. Progress is kept in
files; an accepted step is never lost, doubled or reordered."""
_EXIT_CODES = """0 done or nothing due, 1 a step failed, 2 usage or configuration, 3 state
refused, 4 waits for a person, 75 another process holds the step, or this machine is too busy for
it, 130 interrupted, 70 a bug."""


class Verbs(click.Group):
    """The verbs of `COMMANDS`, each imported on first use, and the commands of packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(_commands(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the verb *cmd_name*; None: there is no such verb."""
        entry = COMMANDS.get(cmd_name)
        if entry is not None:
            config = ctx.ensure_object(Invocation).config
            ensure_available(config, entry.plugin, f"the command {cmd_name!r}")
        if entry is None:
            _configure(ctx)
            return _find_package_command(cmd_name)
        module = import_module(f"sequencer.{entry.module}")
        # A verb has an underscore after it if Python or the module uses its name otherwise.
        command: click.Command = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that *args* start with, and note in the `Invocation` what it may do.

        Raises:
            UnknownName: there is no such verb; the known verbs are listed.
            UsageRefused: another program uses this name for a verb that is called otherwise here.
        """
        invocation = ctx.ensure_object(Invocation)
        entry = COMMANDS.get(args[0])
        if entry is None and not args[0].startswith("-") and not ctx.resilient_parsing:
            _configure(ctx)
            package_names = extensions.names(extensions.COMMANDS)
            if args[0] not in package_names:
                if args[0] in _SYNONYMS:
                    hint = f"use 'sequencer {_SYNONYMS[args[0]]}'"
                    raise UsageRefused(f"there is no command {args[0]!r}", hint=hint)
                raise extensions.unavailable_error(
                    extensions.COMMANDS, args[0], "command", known=COMMANDS
                )
            invocation.verb = args[0]
        if entry is not None:
            invocation.verb, invocation.decides = args[0], entry.decides
            invocation.changes = args[0] in _CHANGING
            invocation.acts = args[0] not in _LOOKING
            invocation.reads = args[0] in (_READING | _CHANGING)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Call the verb.

        Raises:
            PackageFailed: a package wrote to a pipe of its own whose reader is gone.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would exit silently, no matter which pipe broke.
            if _is_output_broken() or (fault := packages.to_package_error(error)) is None:
                raise
            raise fault from error

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one screen about the most important verbs; with ``--help-all``, everything."""
        is_all = ctx.meta.get(ALL_HELP, False)
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_HELP)
        if is_all:
            self._format_all(ctx, formatter)
            return
        formatter.write_paragraph()
        with formatter.indentation():
            known = _commands(ctx)
            formatter.write_dl([(name, known[name].help) for name in _FIRST if name in known])
            formatter.write_paragraph()
            others = [name for name in known if name not in _FIRST]
            formatter.write_text(f"More: {', '.join(others)}")
        formatter.write(
            "\n'sequencer COMMAND --help' explains one; 'sequencer help all' explains all.\n"
        )

    def _format_all(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section without importing them, the global options and exit codes."""
        commands = _commands(ctx)
        for section in dict.fromkeys(entry.section for entry in commands.values()):
            rows = [(name, c.help) for name, c in commands.items() if c.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)
        if package_names := extensions.names(extensions.COMMANDS) - COMMANDS.keys():
            with formatter.section("Added by packages"):
                formatter.write_dl([(name, "") for name in sorted(package_names)])
        # The method of click.Group would list the verbs again, with shortened texts.
        click.Command.format_options(self, ctx, formatter)
        formatter.write("\nYou can write these options before or after the command.\n")
        with formatter.section("Exit codes"):
            formatter.write_text(self.epilog or "")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the verbs and options that start with *incomplete*."""
        names = [
            CompletionItem(name, help=entry.help)
            for name, entry in _commands(ctx).items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def _is_output_broken() -> bool:
    """Return whether the reader of standard output or standard error is gone."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            # This tries again to write what a broken pipe did not take.
            stream.flush()
    except OSError:
        return True
    return False


def _find_package_command(name: str) -> click.Command | None:
    """Return the command *name* of a package; None: no package has one with this name.

    Raises:
        ConfigurationError: it can't be loaded, or is not a click command.
    """
    command: click.Command | None = extensions.find(extensions.COMMANDS, name)
    if command is not None:
        taken_names = {word for param in command.params for word in param.opts}
        command.params.extend(o for o in global_options() if taken_names.isdisjoint(o.opts))
    return command


def _commands(ctx: click.Context) -> Mapping[str, Command]:
    """Return the commands of the core and of the plug-ins that are available."""
    _configure(ctx)
    return {
        name: entry
        for name, entry in COMMANDS.items()
        if entry.plugin is None or extensions.is_available(entry.plugin)
    }


def _configure(ctx: click.Context) -> None:
    """Disable the plug-ins and packages that the configuration disables, before any is loaded."""
    extensions.configure(read_disabled(ctx.ensure_object(Invocation).config))


def make_root_group() -> Verbs:
    """Return the command line's root."""
    return Verbs(
        NAME,
        help=_HELP,
        epilog=_EXIT_CODES,
        params=list(global_options()),
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
            "auto_envvar_prefix": None,
        },
    )


def run(arguments: Sequence[str]) -> int:
    """Run one invocation and return its exit code; raise only ``SystemExit``."""
    _fill_closed_descriptors()
    _make_streams_tolerant()
    code = _run_logged(arguments)
    _discard_unwritten_output()
    return code


def _run_logged(arguments: Sequence[str]) -> int:
    invocation = Invocation(tuple(arguments))
    log = unattended.find_log_path(arguments) if "tick" in arguments else None
    if log is None:
        return _run(invocation, report)
    try:
        unattended.ensure_is_log(log)
    except UsageRefused as error:
        return report(error, is_verbose=False)

    def work() -> tuple[int, unattended.TickNotice]:
        code = _run(invocation, partial(_report_as_news, invocation))
        all_news = [*invocation.happened]
        if (obstacle := invocation.obstacle) is not None:
            news = _make_news(
                invocation, obstacle, relativize_paths(hide_secrets(f"error: {obstacle}"))
            )
            all_news.append(news._replace(code=obstacle.exit_code))
        return code, invocation.news._replace(also=tuple(all_news))

    code, text = unattended.run_logged(log, work)
    if text:
        write_to_stderr(text)
    return code


def _run(invocation: Invocation, reports: Callable[..., int]) -> int:
    arguments = list(invocation.arguments)
    # Looked for here too: a usage error is raised before click handles the option.
    is_verbose = "--verbose" in arguments
    try:
        result: Any = make_root_group().main(
            arguments, prog_name=NAME, standalone_mode=False, obj=invocation
        )
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as error:
        # A package's command may exit with any code, as any program may; its code in a core
        # command may not.
        may_exit = invocation.verb not in COMMANDS or packages.to_package_error(error) is None
        if isinstance(error, SystemExit) and may_exit:
            raise
        return reports(error, is_verbose=is_verbose or invocation.is_verbose)
    finally:
        invocation.close()
        # A program that calls several commands must not add this one's options to the next.
        set_global_options(None, None)
    return result if isinstance(result, int) else 0


def exit_process(code: int) -> NoReturn:
    """Flush the output and end the process with *code* at once, without waiting for threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    os._exit(code)


def _report_as_news(invocation: Invocation, error: BaseException, *, is_verbose: bool) -> int:
    """Report *error* as `report` does, and keep the text as the news of the *invocation*."""
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        code = report(error, is_verbose=is_verbose)
    text = stream.getvalue().rstrip("\n")
    if invocation.explained is None or invocation.explained is not error:
        invocation.news = _make_news(invocation, _translate_error(error), text)
    write_to_stderr(text)
    return code


def _make_news(invocation: Invocation, error: BaseException, text: str) -> unattended.TickNotice:
    """Return the news about *error*, which *text* reports; empty if no person has to know."""
    if isinstance(error, (Interrupted, KeyboardInterrupt, ClaimHeld)):
        return unattended.TickNotice()
    kind = unattended.FAILURE
    # An agent that is missing is a failure: the tick may notice it only when a step is due.
    if isinstance(error, (UsageRefused, click.ClickException)) and not isinstance(
        error, AgentMissing
    ):
        kind = unattended.REFUSAL
    elif isinstance(error, MachineBusy) or (
        isinstance(error, RemoteUnreachable) and not error.is_denied
    ):
        kind = unattended.LASTING
    parts = [type(error).__name__, invocation.run_id, getattr(error, "where", None) or ""]
    if isinstance(error, UsageRefused) and not isinstance(error, NotTrusted):
        parts.append(error.message)  # it names what a person wrote, and has no counts or times
    if isinstance(error, WorkTreeRefused):
        # Found at the end of a run and again at each start, in different parts of the code.
        key = " ".join([*parts, re.sub(r"\d+", "", error.message)])
    else:
        key = " ".join([*parts, *_iter_raise_locations(error)])
    return unattended.TickNotice(invocation.add_run_context(text), key, kind)


def _iter_raise_locations(error: BaseException) -> Iterator[str]:
    """Yield the places in the code where *error* and its causes were raised.

    The same reason is raised at the same place, so the places tell whether an error is new.
    """
    cause: BaseException | None = error
    seen_ids = set[int]()
    while cause is not None and id(cause) not in seen_ids:
        seen_ids.add(id(cause))
        trace = cause.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None:
            code = trace.tb_frame.f_code
            yield f"{code.co_qualname}+{trace.tb_lineno - code.co_firstlineno}"
        cause = cause.__cause__


def _fill_closed_descriptors() -> None:
    """Open closed standard streams, so that the journal can't become descriptor 1.

    An agent would then write its output into the journal.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _make_streams_tolerant() -> None:
    """Escape characters that a stream can't encode, so that odd names never cause a failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")
