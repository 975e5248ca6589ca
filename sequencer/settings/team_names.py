"""Other names of keys about teams, as configurations of an issue tracker's agents have them.

``enableAgentTeams`` and ``teamConfig`` mean keys of ``teams``. Neither wins over the other:
whoever writes both down has made a mistake that a silent choice would hide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sequencer.documents.keys import dotted
from sequencer.documents.problems import located
from sequencer.documents.reader import Document, KeyPath
from sequencer.errors import ConfigurationError, UnknownName
from sequencer.settings.checks import Found
from sequencer.settings.sources import Layers, Source

CONFIG = "teamConfig"
TEAM_KEYS: Mapping[KeyPath, KeyPath] = {
    ("enableAgentTeams",): ("teams", "enabled"),
    (CONFIG, "complexityThreshold"): ("teams", "threshold"),
    (CONFIG, "maxTeamSize"): ("teams", "max_size"),
    (CONFIG, "teammateModel"): ("teams", "teammate_model"),
    (CONFIG, "leadModel"): ("teams", "lead_model"),
    (CONFIG, "enabledClassifications"): ("teams", "classifications"),
}
TOP_KEYS = frozenset(str(path[0]) for path in TEAM_KEYS)


def lay_team_keys(layers: Layers, document: Document) -> None:
    """Lay what *document* says about teams by their other names over *layers*."""
    for written, path in TEAM_KEYS.items():
        position = document.positions.get(written)
        if position is not None:
            value = document.data[str(written[0])]
            for part in written[1:]:
                value = value[part]
            layers.put(path, value, Source("file", document.file, position[0]), written)


def name_of(layers: Layers, path: KeyPath) -> KeyPath:
    """Return *path* under the name by which its author knows it."""
    origin = layers.origin(path)
    return origin if origin and origin[0] in TOP_KEYS else path


def problems(layers: Layers) -> Iterator[Found]:
    """Yield what is wrong with the names themselves; their values are the schema's to judge."""
    document = layers.document
    if document is None:
        return
    config = document.data.get(CONFIG)
    if config is not None and not isinstance(config, dict):
        message = "expected a mapping ('key: value' lines)"
        yield (CONFIG,), ConfigurationError(message, where=_at(document, (CONFIG,)))
    known = [str(path[1]) for path in TEAM_KEYS if path[0] == CONFIG]
    for key in config if isinstance(config, dict) else ():
        if key not in known:
            place = located(document.where((CONFIG, key)), (CONFIG,))
            yield (CONFIG, key), UnknownName("key", key, known, where=place)
    for written, path in TEAM_KEYS.items():
        if written in document.positions and path in document.positions:
            line = document.positions[path][0]
            message = f"{dotted(path)} in line {line} says the same"
            hint = f"leave out {dotted(written)} or {dotted(path)}"
            yield (
                written,
                ConfigurationError(message, where=_at(document, written), hint=hint),
            )


def _at(document: Document, path: KeyPath) -> str:
    return located(document.where(path), path)
