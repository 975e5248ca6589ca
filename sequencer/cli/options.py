"""The class of every command, its global options, and helpers for options of several commands.

A verb declares its own options. `Verb` adds the global options, which every verb takes before and
after its name; their values are set in the shared `Invocation`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial, reduce
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import sequencer
from sequencer import __version__
from sequencer.cli.context import Invocation
from sequencer.cli.views.text import one_line
from sequencer.errors import (
    ConfigurationError,
    SequencerError,
    StorageFailed,
    UsageRefused,
    set_global_options,
)
from sequencer.executors.guard import DUMPABLE, Prctl
from sequencer.files.textfile import MAX_RUN_NAME
from sequencer.store.identity import is_inside_agent

if TYPE_CHECKING:
    from sequencer.executors.redaction import Redaction


def _make_setter(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        # An option that is missing after the verb must not undo the one given before it.
        if value not in (None, False):
            setattr(context.ensure_object(Invocation), field, value)

    return callback


BUILT = Path(sequencer.__file__).with_name("built.txt")
"""The commit of the build; setup.py writes it when the package is built."""


def _set_run_name(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Set the name of the run in the invocation.

    Raises:
        click.BadParameter: the name is empty (for example from an unset variable of a script), is
            too long for a table, or contains a control character, which would act on terminals.
    """
    if name is not None and not name.isprintable():
        text = f"{name!a} has a line break or another control character"
        raise click.BadParameter(text, ctx=context, param=parameter)
    if name is not None and not 0 < len(name.strip()) <= MAX_RUN_NAME:
        text = f"a run's name has 1 to {MAX_RUN_NAME} characters, not {len(name.strip())}"
        raise click.BadParameter(text, ctx=context, param=parameter)
    _make_setter("run_name")(context, parameter, name)


def version_line() -> str:
    """Return the version, and the commit from which the package was built."""
    try:
        build = one_line(BUILT.read_text(encoding="ascii"))
    except (OSError, ValueError):
        # It was built without git, or is linked to its sources (pip install -e).
        build = "unknown"
    return f"sequencer {__version__} (commit {build})"


def _print_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        context.ensure_object(Invocation).echo(version_line())
        context.exit()


def _print_all_help(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        context.meta[ALL_HELP] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


Completes = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _read_names(context: click.Context, kind: str) -> set[str]:
    """Return the project's names of this *kind*; none if the project can't be read."""
    from sequencer.project import agents, flows  # noqa: PLC0415 - completion only

    invocation = context.ensure_object(Invocation)
    invocation.is_quiet, invocation.acts = True, False
    try:
        project = invocation.project()
        if kind == "runs":
            return set(project.run_names())
        if kind == "workflows":
            return set(project.settings.registry.names)
        if kind == "flows":
            return set(flows.all_flows(project))
        if kind == "agents":
            return set(agents.known_agents(project.settings))
        workflow = project.settings.default_workflow()
    except (SequencerError, OSError):
        return set()
    review = (workflow.review.step,) if workflow.review and kind == "steps" else ()
    return {step.name for step in (*workflow.steps, *review)}


def _make_completion_items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    # A name comes from the project, and the shell writes it to the terminal unchanged.
    matches = (name for name in names if name.startswith(incomplete) and name.isprintable())
    return [CompletionItem(name) for name in sorted(matches)]


def _make_completer(kind: str) -> Completes:
    return lambda context, _, incomplete: _make_completion_items(
        _read_names(context, kind), incomplete
    )


complete_runs, complete_workflows = _make_completer("runs"), _make_completer("workflows")
complete_flows, complete_positions = _make_completer("flows"), _make_completer("positions")
complete_steps, complete_agents = _make_completer("steps"), _make_completer("agents")


def complete_agents_for_steps(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return ``STEP=``, and ``STEP=AGENT`` once a step is typed."""
    step, has_step, _rest = incomplete.partition("=")
    names = _read_names(context, "agents" if has_step else "steps")
    words = [f"{step}={name}" if has_step else f"{name}=" for name in names]
    return _make_completion_items(words, incomplete)


JSON_OPTION = "is_json"
ALL_HELP = "sequencer.help_all"
"""Key in a context's `meta`: the help explains everything."""
SCREEN_LINES = 24


def _make_global_option(
    name: str, field: str, callback: Any = None, **attributes: Any
) -> click.Option:
    """Return a global option, whose value is set in the *field* of the `Invocation`."""
    setter = callback or _make_setter(field)
    return click.Option([name, field], expose_value=False, callback=setter, **attributes)


def global_options(*, has_json: bool = True) -> list[click.Option]:
    """Return new global options; without *has_json*, ``--json`` is left out."""
    options = [
        _make_global_option(
            "--config",
            "config",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="Use this file instead of the orchestration.yaml here or in a folder above.",
        ),
        _make_global_option(
            "--run",
            "run_name",
            _set_run_name,
            metavar="NAME",
            shell_complete=complete_runs,
            help="A named run instead of the default one.",
        ),
        _make_global_option(
            "--json", JSON_OPTION, is_flag=True, help="Print facts as JSON on standard output."
        ),
        _make_global_option(
            "--quiet", "is_quiet", is_flag=True, help="Print only errors and what you asked for."
        ),
        _make_global_option(
            "--verbose", "is_verbose", is_flag=True, help="Show the traceback of an error."
        ),
        _make_global_option(
            "--version",
            "version",
            _print_version,
            is_flag=True,
            is_eager=True,
            help="Print the version and exit.",
        ),
        _make_global_option(
            "--help-all",
            "help_all",
            _print_all_help,
            is_flag=True,
            is_eager=True,
            help="Explain everything, including rare options.",
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

    def __init__(
        self,
        *args: Any,
        has_json: bool = True,
        has_secrets: bool = False,
        first: Sequence[str] = (),
        more: Callable[[click.Command], None] | None = None,
        missing: Callable[[Invocation], Collection[str]] = lambda _: (),
        **kwargs: Any,
    ) -> None:
        """Take click's arguments; without *has_json*, the verb refuses ``--json``.

        ``--help`` shows only the options in *first*, if there are any; ``--help-all`` shows all.
        While a verb with *has_secrets* runs, only root can read its environment, so that agents
        can't.

        *more* adds the options of packages to the verb; it is called for an unknown option and for
        help. *missing* returns the parameters that only disabled plug-ins use.
        """
        super().__init__(*args, **kwargs)
        self.has_json = has_json
        self.has_secrets = has_secrets
        self.own = [param for param in self.params if isinstance(param, click.Option)]
        self.first = [option for option in self.own if not first or {*first} & {*option.opts}]
        self.params.extend(global_options(has_json=has_json))
        self._more, self._missing = more, missing

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args*; for an unknown option, check whether a package has it."""
        if self._more is None:
            return super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            # Completion also offers the options of packages.
            self._add_package_options()
        try:
            return super().parse_args(ctx, [*args])
        except click.NoSuchOption:
            if not self._add_package_options():
                raise
            return super().parse_args(ctx, args)

    def _add_package_options(self) -> bool:
        """Add the options of packages to this verb; return whether there are any."""
        core_count = len(self.params)
        if self._more is not None:
            self._more(self)
        options = [param for param in self.params[core_count:] if isinstance(param, click.Option)]
        self.first += options if self.first == self.own else []
        self.own += options
        return bool(options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb.

        Raises:
            click.UsageError: ``--json`` was given, but the verb would ignore it.
        """
        invocation = ctx.ensure_object(Invocation)
        config = invocation.config
        set_global_options(None if config is None else str(config), invocation.run_name)
        if not self.has_json and invocation.is_json:
            raise click.UsageError(f"{ctx.info_name} prints no facts, so it has no --json", ctx)
        # Inside an agent, the agent knows all these secrets already. And its leftover processes
        # are found by reading their environment.
        if self.has_secrets and not is_inside_agent():
            Prctl().set(DUMPABLE, 0)
        return super().invoke(ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the most important help on one screen; with ``--help-all``, everything."""
        self._add_package_options()
        hidden_names = self._missing(ctx.ensure_object(Invocation))
        self.own = [option for option in self.own if option.name not in hidden_names]
        self.first = [option for option in self.first if option.name not in hidden_names]
        body, examples = split_help(self.help)
        if ctx.meta.get(ALL_HELP):
            formatter.write(self._compose_help(ctx, formatter, body, examples, self.own))
            common = global_options(has_json=self.has_json)
            _write_options("Global options", common, ctx, formatter)
            return
        text, examples_left = "", len(examples)
        for count in (*range(len(body), 0, -1), *(1,) * examples_left):
            text = self._compose_help(
                ctx, formatter, body[:count], examples[:examples_left], self.first
            )
            if text.count("\n") <= SCREEN_LINES:
                break
            # If it is too long, drop paragraphs, then examples; all options stay.
            examples_left -= count == 1
        formatter.write(text)

    def _compose_help(
        self,
        ctx: click.Context,
        model_formatter: click.HelpFormatter,
        body: Sequence[str],
        examples: Sequence[str],
        options: Sequence[click.Option],
    ) -> str:
        """Return the help with these parts, and a line at the end if there is more."""
        formatter = click.HelpFormatter(
            width=model_formatter.width, max_width=model_formatter.width
        )
        self.format_usage(ctx, formatter)
        with formatter.indentation():
            for paragraph in body:
                formatter.write_paragraph()
                formatter.write_text(paragraph)
        _write_options("Options", options, ctx, formatter)
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in examples))
        if len(options) < len(self.own) or len(body) < len(split_help(self.help)[0]):
            formatter.write(f"\n'{ctx.command_path} --help-all' explains more.\n")
        return formatter.getvalue()


def split_help(text: str | None) -> tuple[list[str], list[str]]:
    """Return the paragraphs of a command's help *text*, and the lines of its examples."""
    body, _, examples = cleandoc(text or "").partition("\b\nExample")
    lines = [line.strip() for line in examples.splitlines()[1:]]
    return body.strip().split("\n\n"), lines


def _write_options(
    title: str,
    options: Iterable[click.Option],
    context: click.Context,
    formatter: click.HelpFormatter,
) -> None:
    if records := [record for option in options if (record := help_record(option, context))]:
        with formatter.section(title):
            formatter.write_dl(records)


def help_record(option: click.Option, context: click.Context) -> tuple[str, str] | None:
    """Return how *option* is typed, and its help with the range and the default in words."""
    record = option.get_help_record(context)
    if record is None:
        return None
    has_range = isinstance(option.type, (click.IntRange, click.FloatRange))
    remarks = [_format_bounds(option.type)] if has_range else []
    if option.show_default and option.default is not None:
        remarks.append(f"default {option.default}")
    words = "; ".join(filter(None, remarks))
    text = option.help or ""
    return record[0], f"{text.removesuffix('.')} ({words})." if words else text


def _format_bounds(kind: Any) -> str:
    """Return the bounds of *kind* in words, except bounds that no one types."""
    minimum, maximum = kind.min, kind.max
    if minimum is None or minimum < 0:
        return ""
    if maximum is not None and maximum < FAR:
        return f"{minimum} to {maximum}"
    return f"at least {minimum}" if minimum > 1 else ""


FAR = 2**31
"""A bound so large that no one types it."""


def verb(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Verb]:
    """Return a decorator that makes a function the verb *name*; `Verb` takes the *attributes*."""
    return click.command(name, cls=Verb, **attributes)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds *options* to a verb, in this order."""
    return lambda function: reduce(lambda verb, option: option(verb), reversed(options), function)


REHEARSE = click.option(
    "--rehearse",
    is_flag=True,
    help="Run no agent, even a named one: each step shows what it would ask, and counts as done.",
)
WORKFLOW = partial(click.option, "--workflow", metavar="NAME", shell_complete=complete_workflows)
REVIEW_EVERY = click.option(
    "--review-every",
    type=click.IntRange(-(2**31), 2**31 - 1),
    metavar="N",
    help="A review every N cycles; 0 is never.",
)
AGENT = click.option(
    "--agent",
    metavar="A",
    shell_complete=complete_agents,
    help="The agent for steps that do not name one.",
)
MONEY = click.FloatRange(min=0, min_open=True)
MAX_COST = click.option(
    "--max-cost", type=MONEY, metavar="USD", help="Limit for the cost of this invocation."
)
pass_invocation = click.make_pass_decorator(Invocation, ensure=True)
"""Gives a verb's function the `Invocation` as its first argument."""


LOOKED_AT_BYTES = 512


class NewFile(click.Path):
    """The type of an option that names a file to write. It never means standard output."""

    def __init__(self) -> None:
        """Accept any path; `save` checks the existing file."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. ``-`` is refused: in other programs it means standard output."""
        if os.fspath(value) == "-":
            self.fail("'-' is not a file; write './-' for a file with that name", param, ctx)
        return super().convert(value, param, ctx)


def save(
    path: Path, data: bytes, *, is_ours: Callable[[bytes], bool], what: str, mode: int | None = None
) -> None:
    """Write *data* to *path* atomically; an existing file is replaced only if *is_ours* accepts it.

    *is_ours* gets the first bytes of the existing file; *what* names the kind of file in errors.
    Without *mode*, the file gets the usual mode of new files.

    Raises:
        UsageRefused: *path* is another kind of file; a typo must not destroy it.
        StorageFailed: the file can't be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not (target.is_file() and is_ours(_read_beginning(target))):
            raise UsageRefused(
                f"the file exists and is not {what}, so it was left as it is",
                where=str(path),
                hint="name another file",
            )
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                # A file of mkstemp is readable only by its owner.
                os.fchmod(stream.fileno(), _default_file_mode() if mode is None else mode)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageFailed(f"can't be written: {error.strerror}", where=str(path)) from error


def _read_beginning(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(LOOKED_AT_BYTES)


def _default_file_mode() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


MAX_STATE_BYTES, MAX_BYTES = 100_000, 4 * 1024 * 1024


def read_state(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """Return the values by key, parsed as YAML: numbers and lists keep their types.

    ``KEY=@FILE`` takes the text of a file without parsing it.
    """
    from sequencer.files import yamlfile as reader  # noqa: PLC0415 - yaml only where it is needed

    state: dict[str, Any] = {}
    for assignment in values:
        key, separator, text = assignment.partition("=")
        if separator and key.startswith("_"):
            raise click.BadParameter(
                f"keys that start with '_', such as {key!r}, belong to the run; choose another key",
                ctx=context,
                param=parameter,
            )
        if not separator or not key:
            raise click.BadParameter(
                f"{assignment!r} is not KEY=VALUE", ctx=context, param=parameter
            )
        if text.startswith("@"):
            state[key] = read_text(Path(text[1:]), MAX_STATE_BYTES)
            continue
        try:
            state[key] = reader.parse_value(text, Path(f"--state {key}"))
        except ConfigurationError:
            # Text that is not YAML is used unchanged: people don't quote sentences.
            state[key] = text
    return state


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Return the text of the file *path*, which a person has named.

    Raises:
        ConfigurationError: the file can't be read.
        UsageRefused: the file has more than *most* bytes, or is not UTF-8.
    """
    try:
        # O_NONBLOCK: opening a fifo without a writer would block forever. A fifo with a writer,
        # such as the shell's <(…), is then read completely.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(fd, True)
        with os.fdopen(fd, "rb") as file:
            return decode_text(file.read(most + 1), str(path), most)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", where=str(path)) from error


def decode_text(data: bytes, where: str, most: int = MAX_BYTES) -> str:
    """Return *data* as text.

    Raises:
        UsageRefused: *data* has more than *most* bytes, or is not UTF-8.
    """
    if len(data) > most:
        raise UsageRefused(f"has more than {most} bytes", where=where)
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise UsageRefused("is not UTF-8", where=where, hint="save it as UTF-8") from None


def hide_in(redaction: Redaction, value: Any) -> Any:
    """Return *value* without the secrets that *redaction* knows, also inside lists and maps."""
    if isinstance(value, str):
        return redaction.hide_text(value)
    if isinstance(value, dict):
        return {hide_in(redaction, key): hide_in(redaction, item) for key, item in value.items()}
    if isinstance(value, list):
        return [hide_in(redaction, item) for item in value]
    # YAML turns a password that is all digits into a number.
    text = str(value)
    safe_text = redaction.hide_text(text)
    return value if safe_text == text else safe_text


STDIN = "-"


def read_argument(text: str) -> str:
    """Return the *text* of an argument; ``-`` means the text on standard input.

    Raises:
        UsageRefused: standard input is closed, too long, or not UTF-8.
    """
    if text != STDIN:
        return text
    if sys.stdin is None:
        raise UsageRefused("standard input is closed")
    return decode_text(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
