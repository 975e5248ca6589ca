"""Which plug-ins ``plugins:`` of orchestration.yaml, and variables, switch off or on.

For what comes before the project is opened; `project.switches` has what goes with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sequencer.documents.regular import read_bytes
from sequencer.documents.textfile import find_config
from sequencer.errors import ConfigurationError

_OFF = frozenset({"off", "no", "n", "false", "f", "0"})
"""As files and variables have it, in which a word may or may not be a boolean."""
_VARIABLE = "SEQUENCER_PLUGINS__"


def switched_off(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the plug-ins that the settings *values* switch off.

    >>> sorted(switched_off({"plugins": {"web": False, "git": "on", "teams": "off"}}))
    ['teams', 'web']
    """
    return frozenset(name for name, is_on in switches(values) if not is_on)


def switched_on(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the plug-ins that the settings *values* switch on."""
    return frozenset(name for name, is_on in switches(values) if is_on)


def switches(values: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the plug-ins that the settings *values* name, and whether each is to be on."""
    written = values.get("plugins")
    given = written if isinstance(written, Mapping) else {}
    yield from ((name, _is_on(said)) for name, said in given.items())


def _is_on(said: Any) -> bool:
    return str(said).lower() not in _OFF


def off_in(config: Path | None) -> frozenset[str]:
    """Return the plug-ins that the configuration of this folder, or *config*, switches off.

    For what comes before the project is opened; whatever is wrong is told then.
    """
    try:
        path = find_config(Path.cwd(), config)
        is_written = path is not None and b"plugins" in read_bytes(path)
        found = _read(path) if path is not None and is_written else {}
    except (ConfigurationError, OSError):
        found = {}
    written = dict(switches(found))
    for name, said in os.environ.items():
        if name.startswith(_VARIABLE):
            written[name.removeprefix(_VARIABLE).lower()] = _is_on(said)
    return frozenset(name for name, is_on in written.items() if not is_on)


def _read(path: Path) -> Mapping[str, Any]:
    from sequencer.documents import yamlfile  # noqa: PLC0415 - few files name plug-ins

    return yamlfile.read(path).data
