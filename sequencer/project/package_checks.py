"""What `check` says about installed packages: what can't be loaded, and what is ignored.

Every entry point is loaded, also of what the project does not use. That runs the code of packages
that the user has installed, and nothing of the project.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sequencer import extensions, packages
from sequencer.errors import ConfigurationError, SequencerError, UnknownName
from sequencer.project.diagnostics import Area, Finding, Level, of_error

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_ALL_COUNT = frozenset((extensions.CHECKS, extensions.HOOKS, extensions.STATUS_LINES))
"""Groups in which two packages may use the same name."""


def check_packages() -> Iterator[Finding]:
    """Yield each entry point that can't be used, with its package and what to do."""
    seen: dict[tuple[str, str], EntryPoint] = {}
    for point in extensions.every_entry():
        first = seen.setdefault((point.group, point.name), point)
        if (ignored := _ignored(point, first)) is not None:
            yield from of_error(Area.CONFIGURATION, ignored, Level.WARNING)
            continue
        try:
            _load(point)
        except ConfigurationError as error:
            yield from of_error(Area.CONFIGURATION, error, _level(point))


def _load(point: EntryPoint) -> None:
    """Load *point*; of hooks each function is looked at.

    Raises:
        ConfigurationError: it can't be used.
    """
    if point.group == extensions.HOOKS:
        extensions.loaded("sequencer.hooks.calling:plugged")((), Path(), {}, (point,))
    else:
        extensions.load(point)


def _level(point: EntryPoint) -> Level:
    """Return an error for what commands use without being asked, else a warning."""
    is_asked = point.group in (extensions.STATUS_LINES, extensions.PAGES)
    is_always = point.group in (extensions.CHECKS, extensions.HOOKS)
    is_used = is_always or (is_asked and extensions.is_enabled_by_name(point))
    return Level.ERROR if is_used else Level.WARNING


def _ignored(point: EntryPoint, first: EntryPoint) -> ConfigurationError | None:
    """Return why *point* is ignored; *first* has its name, too, and may be the same."""
    place, package = packages.place_of(point), packages.name_of(point)
    if point.group in extensions.OURS and point.group not in extensions.OFFERED:
        return ConfigurationError(
            f"the package {package!r} is ignored here: only Sequencer has entries in this group",
            where=place,
            hint=f"groups for packages: {', '.join(sorted(extensions.OFFERED))}",
        )
    if point.group not in extensions.OFFERED:
        return UnknownName("group", point.group, extensions.OFFERED, where=f"{package}: {place}")
    owner = None
    if point.name in (*extensions.OURS.get(point.group, ()), *_taken(point.group)):
        owner = "Sequencer"
    elif first is not point and point.group not in _ALL_COUNT:
        owner = f"the package {packages.name_of(first)!r}"
    if owner is None:
        return None
    return ConfigurationError(
        f"the package {package!r} is ignored here: the name {point.name!r} is taken by {owner}",
        where=place,
        hint="its authors have to choose another name; "
        f"plugins: {{{package}: off}} disables the package",
    )


@cache
def _taken(group: str) -> Collection[str]:
    """Return the names in *group* that the program itself has."""
    place = extensions.CORE_NAMES.get(group)
    try:
        names: Collection[str] = () if place is None else extensions.loaded(place)
    except ModuleNotFoundError:
        # The plug-in that has them is not installed.
        return ()
    return names


def of_package(error: BaseException) -> list[Finding]:
    """Return what is wrong where *error* ended a check, if it is known what.

    Raises: *error*, if it is a bug.
    """
    known = error if isinstance(error, ConfigurationError) else packages.fault_of(error)
    if not isinstance(known, SequencerError):
        raise error
    return of_error(Area.CONFIGURATION, known)
