"""What installed packages add to the program and what of it can't be used, for `check`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from sequencer import extensions
from sequencer.engine import kinds
from sequencer.errors import ConfigurationError
from sequencer.project.agents import EXECUTORS
from sequencer.project.diagnostics import Area, Finding, Level, of_error
from sequencer.project.schema import Schema
from sequencer.project.store_kinds import COPY, FILE

CONTRIBUTED_TO = ("plan", "report", "tick")
"""The commands that take contributions."""
_OWN: Mapping[str, Collection[str]] = {
    extensions.KINDS: kinds.KINDS,
    extensions.EXECUTORS: EXECUTORS,
    extensions.STORES: (FILE.name, COPY.name),
    extensions.SECTIONS: Schema.model_fields,
}
"""The names that the core has in a group."""


def check_packages(commands: Collection[str]) -> Iterator[Finding]:
    """Yield what is wrong with the entry points of packages; *commands* are the names of ours.

    Those of `extensions.CHECKS` are left out: who runs the checks reports them.
    """
    taken = {**_OWN, extensions.COMMANDS: commands}
    for point in extensions.points_of_packages():
        where = f"{point.group}: {point.name} = {point.value}"
        why = _why_ignored(point.group, point.name, taken.get(point.group, ()))
        if why is not None:
            message = f"an entry point of a package is ignored: {why}"
            yield Finding(Level.WARNING, Area.CONFIGURATION, message, where)
        elif point.group != extensions.CHECKS:
            try:
                extensions.load(point)
            except ConfigurationError as error:
                yield from of_error(Area.CONFIGURATION, error, Level.WARNING)


def _why_ignored(group: str, name: str, own: Collection[str]) -> str | None:
    if group not in extensions.OPEN:
        return f"no package can add to {group}"
    if name in own or name in extensions.OURS.get(group, {}):
        return f"Sequencer has {name!r} itself; choose another name"
    command, dot, _ = name.partition(".")
    if group == extensions.CONTRIBUTIONS and (not dot or command not in CONTRIBUTED_TO):
        known = ", ".join(f"{one}.NAME" for one in CONTRIBUTED_TO)
        return f"{name!r} names no command that takes contributions; use {known}"
    return None
