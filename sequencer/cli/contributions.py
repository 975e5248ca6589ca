"""What commands can show or do besides their own work: options that plug-ins contribute.

`plan` and `report` show many things. Each is a `Contribution`, and the options that were given
say which one is meant. A `Renderer` draws workflows, for every command that shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from sequencer import extensions, packages
from sequencer.cli.context import Invocation, ensure_available, tell
from sequencer.cli.options import NewFile
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
"""The commands to which packages contribute."""


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
        """Reject wrong types of fields where the package creates it."""
        ensure_fields(self, name=str, do=str, needs=str)
        ensure_fields(self, takes=tuple, options=tuple, shared=tuple, flags=tuple)

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
        # What it raises when it is called is handled as with any command of a package.
        with extensions.package_code(extensions.CONTRIBUTIONS, self.name):
            do = extensions.loaded(self.do)
            if not callable(do):
                raise TypeError(f"{self.do} is {packages.describe(do)}, and not a function")
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


_OF_PACKAGES: dict[str, list[Any]] = {}
"""What packages contribute, by command or group, once somebody has asked."""


def contributions_to(command: str) -> tuple[Contribution, ...]:
    """Return what is contributed to *command*, ours first, disabled plug-ins included.

    Whoever gives an option of a disabled plug-in is told why it does not work. Packages' are there
    after `add_options`.
    """
    own = extensions.ours(extensions.CONTRIBUTIONS, even_disabled=True)
    found = [one for name, one in own if name.startswith(f"{command}.")]
    return (*found, *_OF_PACKAGES.get(command, ()))


def renderers() -> tuple[Renderer, ...]:
    """Return what can draw a workflow; see `contributions_to`."""
    own = extensions.ours(extensions.RENDERERS, even_disabled=True)
    return (*(one for _, one in own), *_OF_PACKAGES.get(extensions.RENDERERS, ()))


def more_options(name: str, *, draws: bool = False) -> dict[str, Any]:
    """Return what `verb` needs for a command, called *name*, that others contribute to."""
    return {
        "more": partial(add_options, name=name, draws=draws),
        "missing": partial(unavailable_options, name=name, draws=draws),
    }


def add_options(command: click.Command, name: str, *, draws: bool = False) -> None:
    """Give *command*, which is called *name*, the options that packages contribute.

    They are looked for only if a command line has an unknown option, and for help. Whatever can't
    be used is reported and left out.
    """
    if name in _OF_PACKAGES:
        return
    config = click.get_current_context().ensure_object(Invocation).config
    extensions.configure(disabled_in(config))
    errors = (error.in_one_line for error in _add_contributions(command, name, draws=draws))
    for text in dict.fromkeys(errors):
        # Shell completion prints options only.
        if not click.get_current_context().resilient_parsing:
            tell(f"notice: {text}")


def _add_contributions(
    command: click.Command, name: str, *, draws: bool = False
) -> list[ConfigurationError]:
    """Give *command* the options of packages; return why some were left out."""
    errors: list[ConfigurationError] = []
    added = _OF_PACKAGES[name] = []
    for point, one in extensions.from_packages(extensions.CONTRIBUTIONS, errors.append):
        if point.name.partition(".")[0] == name:
            # Its package is looked up by the name of the entry point.
            named: Contribution = replace(one, name=point.name)
            _add(command, named, point, added, errors)
    if draws:
        drawings = _OF_PACKAGES.setdefault(extensions.RENDERERS, [])
        for point, one in extensions.from_packages(extensions.RENDERERS, errors.append):
            _add(command, one, point, drawings, errors)
    own = f"{extensions.CONTRIBUTIONS}: {name}."
    return [one for one in errors if (one.where or "").startswith((own, extensions.RENDERERS))]


def _add(
    command: click.Command,
    one: Contribution | Renderer,
    point: EntryPoint,
    added: list[Any],
    errors: list[ConfigurationError],
) -> None:
    """Give *command* the options of *one*, or add to *errors* why not."""
    taken = {word for param in command.params for word in _words_of(param)}
    # An option such as `SVG`, which several share, is there once.
    shared = {*options_of([*contributions_to(command.name or ""), *renderers()])}
    try:
        with extensions.package_code(point.group, point.name, point):
            found = _params_of(one.options)
            fresh = [
                param
                for option, params in found
                for param in params
                if option not in shared or not taken.issuperset(_words_of(param))
            ]
        if (what := _wrong_with(fresh, taken, command)) is not None:
            raise packages.package_error(packages.name_of(point), what, packages.place_of(point))
    except ConfigurationError as error:
        errors.append(error)
        return
    command.params.extend(fresh)
    added.append(one)


def _wrong_with(
    params: Iterable[click.Parameter], taken: set[str], command: click.Command
) -> str | None:
    """Return why *command*, in which the words *taken* are in use, can't have *params*."""
    for param in params:
        if param.required:
            # Without it, none of the other options could be used.
            return f"has the option {param.opts[0]}, which is required: no added option can be"
        for word in _words_of(param):
            if word in taken:
                return f"has the option {word}, which {command.name!r} has already"
    return None


def _words_of(param: click.Parameter) -> tuple[str, ...]:
    return (*param.opts, *param.secondary_opts, param.name or "")


def _params_of(options: Iterable[Option]) -> list[tuple[Option, list[click.Parameter]]]:
    """Return what each of *options* gives a command."""
    found = []
    for option in options:
        made = click.Command(None, params=[])
        option(made)
        found.append((option, made.params))
    return found


def contribution_errors() -> Iterator[ConfigurationError]:
    """Yield why contributions of packages are left out, for `check`."""
    for name in OPEN:
        command = getattr(import_module(f"sequencer.cli.{name}"), name)
        yield from _add_contributions(command, name)
    for point in extensions.entries(extensions.CONTRIBUTIONS):
        head, dot, _ = point.name.partition(".")
        if not dot or head not in OPEN:
            package = packages.name_of(point)
            yield ConfigurationError(
                f"the package {package!r} is ignored here: the name {point.name!r} "
                "does not start with a command that takes contributions",
                where=packages.place_of(point),
                hint=f"use {', '.join(f'{one}.NAME' for one in OPEN)}",
            )


def own_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of *given* that are options of the command *name* itself."""
    ways = contributions_to(name)
    found = [params for way in ways for _, params in _params_of(way.options)]
    added = {param.name for params in found for param in params}
    return {key: value for key, value in given.items() if key not in added}


def unavailable_options(invocation: Invocation, name: str, *, draws: bool = False) -> set[str]:
    """Return the parameters of the command *name* that only disabled plug-ins give a meaning."""
    missing, useful = set[str](), set[str]()
    for one in contributions_to(name):
        (useful if one.is_available(invocation) else missing).update(one.takes)
    found = missing - useful
    for drawing in renderers() if draws else ():
        plugin = extensions.plugin_at(drawing.graph)
        if plugin is not None and not extensions.is_available(plugin):
            found.update(drawing.names)
    return found


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
        PluginUnavailable: nothing is contributed to it.
    """
    if not (ways or otherwise):
        known = extensions.OURS[extensions.CONTRIBUTIONS]
        plugin = next(
            place.partition(".")[0]
            for name, place in known.items()
            if name.startswith(f"{command}.")
        )
        raise extensions.PluginUnavailable(f"the command {command!r}", plugin)
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


def contributed(command: str, given: Mapping[str, Any]) -> Contribution | None:
    """Return what a plug-in contributes to *command*, if *given* asks for it.

    Raises:
        UsageRefused: an option means nothing without another one.
    """
    asked = _asked(given)
    for way in contributions_to(command):
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
