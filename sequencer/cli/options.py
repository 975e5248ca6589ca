"""The global options, which every verb takes before and after its name.

`Verb` is the class of every command. A verb declares its own options; the global ones are
added here, and their values land in the `Invocation` that all share.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sequencer import __version__
from sequencer.cli.context import Invocation


def _keep(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        # Absent behind the verb must not undo what stood before it.
        if value not in (None, False):
            setattr(context.ensure_object(Invocation), field, value)

    return callback


def _keep_run(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Keep the run's name, unless it has what no name has.

    Raises:
        click.BadParameter: it holds a control character, which would act on every terminal
            that it is shown on.
    """
    if name is not None and not name.isprintable():
        text = f"{name!a} holds a line end or another control character"
        raise click.BadParameter(text, ctx=context, param=parameter)
    _keep("run_name")(context, parameter, name)


def _print_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        context.ensure_object(Invocation).echo(f"sequencer {__version__}")
        context.exit()


def _complete_run(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[click.shell_completion.CompletionItem]:
    from sequencer.cli import completion  # noqa: PLC0415 - opens the project

    return completion.runs(context, incomplete)


JSON_OPTION = "is_json"


def global_options(*, has_json: bool = True) -> list[click.Option]:
    """Return fresh global options, without ``--json`` for verbs that print no facts."""
    options = [
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            metavar="PATH",
            expose_value=False,
            callback=_keep("config"),
            help="Use this file instead of searching orchestration.yaml upward.",
        ),
        click.Option(
            ["--run", "run_name"],
            metavar="NAME",
            expose_value=False,
            callback=_keep_run,
            shell_complete=_complete_run,
            help="A named run instead of the default one.",
        ),
        click.Option(
            ["--json", JSON_OPTION],
            is_flag=True,
            expose_value=False,
            callback=_keep(JSON_OPTION),
            help="Print facts as JSON on standard output.",
        ),
        click.Option(
            ["--quiet", "is_quiet"],
            is_flag=True,
            expose_value=False,
            callback=_keep("is_quiet"),
            help="Say only errors and what was asked for.",
        ),
        click.Option(
            ["--verbose", "is_verbose"],
            is_flag=True,
            expose_value=False,
            callback=_keep("is_verbose"),
            help="Show the traceback of an error.",
        ),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        ),
    ]
    return [option for option in options if has_json or option.name != JSON_OPTION]


class Verb(click.Command):
    """A command of ``sequencer``: its own options, then the global ones.

    >>> @click.command("sleep", cls=Verb, has_json=False)
    ... def sleep() -> None: "Do nothing."
    >>> "--run" in {name for option in sleep.params for name in option.opts}
    True
    """

    def __init__(self, *args: Any, has_json: bool = True, **kwargs: Any) -> None:
        """Take click's arguments; without *has_json* the verb refuses ``--json``."""
        super().__init__(*args, **kwargs)
        self.has_json = has_json
        self._own = [name for option in self.params for name in option.opts]
        self.params.extend(global_options(has_json=has_json))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; an option that it would ignore is refused."""
        if not self.has_json and ctx.ensure_object(Invocation).is_json:
            raise click.UsageError(f"{ctx.info_name} prints no facts, so it has no --json", ctx)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verb's own options apart from the global ones."""
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_own = parameter.opts[0] in self._own or parameter.name == "help"
                (own if is_own else common).append(record)
        for title, records in (("Options", own), ("Global options", common)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def verb(
    name: str, *, has_json: bool = True, **attributes: Any
) -> Callable[[Callable[..., Any]], Verb]:
    """Declare a function as the verb *name*; see `Verb`."""
    return click.command(name, cls=Verb, has_json=has_json, **attributes)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)
"""Gives a verb's function the `Invocation` as its first argument."""
