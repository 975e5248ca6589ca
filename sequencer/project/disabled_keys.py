"""Settings that need a plug-in or package that is disabled, broken or not installed.

They are errors for a command that acts. A command that only reads runs leaves them out, with a
notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sequencer import extensions
from sequencer.errors import PackageFailed, UnknownName
from sequencer.extensions import PluginUnavailable
from sequencer.files.yamlfile import KeyPath
from sequencer.project.enabled_plugins import switches
from sequencer.project.schema import Schema
from sequencer.project.sections import LocatedError
from sequencer.project.sources import Layers
from sequencer.project.store_kinds import STORE_KIND


def remove_unavailable(layers: Layers) -> list[LocatedError]:
    """Remove the keys of unavailable plug-ins from *layers*, and return an error for each."""
    problems = list(_find_unknown_plugins(dict(switches(layers.values)), layers))
    values = layers.values
    for path, error in _find_unavailable_keys(layers):
        layers.unavailable[path] = error
        problems.append((path, error))
        # An entry without its tasks or its kind is useless, so remove the whole entry.
        values = _without_key(values, path[: max(1, len(path) - 1)])
    layers.values = values
    return problems


def downgrade_to_notices(problems: Iterable[LocatedError], layers: Layers) -> list[LocatedError]:
    """Return the *problems* that no package could fix; make the others notices in *layers*.

    An unknown name may belong to a package that is not installed on this machine, unless it looks
    like a typo.
    """
    remaining_problems: list[LocatedError] = []
    for path, error in problems:
        if isinstance(error, UnknownName) and not error.nearest:
            text = f"{error.where}: {error.message}; perhaps a package that adds it is missing"
        elif isinstance(error, (PluginUnavailable, PackageFailed)):
            text = error.in_one_line
        else:
            remaining_problems.append((path, error))
            continue
        layers.unavailable[path] = error
        is_store = path == STORE_KIND
        layers.notices.append(f"{text}; only a copy here can be shown" if is_store else text)
    return remaining_problems


def _find_unknown_plugins(choices: Mapping[str, bool], layers: Layers) -> Iterator[LocatedError]:
    """Yield an error for each unknown plug-in in *choices* (name -> whether it is enabled).

    Disabling a plug-in that is not installed has no effect, so it is not an error; a typo is.
    """
    for name in sorted(choices.keys() - extensions.PLUGINS):
        if extensions.normalize_name(name) not in (
            package_names := extensions.installed_packages()
        ):
            path = ("plugins", name)
            known_names = extensions.PLUGINS | package_names
            error = UnknownName("plug-in", name, known_names, where=layers.format_location(path))
            if not error.nearest:
                error.hint = f"if it is the name of a package, install it; {error.hint}"
            if choices[name] or error.nearest:
                yield path, error


def _find_unavailable_keys(layers: Layers) -> Iterator[LocatedError]:
    """Yield an error for each value that needs a disabled or a broken plug-in or package."""
    values = layers.values
    for name in values:
        yield from _check_section(name, layers)
    for name, entry in _entries(values, "workflows"):
        for key in entry:
            path = ("workflows", name, key)
            yield from _check_provider(
                path, extensions.WORKFLOW_KEYS, key, f"the key {key!r}", layers
            )
    for parent, group, description in _KINDS:
        for name, entry in _entries(values, *parent):
            kind = str(entry.get("kind"))
            yield from _check_provider(
                (*parent, name, "kind"), group, kind, f"{description} {kind!r}", layers
            )


_KINDS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("workflows",), extensions.KINDS, "workflow kind"),
    (("agents",), extensions.EXECUTORS, "agent kind"),
    (("activity", "sinks"), extensions.SINKS, "sink kind"),
)
"""The mappings whose entries have a kind that a package may add."""


def _check_section(name: str, layers: Layers) -> Iterator[LocatedError]:
    path = (name,)
    yield from _check_provider(path, extensions.SECTIONS, name, f"the key {name!r}", layers)
    if name in Schema.model_fields or path in layers.unavailable:
        return
    try:
        extensions.find(extensions.SECTIONS, name)
    except PackageFailed as error:
        yield path, error


def _check_provider(
    path: KeyPath, group: str, name: str, description: str, layers: Layers
) -> Iterator[LocatedError]:
    if (provider := extensions.missing_provider(group, name)) is not None:
        yield path, PluginUnavailable(description, provider, where=layers.format_location(path))


def _entries(values: Any, *path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (name, entry) for each entry at *path* that is a mapping; the values are unchecked."""
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    for name, entry in values.items() if isinstance(values, Mapping) else ():
        if isinstance(entry, Mapping):
            yield name, entry


def _without_key(values: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """Return a copy of *values* without the value at *path*."""
    key, *child_keys = path
    if child_keys and isinstance(entry := values.get(str(key)), dict):
        return {**values, str(key): _without_key(entry, tuple(child_keys))}
    return {name: value for name, value in values.items() if name != key}
