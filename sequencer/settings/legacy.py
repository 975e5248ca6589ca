"""Keys of hoidn/orchestration's orchestration.yaml that this program writes otherwise.

They load as they are: flat keys mean the nested ones, and keys about its prompts' files
and spec files mean nothing here and are named once. A nested key wins over its flat twin,
as there. Its environment variables are named too, with what replaces each, and never obeyed:
half of them have names that other programs use.

``enableAgentTeams`` and ``teamConfig``, which configurations of an issue tracker's agents have,
mean keys of ``teams``. Neither wins over the other: whoever writes both down has made a
mistake that a silent choice would hide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sequencer.documents import keys
from sequencer.documents.keys import dotted, located
from sequencer.documents.reader import Document, KeyPath
from sequencer.errors import ConfigurationError, UnknownName
from sequencer.settings.checks import Found
from sequencer.settings.schema import Schema
from sequencer.settings.sources import Layers, Source, flatten

_TABLES: Mapping[str, Any] = json.loads(
    Path(__file__).parents[1].joinpath("builtin", "hoidn.json").read_bytes()
)
FLAT_KEYS, COMMIT_KEYS = (
    {key: tuple(path.split(".")) for key, path in _TABLES[name].items()}
    for name in ("keys", "commit_keys")
)
"""What is committed after a step; later ones win over earlier ones of the same meaning."""
IGNORED_KEYS = frozenset(_TABLES["ignored_keys"])
VARIABLES: Mapping[str, str | None] = _TABLES["variables"]
"""The variables that it reads, and what is written here instead; None: nothing is needed."""
_REPORT_KEYS = ("report_extensions", "report_path_globs")
_SCRATCH = "tmp/"
"""There, reports below this folder are never committed, whatever else says so."""
TOLERATING = "tolerate_doc_dirty"
_OWN_VARIABLE = re.compile(r"(?:ORCHESTRATION|ORCHESTRATOR|SUPERVISOR|LOOP|ROUTER)_", re.ASCII)
"""Names that only that program has; the others (STATE_FILE) may be anybody's."""
_OWN_KEYS = ("supervisor_prompt", "main_prompt", "reviewer_prompt", "workflow_name")
_IGNORED_FAMILIES = re.compile(r"auto_?commit_[a-z_]+|max_[a-z_]+_bytes", re.ASCII)


def lay_file(layers: Layers, document: Document) -> None:
    """Lay what *document* says over *layers*, old spellings translated."""
    layers.document = document
    # Flat keys first, so that nested ones are laid over them wherever they stand in the file.
    for key, path in FLAT_KEYS.items():
        if key in document.data:
            layers.put(path, document.data[key], _source(document, (key,)), (key,))
    _lay_commits(layers, document)
    lay_team_keys(layers, document)
    for key, value in document.data.items():
        if key in FLAT_KEYS or key in COMMIT_KEYS or key in TOP_KEYS or key == TOLERATING:
            continue
        if key in IGNORED_KEYS or _IGNORED_FAMILIES.fullmatch(key):
            where = document.where((key,))
            layers.notices.append(f"{where}: {key!r} has no effect here")
        elif key == "workflow" and isinstance(value, str):
            source = _source(document, (key,))
            layers.put(("workflow", "name"), value, source, ("workflow",))
        else:
            for below, leaf in flatten(value, (key,)):
                layers.put(below, leaf, _source(document, below))


def _lay_commits(layers: Layers, document: Document) -> None:
    """Lay what the flat keys say about commits after a step."""
    for key, path in COMMIT_KEYS.items():
        if key in document.data:
            value = document.data[key]
            if isinstance(value, str) and keys.is_list(keys.annotation_at(Schema, path)):
                value = [part.strip() for part in value.split(",") if part.strip()]
            layers.put(path, value, _source(document, (key,)), (key,))
    for key in _REPORT_KEYS:
        if key in document.data:
            layers.put(("commit", "exclude"), [_SCRATCH], _source(document, (key,)), (key,))
    if document.data.get(TOLERATING) in (True, "true", "yes", "on"):
        source = _source(document, (TOLERATING,))
        layers.put(("store", "work", "tolerated"), ["/**"], source, (TOLERATING,))


def notice_commits(layers: Layers) -> None:
    """Say of each key about commits that it has no effect where no code is moved.

    `store.work.branch` has one everywhere.
    """
    store = layers.values.get("store")
    if isinstance(store, dict) and store.get("kind") == "git":
        return
    told = set()
    for path in layers.sources:
        if path[0] == "commit" or path[:3] == ("store", "work", "tolerated"):
            where, key = layers.where(path), dotted(layers.origin(path))
            if key not in told:
                layers.notices.append(f"{where}: {key!r} has no effect where store.kind is not git")
                told.add(key)


def notice_variables(layers: Layers, env: Mapping[str, str]) -> None:
    """Say of each variable of that program that it has no effect, and what has.

    A name that anybody's program may have is spoken of only beside a sign of that program:
    a variable that nobody else has, or a key of its file.
    """
    known = sorted(name for name in VARIABLES if env.get(name))
    written = layers.document.data.keys() if layers.document else frozenset()
    old = (*_OWN_KEYS, *FLAT_KEYS, *COMMIT_KEYS, *IGNORED_KEYS)
    if not any(key in written for key in old):
        known = known if any(map(_OWN_VARIABLE.match, known)) else []
    for name in known:
        use = VARIABLES[name]
        instead = (
            f"use {use}" if use else "nothing replaces it, because nothing of the kind is needed"
        )
        layers.notices.append(f"the variable {name} has no effect here: {instead}")


def inherit_cadence(layers: Layers) -> None:
    """Let the router's old cadence be the workflow's where that has none of its own."""
    old, new = ("router", "review_every_n"), ("workflow", "review_every_n")
    if new in layers.sources or old not in layers.sources:
        return
    layers.put(new, layers.values["router"]["review_every_n"], layers.sources[old], old)


def _source(document: Document, path: KeyPath) -> Source:
    line, _ = document.positions[path]
    return Source("file", document.file, line)


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


def team_name_of(layers: Layers, path: KeyPath) -> KeyPath:
    """Return *path* under the name by which its author knows it."""
    origin = layers.origin(path)
    return origin if origin and origin[0] in TOP_KEYS else path


def team_problems(layers: Layers) -> Iterator[Found]:
    """Yield what is wrong with the names themselves; their values are the schema's to judge."""
    document = layers.document
    if document is None:
        return
    config = document.data.get(CONFIG)
    if config is not None and not isinstance(config, dict):
        message = "expected a mapping ('key: value' lines)"
        yield (CONFIG,), ConfigurationError(message, where=_place_in(document, (CONFIG,)))
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
                ConfigurationError(message, where=_place_in(document, written), hint=hint),
            )


def _place_in(document: Document, path: KeyPath) -> str:
    return located(document.where(path), path)
