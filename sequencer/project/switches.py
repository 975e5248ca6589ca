"""``plugins:`` of orchestration.yaml: which plug-ins are switched off, and what goes with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from sequencer import extensions
from sequencer.documents import yamlfile
from sequencer.documents.regular import read_bytes
from sequencer.documents.textfile import find_config
from sequencer.documents.yamlfile import KeyPath
from sequencer.errors import ConfigurationError, UnknownName
from sequencer.project.sections import Found
from sequencer.project.sources import Layers

_OFF = frozenset({"off", "no", "false"})
"""As files have it, in which a word may or may not be a boolean."""


def switched_off(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the plug-ins that the settings *values* switch off.

    >>> sorted(switched_off({"plugins": {"web": False, "git": "on", "teams": "off"}}))
    ['teams', 'web']
    """
    return frozenset(name for name, is_on in _switches(values) if not is_on)


def switched_on(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the plug-ins that the settings *values* switch on."""
    return frozenset(name for name, is_on in _switches(values) if is_on)


def _switches(values: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    written = values.get("plugins")
    given = written if isinstance(written, Mapping) else {}
    yield from ((name, str(said).lower() not in _OFF) for name, said in given.items())


def off_in(config: Path | None) -> frozenset[str]:
    """Return the plug-ins that the configuration of this folder, or *config*, switches off.

    For what comes before the project is opened; whatever is wrong is told then.
    """
    try:
        path = find_config(Path.cwd(), config)
        if path is None or b"plugins" not in read_bytes(path):
            return frozenset()
        return switched_off(yamlfile.read(path).data)
    except (ConfigurationError, OSError):
        return frozenset()


def take_out(layers: Layers) -> list[Found]:
    """Take out of *layers* what belongs to plug-ins that are off, and return what is wrong.

    A key of theirs is an error, as any key that nobody knows.
    """
    found = list(_unknown(dict(_switches(layers.values)).keys(), layers))
    values = layers.values
    for path, plugin in _keys(values):
        error = extensions.SwitchedOff(repr(str(path[-1])), plugin, where=layers.at(path))
        found.append((path, error))
        # An entry without its steps is none.
        values = _without(values, path[:2])
    layers.values = values
    return found


def _unknown(named: AbstractSet[str], layers: Layers) -> Iterator[Found]:
    for name in sorted(named - extensions.PLUGINS):
        if name not in (added := extensions.packages()):
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
    """Return the plug-in that has *name* in *group*, if it is off or not installed."""
    plugin = extensions.plugin_of(group, name)
    return None if plugin is None or extensions.is_on(plugin) else plugin


def _without(values: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    name, *below = path
    if not below:
        return {key: value for key, value in values.items() if key != name}
    here = {key: value for key, value in values[str(name)].items() if key != below[0]}
    return {**values, str(name): here}
