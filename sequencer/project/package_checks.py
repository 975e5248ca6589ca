"""The checks of installed packages: entry points that can't be loaded, or are ignored.

They load every entry point, even those that the project does not use. That runs code of installed
packages, but no code of the project.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sequencer import extensions, packages
from sequencer.errors import ConfigurationError, SequencerError, UnknownName
from sequencer.project.diagnostics import Area, Diagnostic, Level, diagnose_error

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_SHARED_NAMES = frozenset((extensions.CHECKS, extensions.HOOKS, extensions.STATUS_LINES))
"""Groups in which two packages may use the same name."""

_CORE_NAMES: Mapping[str, str] = {
    extensions.KINDS: "sequencer.engine.kinds:KINDS",
    extensions.EXECUTORS: "sequencer.project.agents:EXECUTORS",
    extensions.STORES: "sequencer.project.store_kinds:NAMES",
    extensions.COMMANDS: "sequencer.cli.program:COMMANDS",
    extensions.SECTIONS: "sequencer.project.schema:TAKEN",
    extensions.SINKS: "sequencer.plugins.posting.options:KINDS",
}
"""Group -> the module and attribute with more names that Sequencer uses, in addition to `OURS`."""


def check_packages() -> Iterator[Diagnostic]:
    """Yield a finding for each entry point that can't be used, with its package and a hint."""
    for problem in packages.malformed_packages():
        yield from diagnose_error(Area.CONFIGURATION, problem, Level.WARNING)
    points: dict[tuple[str, str], EntryPoint] = {}
    for point in extensions.all_entries():
        first_point = points.setdefault((point.group, point.name), point)
        if (reason := _find_ignore_reason(point, first_point)) is not None:
            yield from diagnose_error(Area.CONFIGURATION, reason, Level.WARNING)
            continue
        try:
            _load(point)
        except ConfigurationError as error:
            yield from diagnose_error(Area.CONFIGURATION, error, _level(point))


def _load(point: EntryPoint) -> None:
    """Load *point*; for hooks, check each function.

    Raises:
        ConfigurationError: it can't be used.
    """
    if point.group == extensions.HOOKS:
        extensions.resolve_part("sequencer.hooks.calling:make_hooks")((), Path(), {}, (point,))
    else:
        extensions.load(point)


def _level(point: EntryPoint) -> Level:
    """Return the level: an error if commands always use the entry point, else a warning."""
    is_asked = point.group in (extensions.STATUS_LINES, extensions.PAGES)
    is_always = point.group in (extensions.CHECKS, extensions.HOOKS)
    is_used = is_always or (is_asked and extensions.is_enabled_by_name(point))
    return Level.ERROR if is_used else Level.WARNING


def _find_ignore_reason(point: EntryPoint, first_point: EntryPoint) -> ConfigurationError | None:
    """Return why *point* is ignored; *first_point*: the first one with its name."""
    place, package = packages.format_entry_point(point), packages.get_distribution_name(point)
    if point.group in extensions.OURS and point.group not in extensions.OFFERED:
        return ConfigurationError(
            f"the package {package!r} is ignored here: only Sequencer has entries in this group",
            where=place,
            hint=f"groups for packages: {', '.join(sorted(extensions.OFFERED))}",
        )
    if point.group not in extensions.OFFERED:
        return UnknownName("group", point.group, extensions.OFFERED, where=f"{package}: {place}")
    if point.group == extensions.COMMANDS and point.name.startswith("-"):
        return ConfigurationError(
            f"the package {package!r} is ignored here: a command can't be called {point.name!r}",
            where=place,
            hint="its authors have to choose another name",
        )
    owner = None
    if point.name in (*extensions.OURS.get(point.group, ()), *_list_reserved_names(point.group)):
        owner = "Sequencer"
    elif first_point is not point and point.group not in _SHARED_NAMES:
        owner = f"the package {packages.get_distribution_name(first_point)!r}"
    if owner is None:
        return None
    return ConfigurationError(
        f"the package {package!r} is ignored here: the name {point.name!r} is taken by {owner}",
        where=place,
        hint="its authors have to choose another name; "
        f"plugins: {{{package}: off}} disables the package",
    )


@cache
def _list_reserved_names(group: str) -> Collection[str]:
    """Return the names in *group* that the program itself uses."""
    place = _CORE_NAMES.get(group)
    try:
        names: Collection[str] = () if place is None else extensions.resolve_part(place)
    except ModuleNotFoundError:
        # The plug-in that defines them is not installed.
        return ()
    return names


def package_findings(error: BaseException) -> list[Diagnostic]:
    """Return the findings for *error*, which ended a check.

    Raises: *error*, if code of this program failed.
    """
    package_error = (
        error if isinstance(error, ConfigurationError) else packages.to_package_error(error)
    )
    if not isinstance(package_error, SequencerError):
        raise error
    return diagnose_error(Area.CONFIGURATION, package_error)
