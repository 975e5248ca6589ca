"""`help`: explain one command or all; print the manual page and the completion of shells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from sequencer import __version__
from sequencer.cli import program
from sequencer.cli.context import Invocation
from sequencer.cli.options import (
    ALL_HELP,
    Verb,
    help_record,
    pass_invocation,
    save,
    split_help,
    verb,
)
from sequencer.errors import StorageFailed, UnknownName, UsageRefused
from sequencer.files.textfile import path_at_home

VARIABLE = "_SEQUENCER_COMPLETE"
EVERYTHING = "all"
_PLACES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/sequencer"),
    "zsh": ("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_sequencer"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/sequencer.fish"),
}
"""Shell -> (variable that names a folder, folder below home without it, file in that folder)."""
_SCRIPTS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@verb("help", has_json=False)
@click.argument("topic", metavar="[COMMAND|all]", required=False)
@click.option("--man", is_flag=True, help="Print the manual page.")
@click.option(
    "--completion",
    type=click.Choice(tuple(_PLACES)),
    help="Print the script that completes commands and options in this shell.",
)
@click.option("--install", is_flag=True, help="Install it for you instead of printing it.")
@pass_invocation
def help_(
    invocation: Invocation,
    /,
    *,
    topic: str | None,
    man: bool,
    completion: str | None,
    install: bool,
) -> None:
    """Explain a command, or all of them.

    \b
    Examples:
      sequencer help all
      sequencer help run
      sequencer help --completion bash --install
      sequencer help --man > ~/.local/share/man/man1/sequencer.1
    """
    if sum((topic is not None, man, completion is not None)) > 1 or (install and not completion):
        raise UsageRefused(
            "use only one of COMMAND, --man and --completion; --install needs --completion",
            where="sequencer help",
        )
    if completion is not None:
        text = _SCRIPTS[completion](program.make_root_group(), {}, program.NAME, VARIABLE).source()
        if install:
            _install(invocation, completion, text)
        else:
            invocation.echo(text, is_verbatim=True)
        return
    if man:
        invocation.echo("\n".join(_format_manual()), is_verbatim=True)
        return
    with _make_root_context() as context:
        if topic in (None, EVERYTHING):
            context.meta[ALL_HELP] = topic is not None
            invocation.echo(context.get_help(), is_verbatim=True)
            return
        command = _find_command(context, topic or "")
        with click.Context(command, context, topic) as command_context:
            command_context.meta[ALL_HELP] = True
            invocation.echo(command_context.get_help(), is_verbatim=True)


def _make_root_context() -> click.Context:
    root = program.make_root_group()
    return click.Context(root, info_name=program.NAME, **root.context_settings)


def _find_command(context: click.Context, name: str) -> click.Command:
    """Return the command *name*.

    Raises:
        UnknownName: there is no such command.
    """
    root = context.command
    command = root.get_command(context, name) if isinstance(root, click.Group) else None
    if command is None:
        raise UnknownName("command", name, program.COMMANDS.keys(), where="sequencer help")
    return command


def _install(invocation: Invocation, shell: str, text: str) -> None:
    """Write the completion script *text* to the file where *shell* looks for it."""
    variable, below_home, name = _PLACES[shell]
    value = os.environ.get(variable, "")
    folder = Path(value) if value.startswith("/") else path_at_home(below_home, variable)
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFailed(
            f"the folder of completions can't be made: {error.strerror}",
            where=str(path.parent),
            hint=f"{variable} names another folder; without --install, the script is printed",
        ) from error
    save(
        path,
        f"{text}\n".encode(),
        is_ours=lambda data: not data.strip() or b"_sequencer_completion" in data,
        what="a completion of sequencer",
    )
    invocation.notify(f"{path} was written; a new {shell} completes 'sequencer'")
    if shell == "zsh":
        invocation.notify(f"if it does not: 'fpath+=({path.parent})' before compinit in ~/.zshrc")


def _format_manual() -> Iterator[str]:
    """Yield the lines of the manual page. Its texts are those of ``--help``."""
    yield f'.TH SEQUENCER 1 "" "sequencer {__version__}"'
    yield from (".SH NAME", "sequencer \\- run AI agents step by step")
    yield from (".SH SYNOPSIS", ".B sequencer", "[OPTIONS] COMMAND [ARGS]...")
    with _make_root_context() as context:
        yield from (".SH DESCRIPTION", _escape_roff(context.command.help or ""), ".SH OPTIONS")
        yield from _format_options(context.command.params, context)
        yield ".SH COMMANDS"
        for name in program.COMMANDS:
            command = _find_command(context, name)
            with click.Context(command, context, name) as command_context:
                usage = command.get_usage(command_context)[len("Usage: ") :]
                yield from (f".SS {name}", f".B {_escape_roff(usage)}")
                body, examples = split_help(command.help)
                for paragraph in body:
                    yield from (".PP", _escape_roff(paragraph))
                yield from _format_options(
                    command.own if isinstance(command, Verb) else (), command_context
                )
                yield from (".PP", "Examples:", ".nf", *map(_escape_roff, examples), ".fi")


def _format_options(params: object, context: click.Context) -> Iterator[str]:
    for param in params if isinstance(params, (list, tuple)) else ():
        if isinstance(param, click.Option) and (record := help_record(param, context)):
            yield from (".TP", f".B {_escape_roff(record[0])}", _escape_roff(record[1]))


def _escape_roff(text: str) -> str:
    """Return *text* escaped for roff: no line is a request, and no character is a command."""
    lines = text.replace("\\", "\\\\").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line[:1] in {".", "'"} else line for line in lines)
