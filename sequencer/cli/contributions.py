"""What plug-ins and packages add to commands: options, and what these options show or do.

Each thing that a command can show is a `Contribution`; the given options decide which one is
shown. A `Renderer` draws workflows, for every command that shows one. It relies on the entry
points of installed packages. Not promised: that a package's contribution works; one that can't be
loaded is reported and left out.
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
from sequencer.cli.context import Invocation, ensure_available, show_message
from sequencer.cli.options import NewFile
from sequencer.errors import ConfigurationError, UsageRefused
from sequencer.packages import ensure_fields
from sequencer.project.enabled_plugins import read_disabled

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Option = Callable[[Any], Any]
"""A click decorator that adds one option to a command."""

SVG = click.option("--svg", type=NewFile(), metavar="FILE", help="Draw it into FILE, as SVG.")
PNG = click.option("--png", type=NewFile(), metavar="FILE", help="Draw it into FILE, as PNG.")
WIDTH = click.option(
    "--width",
    type=click.IntRange(min=60, max=1000),
    metavar="N",
    help="Width of the text, in columns.",
)


OPEN = ("plan", "report", "tick")
"""The commands to which packages may contribute."""


class Contribution(Struct, frozen=True):
    """One thing that a command can show or do, with its options."""

    name: str
    do: str
    """``MODULE:FUNCTION``, imported on the first call. It gets the invocation and the parameters in
    `takes`, except `flags`."""
    takes: tuple[str, ...]
    """The parameters that it uses."""
    options: tuple[Option, ...] = ()
    """The options for the parameters that the command itself does not have."""
    shared: tuple[str, ...] = ()
    """Parameters in `takes` that other contributions take too. They alone don't select it."""
    flags: tuple[str, ...] = ()
    """Parameters in `takes` that only select it; the function does not get them."""
    needs: str = ""
    """The flag that its other options require; empty: each option selects it."""

    def __post_init__(self) -> None:
        """Reject fields of a wrong type here, so that the traceback shows the package's code."""
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
        """Call its function with the parameters of *given* that it takes.

        Raises:
            PluginUnavailable: its plug-in is disabled.
        """
        option = next((name for name in self.takes if given.get(name)), self.name)
        ensure_available(invocation.config, extensions.plugin_at(self.do), _format_option(option))
        # A parameter of a disabled plug-in is missing in *given*.
        names = (name for name in self.takes if name in given and name not in self.flags)
        arguments = {name: given[name] for name in names}
        # Only loading is guarded here: errors of the call are handled as for any command.
        with extensions.package_code(extensions.CONTRIBUTIONS, self.name):
            function = extensions.resolve_part(self.do)
            if not callable(function):
                raise TypeError(f"{self.do} is {packages.describe(function)}, and not a function")
        exit_code: int | None = function(invocation, **arguments)
        return exit_code


class Renderer(Struct, frozen=True):
    """Draws workflows in one or more formats."""

    names: tuple[str, ...]
    """Parameters; each one asks for a drawing."""
    options: tuple[Option, ...]
    graph: str
    """``MODULE:FUNCTION`` that draws a graph. It gets the invocation, the `FlowView`, the
    `GraphFile` that the graph was read from or None, and the parameters with their values."""
    sequence: str
    """``MODULE:FUNCTION`` that draws a workflow that is not a graph. It gets the invocation, the
    `Workflow`, the parameters, and a hint for drawings that only graphs have."""


_OF_PACKAGES: dict[str, list[Any]] = {}
"""Command or group -> what packages contribute to it. Filled when it is first needed."""


def contributions_to(command: str) -> tuple[Contribution, ...]:
    """Return the contributions to *command*, first those of plug-ins, then those of packages.

    Disabled plug-ins are included, so that an option of theirs is refused with the reason.
    Packages are included after `add_options`.
    """
    entries = extensions.load_builtins(extensions.CONTRIBUTIONS, even_disabled=True)
    package_items = [item for name, item in entries if name.startswith(f"{command}.")]
    return (*package_items, *_OF_PACKAGES.get(command, ()))


def renderers() -> tuple[Renderer, ...]:
    """Return the renderers of plug-ins, disabled ones included, then those of packages."""
    entries = extensions.load_builtins(extensions.RENDERERS, even_disabled=True)
    return (*(renderer for _, renderer in entries), *_OF_PACKAGES.get(extensions.RENDERERS, ()))


def contribution_arguments(name: str, *, draws: bool = False) -> dict[str, Any]:
    """Return the arguments of `verb` for the command *name*, to which others contribute."""
    return {
        "more": partial(add_options, name=name, draws=draws),
        "missing": partial(unavailable_options, name=name, draws=draws),
    }


def add_options(command: click.Command, name: str, *, draws: bool = False) -> None:
    """Add to *command*, whose name is *name*, the options that packages contribute.

    Packages are loaded only for an unknown option and for help. A contribution that can't be used
    is reported and left out.
    """
    if name in _OF_PACKAGES:
        return
    config = click.get_current_context().ensure_object(Invocation).config
    extensions.configure(read_disabled(config))
    errors = (error.in_one_line for error in _add_contributions(command, name, draws=draws))
    for text in dict.fromkeys(errors):
        # During shell completion, only options may be printed.
        if not click.get_current_context().resilient_parsing:
            show_message(f"notice: {text}")


def _add_contributions(
    command: click.Command, name: str, *, draws: bool = False
) -> list[ConfigurationError]:
    """Add the options of packages to *command*; return the errors of those that were left out."""
    errors: list[ConfigurationError] = []
    items = _OF_PACKAGES[name] = []
    for point, item in extensions.load_from_packages(extensions.CONTRIBUTIONS, errors.append):
        if point.name.partition(".")[0] == name:
            # The name of the entry point is used to look up the package.
            contribution: Contribution = replace(item, name=point.name)
            _add(command, contribution, point, items, errors)
    if draws:
        drawings = _OF_PACKAGES.setdefault(extensions.RENDERERS, [])
        for point, item in extensions.load_from_packages(extensions.RENDERERS, errors.append):
            _add(command, item, point, drawings, errors)
    prefixes = (f"{extensions.CONTRIBUTIONS}: {name}.", extensions.RENDERERS)
    return [error for error in errors if (error.where or "").startswith(prefixes)]


def _add(
    command: click.Command,
    item: Contribution | Renderer,
    point: EntryPoint,
    items: list[Any],
    errors: list[ConfigurationError],
) -> None:
    """Add the options of *item* to *command* and *item* to *items*, or the reason to *errors*."""
    taken_names = {word for param in command.params for word in _param_names(param)}
    # An option that several contributions share, such as `SVG`, is added only once.
    shared_options = {*collect_options([*contributions_to(command.name or ""), *renderers()])}
    try:
        with extensions.package_code(point.group, point.name, point):
            new_params = [
                param
                for option, params in _expand_options(item.options)
                for param in params
                if option not in shared_options or not taken_names.issuperset(_param_names(param))
            ]
        if (problem := _find_conflict(new_params, taken_names, command)) is not None:
            name, place = packages.get_distribution_name(point), packages.format_entry_point(point)
            raise packages.package_error(name, problem, place)
    except ConfigurationError as error:
        errors.append(error)
        return
    command.params.extend(new_params)
    items.append(item)


def _find_conflict(
    params: Iterable[click.Parameter], taken_names: set[str], command: click.Command
) -> str | None:
    """Return why *params* can't be added to *command*, which has *taken_names*; None: they can."""
    for param in params:
        if param.required:
            # Without it, none of the other options could be used.
            return f"has the option {param.opts[0]}, which is required: an added option can't be"
        for word in _param_names(param):
            if word in taken_names:
                return f"has the option {word}, which {command.name!r} has already"
    return None


def _param_names(param: click.Parameter) -> tuple[str, ...]:
    return (*param.opts, *param.secondary_opts, param.name or "")


def _expand_options(options: Iterable[Option]) -> list[tuple[Option, list[click.Parameter]]]:
    """Return each of *options* with the parameters that it adds to a command."""
    pairs = []
    for option in options:
        scratch = click.Command(None, params=[])
        option(scratch)
        pairs.append((option, scratch.params))
    return pairs


def contribution_errors() -> Iterator[ConfigurationError]:
    """Yield the reasons why contributions of packages are left out, for `check`."""
    for name in OPEN:
        verb = getattr(import_module(f"sequencer.cli.{name}"), name)
        yield from _add_contributions(verb, name)
    for point in extensions.entries(extensions.CONTRIBUTIONS):
        head, dot, _ = point.name.partition(".")
        if not dot or head not in OPEN:
            package = packages.get_distribution_name(point)
            yield ConfigurationError(
                f"the package {package!r} is ignored here: the name {point.name!r} "
                "does not start with a command that takes contributions",
                where=packages.format_entry_point(point),
                hint=f"use {', '.join(f'{command}.NAME' for command in OPEN)}",
            )


def select_own_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of *given* that are options of the command *name* itself."""
    params = [pair[1] for item in contributions_to(name) for pair in _expand_options(item.options)]
    added_names = {param.name for group in params for param in group}
    return {key: value for key, value in given.items() if key not in added_names}


def unavailable_options(invocation: Invocation, name: str, *, draws: bool = False) -> set[str]:
    """Return the parameters of the command *name* that only disabled plug-ins use."""
    disabled_names, enabled_names = set[str](), set[str]()
    for item in contributions_to(name):
        (enabled_names if item.is_available(invocation) else disabled_names).update(item.takes)
    names = disabled_names - enabled_names
    for renderer in renderers() if draws else ():
        plugin = extensions.plugin_at(renderer.graph)
        if plugin is not None and not extensions.is_available(plugin):
            names.update(renderer.names)
    return names


def collect_options(items: Iterable[Contribution | Renderer]) -> list[Option]:
    """Return the options of *items*; an option that several share is returned once."""
    return list(dict.fromkeys(option for item in items for option in item.options))


def draw_graph(invocation: Invocation, view: Any, source: Any, given: Mapping[str, Any]) -> None:
    """Draw the graph of *view* in each format that *given* asks for; see `Renderer.graph`."""
    for renderer in _select_renderers(invocation, given):
        extensions.resolve_part(renderer.graph)(
            invocation, view, source, _select_arguments(renderer, given)
        )


def draw_sequence(
    invocation: Invocation, workflow: Any, given: Mapping[str, Any], hint: str
) -> None:
    """Draw *workflow*, which is not a graph, in each format that *given* asks for."""
    for renderer in _select_renderers(invocation, given):
        extensions.resolve_part(renderer.sequence)(
            invocation, workflow, _select_arguments(renderer, given), hint
        )


def _select_renderers(invocation: Invocation, values: Mapping[str, Any]) -> list[Renderer]:
    """Return the renderers that the options in *values* ask for.

    Raises:
        PluginUnavailable: the plug-in of one of them is disabled.
    """
    selection = [r for r in renderers() if any(values.get(name) for name in r.names)]
    for renderer in selection:
        option = next(name for name in renderer.names if values.get(name))
        ensure_available(
            invocation.config, extensions.plugin_at(renderer.graph), _format_option(option)
        )
    return selection


def _select_arguments(renderer: Renderer, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values.get(name) for name in renderer.names}


def choose_contribution(
    command: str,
    items: Sequence[Contribution],
    given: Mapping[str, Any],
    otherwise: Sequence[Contribution],
) -> Contribution:
    """Return the contribution to *command* that *given* selects: the first of *items* that fits.

    If none does, return the first of *otherwise* that takes all given options, or the last.

    Raises:
        UsageRefused: an option has no meaning for that contribution.
        PluginUnavailable: there is no contribution to *command*.
    """
    if not (items or otherwise):
        targets = extensions.OURS[extensions.CONTRIBUTIONS]
        plugin = next(
            place.partition(".")[0]
            for name, place in targets.items()
            if name.startswith(f"{command}.")
        )
        raise extensions.PluginUnavailable(f"the command {command!r}", plugin)
    option_names = _find_given_options(given)
    selection = (item for item in items if {*option_names} & {*item.takes} - {*item.shared})
    candidates = (item for item in otherwise if {*option_names} <= {*item.takes})
    item = next(selection, None) or next(candidates, None) or [*items, *otherwise][-1]
    _ensure_required_flag(item, option_names)
    for name in option_names:
        if name not in item.takes:
            other_name = next(
                (option for option in option_names if option in item.takes), item.takes[0]
            )
            message = (
                f"{_format_option(name)} and {_format_option(other_name)} can't be used together"
            )
            raise UsageRefused(message, where=f"sequencer {command}")
    return item


def find_contribution(command: str, given: Mapping[str, Any]) -> Contribution | None:
    """Return the contribution to *command* that *given* asks for; None: it asks for none.

    Raises:
        UsageRefused: an option has no meaning without another one.
    """
    option_names = _find_given_options(given)
    for item in contributions_to(command):
        if {*option_names} & {*item.takes} - {*item.shared}:
            _ensure_required_flag(item, option_names)
            return item
    return None


def _find_given_options(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters that were given on the command line."""
    # For a pair such as --team/--no-team, False was given; for a flag, it is the default.
    pairs = {
        param.name
        for param in click.get_current_context().command.params
        if isinstance(param, click.Option) and param.secondary_opts
    }
    return [
        name
        for name, value in values.items()
        if value not in (None, ()) and (value is not False or name in pairs)
    ]


def _ensure_required_flag(item: Contribution, option_names: Sequence[str]) -> None:
    if item.needs and item.needs not in option_names:
        option_name = next(
            name for name in option_names if name in item.takes and name not in item.shared
        )
        raise UsageRefused(
            f"works only with {_format_option(item.needs)}", where=_format_option(option_name)
        )


def _format_option(parameter: str) -> str:
    """Return *parameter* of the current command as a person types it."""
    for param in click.get_current_context().command.params:
        if param.name == parameter:
            is_option = isinstance(param, click.Option)
            return max(param.opts, key=len) if is_option else param.human_readable_name.strip("[]")
    return f"--{parameter}"
