"""The global options, which every verb takes before and after its name.

`Verb` is the class of every command. A verb declares its own options; the global ones are
added here, and their values land in the `Invocation` that all share.
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
from sequencer.errors import ConfigurationError, SequencerError, StorageFailed, UsageRefused
from sequencer.executors.guard import DUMPABLE, Prctl
from sequencer.store.identity import is_inside_agent

if TYPE_CHECKING:
    from sequencer.executors.redaction import Redaction


def _keep(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        # Absent behind the verb must not undo what stood before it.
        if value not in (None, False):
            setattr(context.ensure_object(Invocation), field, value)

    return callback


MAX_RUN_NAME = 100
BUILT = Path(sequencer.__file__).with_name("built.txt")
"""Written when a package is built, see setup.py."""


def _keep_run(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Keep the run's name, unless it has what no name has.

    Raises:
        click.BadParameter: it is empty, as a variable is that a script has not set, or too long
            for a table; or it holds a control character, which would act on every terminal
            that it is shown on.
    """
    if name is not None and not name.isprintable():
        text = f"{name!a} has a line break or another control character"
        raise click.BadParameter(text, ctx=context, param=parameter)
    if name is not None and not 0 < len(name.strip()) <= MAX_RUN_NAME:
        text = f"a run's name has 1 to {MAX_RUN_NAME} characters, not {len(name.strip())}"
        raise click.BadParameter(text, ctx=context, param=parameter)
    _keep("run_name")(context, parameter, name)


def version_line() -> str:
    """Return the version, and the commit that the package was built from, as its file says."""
    try:
        built = one_line(BUILT.read_text(encoding="ascii"))
    except (OSError, ValueError):
        # Built without git, or linked to its sources (pip install -e).
        built = "unknown"
    return f"sequencer {__version__} (commit {built})"


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


def _names(context: click.Context, what: str) -> set[str]:
    """Return *what* there is: asked of the project, and nothing if that is broken."""
    from sequencer.project import agents, flows  # noqa: PLC0415 - completion only

    invocation = context.ensure_object(Invocation)
    invocation.is_quiet, invocation.acts = True, False
    try:
        project = invocation.project()
        if what == "runs":
            return set(project.run_names())
        if what == "workflows":
            return set(project.settings.registry.names)
        if what == "flows":
            return set(flows.all_flows(project))
        if what == "agents":
            return set(agents.known_agents(project.settings))
        workflow = project.settings.chosen_workflow()
    except (SequencerError, OSError):
        return set()
    review = (workflow.review.step,) if workflow.review and what == "steps" else ()
    return {step.name for step in (*workflow.steps, *review)}


def _offered(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    # A name is anybody's, and the shell writes it to the terminal as it is.
    shown = (name for name in names if name.startswith(incomplete) and name.isprintable())
    return [CompletionItem(name) for name in sorted(shown)]


def _offering(what: str) -> Completes:
    return lambda context, _, incomplete: _offered(_names(context, what), incomplete)


complete_runs, complete_workflows = _offering("runs"), _offering("workflows")
complete_flows, complete_positions = _offering("flows"), _offering("positions")
complete_steps, complete_agents = _offering("steps"), _offering("agents")


def complete_agents_for_steps(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return ``STEP=``, and ``STEP=AGENT`` once a step is typed."""
    step, has_step, _rest = incomplete.partition("=")
    names = _names(context, "agents" if has_step else "steps")
    words = [f"{step}={name}" if has_step else f"{name}=" for name in names]
    return _offered(words, incomplete)


JSON_OPTION = "is_json"
ALL_HELP = "sequencer.help_all"
"""In a context's `meta`: everything is to be explained."""
SCREEN_LINES = 24


def _kept(name: str, field: str, callback: Any = None, **attributes: Any) -> click.Option:
    """Return a global option, which lands in the *field* of the `Invocation`."""
    keep = callback or _keep(field)
    return click.Option([name, field], expose_value=False, callback=keep, **attributes)


def global_options(*, has_json: bool = True) -> list[click.Option]:
    """Return fresh global options, without ``--json`` for verbs that print no facts."""
    options = [
        _kept(
            "--config",
            "config",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="Use this file instead of the orchestration.yaml here or in a folder above.",
        ),
        _kept(
            "--run",
            "run_name",
            _keep_run,
            metavar="NAME",
            shell_complete=complete_runs,
            help="A named run instead of the default one.",
        ),
        _kept("--json", JSON_OPTION, is_flag=True, help="Print facts as JSON on standard output."),
        _kept(
            "--quiet", "is_quiet", is_flag=True, help="Print only errors and what you asked for."
        ),
        _kept("--verbose", "is_verbose", is_flag=True, help="Show the traceback of an error."),
        _kept(
            "--version",
            "version",
            _print_version,
            is_flag=True,
            is_eager=True,
            help="Print the version and exit.",
        ),
        _kept(
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
        """Take click's arguments; without *has_json* the verb refuses ``--json``.

        ``--help`` shows the options *first*, or all; ``--help-all`` the others too. Of a verb
        that *has_secrets*, and lives beside agents, only root can read the environment.

        *more* gives the verb the options that packages contribute; it is called for an unknown
        option and for help. *missing* returns the parameters that only disabled plug-ins use.
        """
        super().__init__(*args, **kwargs)
        self.has_json = has_json
        self.has_secrets = has_secrets
        self.own = [one for one in self.params if isinstance(one, click.Option)]
        self.first = [one for one in self.own if not first or {*first} & {*one.opts}]
        self.params.extend(global_options(has_json=has_json))
        self._more, self._missing = more, missing

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args*; an option that is unknown may be of a package."""
        if self._more is None:
            return super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            # Completion offers the options of packages, too.
            self._extended()
        try:
            return super().parse_args(ctx, [*args])
        except click.NoSuchOption:
            if not self._extended():
                raise
            return super().parse_args(ctx, args)

    def _extended(self) -> bool:
        """Return whether packages have given this verb options that it did not have."""
        before = len(self.params)
        if self._more is not None:
            self._more(self)
        added = [one for one in self.params[before:] if isinstance(one, click.Option)]
        self.first += added if self.first == self.own else []
        self.own += added
        return bool(added)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; an option that it would ignore is refused."""
        if not self.has_json and ctx.ensure_object(Invocation).is_json:
            raise click.UsageError(f"{ctx.info_name} prints no facts, so it has no --json", ctx)
        # Inside an agent there is no secret that the agent lacks, and what it leaves behind
        # must be found by its environment.
        if self.has_secrets and not is_inside_agent():
            Prctl().set(DUMPABLE, 0)
        return super().invoke(ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what one needs first on one screen; with ``--help-all`` everything."""
        self._extended()
        hidden = self._missing(ctx.ensure_object(Invocation))
        self.own = [one for one in self.own if one.name not in hidden]
        self.first = [one for one in self.first if one.name not in hidden]
        body, examples = parts_of(self.help)
        if ctx.meta.get(ALL_HELP):
            formatter.write(self._explained(ctx, formatter, body, examples, self.own))
            common = global_options(has_json=self.has_json)
            _write_options("Global options", common, ctx, formatter)
            return
        text, most = "", len(examples)
        for count in (*range(len(body), 0, -1), *(1,) * most):
            text = self._explained(ctx, formatter, body[:count], examples[:most], self.first)
            if text.count("\n") <= SCREEN_LINES:
                break
            # The options stay; first the remarks give way to them, then the examples.
            most -= count == 1
        formatter.write(text)

    def _explained(
        self,
        ctx: click.Context,
        like: click.HelpFormatter,
        body: Sequence[str],
        examples: Sequence[str],
        options: Sequence[click.Option],
    ) -> str:
        """Return the help that has these parts, and says if there is more."""
        formatter = click.HelpFormatter(width=like.width, max_width=like.width)
        self.format_usage(ctx, formatter)
        with formatter.indentation():
            for paragraph in body:
                formatter.write_paragraph()
                formatter.write_text(paragraph)
        _write_options("Options", options, ctx, formatter)
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in examples))
        if len(options) < len(self.own) or len(body) < len(parts_of(self.help)[0]):
            formatter.write(f"\n'{ctx.command_path} --help-all' explains more.\n")
        return formatter.getvalue()


def parts_of(text: str | None) -> tuple[list[str], list[str]]:
    """Return the paragraphs of a command's help, and the lines of its examples."""
    body, _, examples = cleandoc(text or "").partition("\b\nExample")
    lines = [line.strip() for line in examples.splitlines()[1:]]
    return body.strip().split("\n\n"), lines


def _write_options(
    title: str,
    options: Iterable[click.Option],
    context: click.Context,
    formatter: click.HelpFormatter,
) -> None:
    if records := [record for option in options if (record := record_of(option, context))]:
        with formatter.section(title):
            formatter.write_dl(records)


def record_of(option: click.Option, context: click.Context) -> tuple[str, str] | None:
    """Return how *option* is typed and what it does, its range and default in words."""
    record = option.get_help_record(context)
    if record is None:
        return None
    has_range = isinstance(option.type, (click.IntRange, click.FloatRange))
    said = [_range(option.type)] if has_range else []
    if option.show_default and option.default is not None:
        said.append(f"default {option.default}")
    words = "; ".join(filter(None, said))
    text = option.help or ""
    return record[0], f"{text.removesuffix('.')} ({words})." if words else text


def _range(kind: Any) -> str:
    """Return the bounds of *kind* in words, as far as anybody would meet them."""
    low, high = kind.min, kind.max
    if low is None or low < 0:
        return ""
    if high is not None and high < FAR:
        return f"{low} to {high}"
    return f"at least {low}" if low > 1 else ""


FAR = 2**31
"""A bound that nobody types."""


def verb(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Verb]:
    """Declare a function as the verb *name*; see `Verb` for the *attributes*."""
    return click.command(name, cls=Verb, **attributes)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what gives a verb *options*, in this order."""
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


REHEARSE = click.option(
    "--rehearse",
    is_flag=True,
    help="Run no agent, whatever names one: each step shows what it would ask, and counts as done.",
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
    """The type of an option that names the file to write; what it writes is never printed."""

    def __init__(self) -> None:
        """Take any path; `save` looks at what is there."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; ``-`` elsewhere is standard output, so nobody means a file by it."""
        if os.fspath(value) == "-":
            self.fail("'-' is not a file; write './-' for a file with that name", param, ctx)
        return super().convert(value, param, ctx)


def save(
    path: Path, data: bytes, *, is_ours: Callable[[bytes], bool], what: str, mode: int | None = None
) -> None:
    """Write *data* to *path*, all of it or nothing, in place of an earlier file of the kind.

    *is_ours* is asked about the beginning of what is there; *what* names the kind. The
    file's *mode* is as new files have it, unless one is given.

    Raises:
        UsageRefused: *path* is something else, which a slip of the keyboard must not
            destroy.
        StorageFailed: it can't be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not (target.is_file() and is_ours(_beginning(target))):
            raise UsageRefused(
                f"the file exists and is not {what}, so it was left as it is",
                where=str(path),
                hint="name another file",
            )
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                # What mkstemp makes is for the owner only.
                os.fchmod(stream.fileno(), _usual_mode() if mode is None else mode)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageFailed(f"can't be written: {error.strerror}", where=str(path)) from error


def _beginning(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(LOOKED_AT_BYTES)


def _usual_mode() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


MAX_STATE_BYTES, MAX_BYTES = 100_000, 4 * 1024 * 1024


def read_state(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """Return the values by key; what is YAML for a number, a list and so on is one.

    ``KEY=@FILE`` takes a file's text as it is.
    """
    from sequencer.files import yamlfile as reader  # noqa: PLC0415 - yaml only where it is needed

    found: dict[str, Any] = {}
    for given in values:
        key, separator, text = given.partition("=")
        if not separator or not key or key.startswith("_"):
            raise click.BadParameter(f"{given!r} is not KEY=VALUE", ctx=context, param=parameter)
        if text.startswith("@"):
            found[key] = read_text(Path(text[1:]), MAX_STATE_BYTES)
            continue
        try:
            found[key] = reader.parse_value(text, Path(f"--state {key}"))
        except ConfigurationError:
            # What is no YAML is a text, as people write it.
            found[key] = text
    return found


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Return the text in *path*, which a person has named.

    Raises:
        ConfigurationError: it can't be read.
        UsageRefused: it has more than *most* bytes, or is not UTF-8.
    """
    try:
        # To open a fifo that nobody writes to would last forever; one that somebody writes
        # to, as the shell's <(…) is, is read to its end.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(fd, True)
        with os.fdopen(fd, "rb") as file:
            return decoded(file.read(most + 1), str(path), most)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", where=str(path)) from error


def decoded(data: bytes, where: str, most: int = MAX_BYTES) -> str:
    """Return *data* as text; see `read_text`."""
    if len(data) > most:
        raise UsageRefused(f"has more than {most} bytes", where=where)
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise UsageRefused("is not UTF-8", where=where, hint="save it as UTF-8") from None


def hide_in(redaction: Redaction, value: Any) -> Any:
    """Return *value* without the secrets that *redaction* knows, in lists and maps as well."""
    if isinstance(value, str):
        return redaction.hide_text(value)
    if isinstance(value, dict):
        return {hide_in(redaction, key): hide_in(redaction, one) for key, one in value.items()}
    if isinstance(value, list):
        return [hide_in(redaction, one) for one in value]
    # A password of digits alone is a number by now.
    text = str(value)
    safe = redaction.hide_text(text)
    return value if safe == text else safe


STDIN = "-"


def said(text: str) -> str:
    """Return the text of an argument; ``-`` is standard input.

    Raises:
        UsageRefused: standard input is closed, too long, or not UTF-8.
    """
    if text != STDIN:
        return text
    if sys.stdin is None:
        raise UsageRefused("standard input is closed")
    return decoded(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
