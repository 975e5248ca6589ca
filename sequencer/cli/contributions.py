"""What commands can show or do besides their own work: options that plug-ins contribute.

`plan` and `report` show many things. Each is a `Contribution`, and the options that were given
say which one is meant. A `Renderer` draws workflows, for every command that shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from sequencer import extensions, packages
from sequencer.cli.context import Invocation, ensure_available
from sequencer.cli.options import NewFile, Verb
from sequencer.errors import ConfigurationError, UsageRefused
from sequencer.packages import ensure_fields
from sequencer.project.enabled_plugins import disabled_in

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Option = Callable[[Any], Any]
"""A decorator of click that gives a command one option."""

SVG = click.option("--svg", type=NewFile(), metavar="FILE", help="Draw it into FILE, as SVG.")
PNG = click.option("--png", type=NewFile(), metavar="FILE", help="Draw it into FILE, as PNG.")
WIDTH = click.option(
    "--width",
    type=click.IntRange(min=60, max=1000),
    metavar="N",
    help="Width of the text, in columns.",
)


OPEN = ("plan", "report", "tick")
"""The commands to which packages contribute; each is an `OpenVerb`."""


class Contribution(Struct, frozen=True):
    """One thing that a command can show or do, with its options."""

    name: str
    do: str
    """``MODULE:FUNCTION``, imported when it is called, with the invocation and what it takes."""
    takes: tuple[str, ...]
    """Parameters that mean something to it."""
    options: tuple[Option, ...] = ()
    """Those of them that the command does not have already."""
    shared: tuple[str, ...] = ()
    """Of what it takes, what others take too: giving it alone does not choose this one."""
    flags: tuple[str, ...] = ()
    """Of what it takes, what only chooses it; the function does not get it."""
    needs: str = ""
    """The flag without which its other options mean nothing; empty: each chooses it."""

    def __post_init__(self) -> None:
        """Refuse what is no contribution, where it is written."""
        ensure_fields(self, name=str, do=str, needs=str)
        ensure_fields(self, takes=tuple, options=tuple, shared=tuple, flags=tuple)
        _params_of(self.options)

    def is_available(self, invocation: Invocation) -> bool:
        """Return whether the project of *invocation* may use its plug-in."""
        try:
            ensure_available(invocation.config, extensions.plugin_at(self.do), self.name)
        except extensions.PluginUnavailable:
            return False
        return True

    def __call__(self, invocation: Invocation, given: Mapping[str, Any]) -> int | None:
        """Show it, with what it takes of *given*.

        Raises:
            PluginUnavailable: its plug-in is disabled.
        """
        option = next((name for name in self.takes if given.get(name)), self.name)
        ensure_available(invocation.config, extensions.plugin_at(self.do), _typed(option))
        # What another plug-in adds is not there without it.
        names = (name for name in self.takes if name in given and name not in self.flags)
        taken = {name: given[name] for name in names}
        with extensions.package_code(extensions.CONTRIBUTIONS, self.name):
            do = extensions.loaded(self.do)
        shown: int | None = do(invocation, **taken)
        return shown


class Renderer(Struct, frozen=True):
    """Draws workflows."""

    names: tuple[str, ...]
    """Parameters, each of which asks for one."""
    options: tuple[Option, ...]
    graph: str
    """``MODULE:FUNCTION`` that draws a graph: called with the invocation, its `FlowView`, the
    `GraphFile` that it was read from or None, and the parameters with their values."""
    line: str
    """The same for a workflow of steps in a row: called with the invocation, the `Workflow`, the
    parameters, and what to do about a drawing that only graphs have."""


class OpenVerb(Verb):
    """A verb to which packages contribute.

    They are asked only for help, and for an option that nothing of ours has: their metadata takes
    long to read, and one that is broken must not be in the way of the others' options.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of `Verb`."""
        super().__init__(*args, **kwargs)
        self._ours = (self.params, self.own, self.first)
        self.added: tuple[Contribution, ...] = ()
        self.refused: tuple[ConfigurationError, ...] = ()

    def ways(self) -> tuple[Contribution, ...]:
        """Return what there is to show or do, ours first."""
        return (*contributions_to(self.name or ""), *self.added)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`."""
        if ctx.resilient_parsing or self._has_unknown(ctx, args):
            self.ask_packages(ctx, is_quiet=ctx.resilient_parsing)
        return super().parse_args(ctx, args)

    def _has_unknown(self, ctx: click.Context, args: list[str]) -> bool:
        """Return whether *args* have an option that is not known yet; nothing is kept of them."""
        try:
            self.make_parser(ctx).parse_args([*args])
        except click.NoSuchOption:
            return True
        except click.UsageError:
            return False
        return False

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `Verb.format_help`; the options of packages are explained, too."""
        self.ask_packages(ctx)
        super().format_help(ctx, formatter)

    def ask_packages(self, ctx: click.Context, *, is_quiet: bool = False) -> None:
        """Take what the packages contribute; of what is refused a notice tells."""
        invocation = ctx.ensure_object(Invocation)
        extensions.configure(disabled_in(invocation.config))
        # A command line is read once, but a test or a program may read several.
        self.params, self.own, self.first = map(list, self._ours)
        self.added = ()
        refused = []
        for point in extensions.from_packages(extensions.CONTRIBUTIONS):
            if point.name.partition(".")[0] == self.name:
                try:
                    self._add(point)
                except ConfigurationError as error:
                    refused.append(error)
        if not is_quiet and not self.refused:
            invocation.notices(error.in_one_line for error in refused)
        self.refused = tuple(refused)

    def _add(self, point: EntryPoint) -> None:
        """Take what *point* contributes.

        Raises:
            ConfigurationError: it can't be loaded, or it has an option that is there already.
        """
        # By the name of its entry point its package is found again.
        made: Contribution = replace(extensions.load(point), name=point.name)
        # What several ways share, such as `SVG`, is one option.
        own = {option for way in (*self.ways(), *renderers()) for option in way.options}
        names = {one.name for one in self.params}
        found = [
            one
            for option in made.options
            for one in _params_of((option,))
            if option not in own or one.name not in names
        ]
        taken = {text for one in self.params for text in (*one.opts, *one.secondary_opts, one.name)}
        for one in found:
            same = taken.intersection((*one.opts, *one.secondary_opts, one.name))
            if same:
                what = f"has an option {max(one.opts, key=len)!r}, which {self.name} has already"
                raise packages.fault(packages.name_of(point), what, packages.place_of(point))
        self.added = (*self.added, made)
        self.params.extend(found)
        options = [one for one in found if isinstance(one, click.Option)]
        self.own.extend(options)
        self.first.extend(options)

    def values_of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of *given* that no contribution has added."""
        added = {one.name for way in self.ways() for one in _params_of(way.options)}
        return {name: value for name, value in given.items() if name not in added}


def open_verb(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], OpenVerb]:
    """Declare a function as the verb *name*, to which packages contribute; see `Verb`."""
    return click.command(name, cls=OpenVerb, **attributes)


def ways() -> tuple[Contribution, ...]:
    """Return what the present command, an `OpenVerb`, can show or do."""
    command = click.get_current_context().command
    return command.ways() if isinstance(command, OpenVerb) else ()


def refusals() -> Iterator[ConfigurationError]:
    """Yield why what packages contribute is refused, or ignored."""
    for name in OPEN:
        command: OpenVerb = getattr(import_module(f"sequencer.cli.{name}"), name)
        command.ask_packages(click.Context(command), is_quiet=True)
        yield from command.refused
    for point in extensions.from_packages(extensions.CONTRIBUTIONS):
        command_name, dot, _ = point.name.partition(".")
        if not dot or command_name not in OPEN:
            package, place = packages.name_of(point), packages.place_of(point)
            yield ConfigurationError(
                f"the package {package!r} is ignored here: its entry is not named COMMAND.NAME "
                "with a command that takes contributions",
                where=place,
                hint=f"commands that do: {', '.join(OPEN)}",
            )


def _params_of(options: Sequence[Option]) -> list[click.Parameter]:
    """Return what the decorators *options* make.

    Raises:
        TypeError: one is not an option of click.
    """

    def nobody() -> None:
        """Take the options."""

    for option in reversed(options):
        if not callable(option):
            raise TypeError(f"{packages.shown(option)} is not a decorator, as click.option makes")
        option(nobody)
    found: list[click.Parameter] = getattr(nobody, "__click_params__", [])
    return found[::-1]


def contributions_to(command: str) -> tuple[Contribution, ...]:
    """Return what our plug-ins contribute to *command*, disabled ones included.

    Whoever gives an option of a disabled plug-in is told why it does not work.
    """
    found = extensions.ours(extensions.CONTRIBUTIONS, even_disabled=True)
    return tuple(one for name, one in found if name.startswith(f"{command}."))


def renderers() -> tuple[Renderer, ...]:
    """Return what can draw a workflow; see `contributions_to`."""
    return tuple(one for _, one in extensions.ours(extensions.RENDERERS, even_disabled=True))


def options_of(ways: Iterable[Contribution | Renderer]) -> list[Option]:
    """Return the options of *ways*, those that several share once."""
    return list(dict.fromkeys(option for way in ways for option in way.options))


def draw_graph(invocation: Invocation, view: Any, source: Any, given: Mapping[str, Any]) -> None:
    """Draw *view* in each way that *given* asks for; see `Renderer.graph`."""
    for one in _asked_for(invocation, given):
        extensions.loaded(one.graph)(invocation, view, source, _of(one, given))


def draw_line(invocation: Invocation, workflow: Any, given: Mapping[str, Any], hint: str) -> None:
    """Draw *workflow*, which is no graph, in each way that *given* asks for."""
    for one in _asked_for(invocation, given):
        extensions.loaded(one.line)(invocation, workflow, _of(one, given), hint)


def _asked_for(invocation: Invocation, given: Mapping[str, Any]) -> list[Renderer]:
    found = [one for one in renderers() if any(given.get(name) for name in one.names)]
    for one in found:
        option = next(name for name in one.names if given.get(name))
        ensure_available(invocation.config, extensions.plugin_at(one.graph), _typed(option))
    return found


def _of(drawing: Renderer, given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given.get(name) for name in drawing.names}


def chosen(
    command: str,
    ways: Sequence[Contribution],
    given: Mapping[str, Any],
    otherwise: Sequence[Contribution],
) -> Contribution:
    """Return what *given* asks *command* to show: the first of *ways* that it chooses.

    If it chooses none, that is the first of *otherwise* that takes all of it, or the last.

    Raises:
        UsageRefused: an option means nothing to it.
    """
    asked = _asked(given)
    own = (way for way in ways if {*asked} & {*way.takes} - {*way.shared})
    fitting = (way for way in otherwise if {*asked} <= {*way.takes})
    way = next(own, None) or next(fitting, None) or [*ways, *otherwise][-1]
    _ensure_needed(way, asked)
    for name in asked:
        if name not in way.takes:
            first = next((one for one in asked if one in way.takes), way.takes[0])
            said = f"{_typed(name)} and {_typed(first)} can't be used together"
            raise UsageRefused(said, where=f"sequencer {command}")
    return way


def contributed(given: Mapping[str, Any]) -> Contribution | None:
    """Return what is contributed to the present command, if *given* asks for it.

    Raises:
        UsageRefused: an option means nothing without another one.
    """
    asked = _asked(given)
    for way in ways():
        if {*asked} & {*way.takes} - {*way.shared}:
            _ensure_needed(way, asked)
            return way
    return None


def _asked(given: Mapping[str, Any]) -> list[str]:
    # Of --no-team as well as of --team something is said; of a flag only that it was given.
    pairs = {
        one.name
        for one in click.get_current_context().command.params
        if isinstance(one, click.Option) and one.secondary_opts
    }
    return [
        name
        for name, value in given.items()
        if value not in (None, ()) and (value is not False or name in pairs)
    ]


def _ensure_needed(way: Contribution, asked: Sequence[str]) -> None:
    if way.needs and way.needs not in asked:
        first = next(name for name in asked if name in way.takes and name not in way.shared)
        raise UsageRefused(f"works only with {_typed(way.needs)}", where=_typed(first))


def _typed(parameter: str) -> str:
    """Return how a person types *parameter* of the present command."""
    for one in click.get_current_context().command.params:
        if one.name == parameter:
            is_option = isinstance(one, click.Option)
            return max(one.opts, key=len) if is_option else one.human_readable_name.strip("[]")
    return f"--{parameter}"
