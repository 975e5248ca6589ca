"""Which plug-ins and packages ``plugins:`` of orchestration.yaml enables and disables.

Light enough for the command line, which needs the answer before it opens the project.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sequencer.errors import ConfigurationError
from sequencer.extensions import normalize_name
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import find_config

ON = frozenset({"on", "yes", "y", "true", "t", "1"})
OFF = frozenset({"off", "no", "n", "false", "f", "0"})
"""The words that a file or a variable may use; YAML turns some of them into booleans."""
_VARIABLE = "SEQUENCER_PLUGINS__"


def list_disabled(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that the settings *values* disable.

    >>> sorted(list_disabled({"plugins": {"web": False, "git": "on", "teams": "off"}}))
    ['teams', 'web']
    """
    return frozenset(name for name, is_on in _enabled_by_name(values).items() if not is_on)


def list_enabled(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that the settings *values* enable."""
    return frozenset(name for name, is_on in _enabled_by_name(values).items() if is_on)


def _enabled_by_name(values: Mapping[str, Any]) -> dict[str, bool]:
    """Return canonical name -> is_enabled, because a variable can't contain a hyphen."""
    return {normalize_name(name): is_on for name, is_on in switches(values)}


def switches(values: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield (name, is_enabled) for each entry of ``plugins:`` in the settings *values*."""
    section = values.get("plugins")
    entries = section if isinstance(section, Mapping) else {}
    yield from ((str(name), _is_on(word)) for name, word in entries.items())


def _is_on(word: Any) -> bool:
    return str(word).lower() not in OFF


def read_disabled(config: Path | None) -> frozenset[str]:
    """Return the names that *config*, or the configuration of this folder, disables.

    An unreadable file disables nothing; opening the project reports the error.
    """
    is_enabled: dict[str, bool] = {}
    with suppress(ConfigurationError, OSError):
        for values in _read_plugin_settings(find_config(Path.cwd(), config)):
            is_enabled |= _enabled_by_name(values)
    # The same rule as in `sources.add_environment`, which takes too long to import here.
    for name, word in os.environ.items():
        if name.startswith(_VARIABLE):
            is_enabled[normalize_name(name.removeprefix(_VARIABLE))] = _is_on(word)
    return frozenset(name for name, is_on in is_enabled.items() if not is_on)


def _read_plugin_settings(path: Path | None) -> Iterator[Mapping[str, Any]]:
    """Yield the settings that name plug-ins: the file at *path*, and the section in a variable."""
    variable = _VARIABLE.rstrip("_")
    variable_text = os.environ.get(variable, "")
    is_written = path is not None and b"plugins" in read_bytes(path)
    if not (is_written or variable_text.startswith("{")):
        return
    from sequencer.files import yamlfile  # noqa: PLC0415 - few projects name plug-ins

    if path is not None and is_written:
        yield yamlfile.read(path).data
    if variable_text.startswith("{"):
        yield {"plugins": yamlfile.parse_value(variable_text, Path(variable))}
