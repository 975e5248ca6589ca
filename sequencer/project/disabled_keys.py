"""Removes the keys of disabled plug-ins from the settings, and reports them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from sequencer import extensions
from sequencer.documents.yamlfile import KeyPath
from sequencer.errors import UnknownName
from sequencer.project.enabled_plugins import switches
from sequencer.project.sections import Found
from sequencer.project.sources import Layers


def remove_disabled(layers: Layers, *, reads: bool) -> list[Found]:
    """Remove the keys of unavailable plug-ins from *layers*, and return an error for each.

    If the caller only *reads* runs, each is a notice instead.
    """
    found = list(_unknown(dict(switches(layers.values)).keys(), layers))
    values = layers.values
    for path, plugin in _keys(values):
        error = extensions.PluginUnavailable(
            f"the key {str(path[-1])!r}", plugin, where=layers.at(path)
        )
        if reads:
            layers.notices.append(error.in_one_line)
            layers.unavailable[path] = error
        else:
            found.append((path, error))
        # Without its tasks an entry of `workflows` is empty, so all of it goes.
        values = _without(values, path[:2])
    layers.values = values
    return found


def _unknown(named: AbstractSet[str], layers: Layers) -> Iterator[Found]:
    for name in sorted(named - extensions.PLUGINS):
        if extensions.canonical(name) not in (added := extensions.installed_packages()):
            path = ("plugins", name)
            known = extensions.PLUGINS | added
            yield path, UnknownName("plug-in", name, known, where=layers.at(path))


def _keys(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    for name in values:
        if (plugin := _missing(extensions.SECTIONS, name)) is not None:
            yield (name,), plugin
    workflows = values.get("workflows")
    for name, entry in workflows.items() if isinstance(workflows, Mapping) else ():
        for key in entry if isinstance(entry, Mapping) else ():
            if (plugin := _missing(extensions.WORKFLOW_KEYS, key)) is not None:
                yield ("workflows", name, key), plugin
                break


def _missing(group: str, name: str) -> str | None:
    """Return the plug-in that provides *name* in *group*, if it is unavailable."""
    plugin = extensions.plugin_of(group, name)
    return None if plugin is None or extensions.is_available(plugin) else plugin


def _without(values: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    name, *below = path
    if not below:
        return {key: value for key, value in values.items() if key != name}
    here = {key: value for key, value in values[str(name)].items() if key != below[0]}
    return {**values, str(name): here}
