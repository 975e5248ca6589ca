"""What the settings name that is not there: disabled, or not installed.

Whoever acts needs all of it. For whoever only reads runs it is left out, with a notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sequencer import extensions
from sequencer.documents.yamlfile import KeyPath
from sequencer.errors import UnknownName
from sequencer.extensions import PluginUnavailable
from sequencer.project.enabled_plugins import switches
from sequencer.project.sections import Found
from sequencer.project.sources import Layers
from sequencer.project.store_kinds import STORE_KIND


def remove_disabled(layers: Layers) -> list[Found]:
    """Remove the keys of unavailable plug-ins from *layers*, and return an error for each."""
    found = list(_unknown(dict(switches(layers.values)), layers))
    values = layers.values
    for path, plugin in _keys(values):
        error = PluginUnavailable(f"the key {str(path[-1])!r}", plugin, where=layers.at(path))
        layers.unavailable[path] = error
        found.append((path, error))
        # Without its tasks an entry of `workflows` is empty, so all of it goes.
        values = without_key(values, path[:2])
    layers.values = values
    return found


def set_aside(found: Iterable[Found], layers: Layers) -> list[Found]:
    """Return those of *found* that are wrong whatever is installed; of each other make a notice.

    A name that nobody knows may be that of a package which is not installed here, unless it looks
    like a mistyped one.
    """
    kept: list[Found] = []
    for path, error in found:
        is_absent = isinstance(error, UnknownName) and not error.nearest
        if not (is_absent or isinstance(error, PluginUnavailable)):
            kept.append((path, error))
            continue
        layers.unavailable[path] = error
        text = error.in_one_line
        if path == STORE_KIND:
            text += "; showing the copy in this folder"
        layers.notices.append(text)
    return kept


def _unknown(named: Mapping[str, bool], layers: Layers) -> Iterator[Found]:
    """Yield an error for each plug-in that is *named* and unknown.

    To disable what is not installed changes nothing, but a mistyped name would.
    """
    for name in sorted(named.keys() - extensions.PLUGINS):
        if extensions.canonical(name) not in (added := extensions.installed_packages()):
            path = ("plugins", name)
            known = extensions.PLUGINS | added
            error = UnknownName("plug-in", name, known, where=layers.at(path))
            if named[name] or error.nearest:
                yield path, error


def _keys(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    for name in values:
        if (plugin := extensions.missing_provider(extensions.SECTIONS, name)) is not None:
            yield (name,), plugin
    workflows = values.get("workflows")
    for name, entry in workflows.items() if isinstance(workflows, Mapping) else ():
        for key in entry if isinstance(entry, Mapping) else ():
            plugin = extensions.missing_provider(extensions.WORKFLOW_KEYS, key)
            if plugin is not None:
                yield ("workflows", name, key), plugin
                break


def without_key(values: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """Return a copy of *values* without what is at *path*, of one or two keys."""
    name, *below = path
    if not below:
        return {key: value for key, value in values.items() if key != name}
    here = {key: value for key, value in values[str(name)].items() if key != below[0]}
    return {**values, str(name): here}
