"""Keys of hoidn/orchestration's orchestration.yaml that have other names in this program.

Such files load unchanged. Flat keys set the nested ones; if both are set, the nested key wins, as
in that program. Keys about its prompt files and spec files have no effect and cause one notice.
Its environment variables are never used, because half of them have names that other programs
use; a notice names the replacement of each.

``enableAgentTeams`` and ``teamConfig``, from configurations of issue trackers' agents, set keys
of ``teams``. Setting both spellings is an error: a silent choice would hide the mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct, field
from msgspec.json import decode

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.files import keys
from sequencer.files.yamlfile import Document, KeyPath, format_key_path, format_location
from sequencer.model.workflow import OWN_WORKFLOW
from sequencer.project.schema import Schema
from sequencer.project.sections import LocatedError
from sequencer.project.sources import RENAMED, Layers, Source, source_in


class Tables(Struct):
    """The content of ``builtin/hoidn.json``; keys of this program are written with dots."""

    commit_keys: dict[str, str]
    """Keys about commits after a step -> our keys; a later key wins over an earlier synonym."""
    ignored_keys: frozenset[str]
    variables: dict[str, str | None]
    """Variables that it reads -> the replacement in this program; None: not needed."""
    flat_keys: dict[str, str] = field(name="keys")


@cache
def tables() -> Tables:
    """Return the tables, read on first use because few projects need them."""
    path = Path(__file__).parents[1].joinpath("builtin", "hoidn.json")
    return decode(path.read_bytes(), type=Tables)


_REPORT_KEYS = ("report_extensions", "report_path_globs")
_SCRATCH = "tmp/"
"""In that program, reports below this folder are never committed."""
TOLERATE_KEY = "tolerate_doc_dirty"
OWN_VARIABLES = ("ORCHESTRATION_", "ORCHESTRATOR_", "SUPERVISOR_", "LOOP_", "ROUTER_")
"""Prefixes that only that program uses; other names (STATE_FILE) may belong to any program."""
OWN_KEYS = frozenset({"supervisor_prompt", "main_prompt", "reviewer_prompt"})
"""Keys that both programs have."""
_IGNORED_FAMILIES = re.compile(r"auto_?commit_[a-z_]+|max_[a-z_]+_bytes", re.ASCII)


def add_old_keys(layers: Layers, document: Document) -> Iterator[str]:
    """Add the old keys of *document* to *layers*; yield each key that was handled."""
    key_tables = tables()
    for key, dotted_path in key_tables.flat_keys.items():
        if key in document.data:
            path, source = tuple(dotted_path.split(".")), source_in(document, (key,))
            layers.set_value(path, document.data[key], source, (key,))
    _add_commit_keys(layers, document)
    _add_team_keys(layers, document)
    for key in document.data:
        if key in (TOLERATE_KEY, *TOP_KEYS, *key_tables.flat_keys, *key_tables.commit_keys):
            yield key
        elif key in key_tables.ignored_keys or _IGNORED_FAMILIES.fullmatch(key):
            where = document.locate((key,))
            layers.notices.append(f"{where}: {key!r} has no effect here")
            yield key


def _add_commit_keys(layers: Layers, document: Document) -> None:
    """Add the flat keys about commits to *layers*."""
    for key, dotted_path in tables().commit_keys.items():
        if key in document.data:
            path, value = tuple(dotted_path.split(".")), document.data[key]
            if isinstance(value, str) and keys.is_list(keys.annotation_at(Schema, path)):
                value = [part.strip() for part in value.split(",") if part.strip()]
            layers.set_value(path, value, source_in(document, (key,)), (key,))
    # That program never commits reports in its scratch folder.
    for key in _REPORT_KEYS:
        if key in document.data:
            layers.set_value(("commit", "exclude"), [_SCRATCH], source_in(document, (key,)), (key,))
    # This key tolerates every path, not only documents.
    if document.data.get(TOLERATE_KEY) in (True, "true", "yes", "on"):
        source = source_in(document, (TOLERATE_KEY,))
        layers.set_value(("store", "work", "tolerated"), ["/**"], source, (TOLERATE_KEY,))


def add_variable_notices(layers: Layers, env: Mapping[str, str]) -> None:
    """Add a notice for each variable of that program: it has no effect, and what replaces it.

    A common name gets a notice only if there is a sign of that program: a variable with one of
    its prefixes, or a key of its file.
    """
    key_tables = tables()
    names = sorted(name for name in key_tables.variables if env.get(name))
    file_keys = layers.document.data.keys() if layers.document else frozenset()
    if file_keys.isdisjoint(
        OWN_KEYS.union(key_tables.flat_keys, key_tables.commit_keys, key_tables.ignored_keys)
    ):
        names = names if any(name.startswith(OWN_VARIABLES) for name in names) else []
    for name in names:
        replacement = key_tables.variables[name]
        advice = (
            f"use {replacement}" if replacement else "nothing replaces it, because it is not needed"
        )
        layers.notices.append(f"the variable {name} has no effect here: {advice}")


CONFIG = "teamConfig"
TEAM_KEYS: Mapping[KeyPath, KeyPath] = {
    ("enableAgentTeams",): ("teams", "enabled"),
    (CONFIG, "complexityThreshold"): ("teams", "threshold"),
    (CONFIG, "maxTeamSize"): ("teams", "max_size"),
    (CONFIG, "teammateModel"): ("teams", "teammate_model"),
    (CONFIG, "leadModel"): ("teams", "lead_model"),
    (CONFIG, "enabledClassifications"): ("teams", "classifications"),
}
TOP_KEYS = frozenset({"enableAgentTeams", CONFIG})


def _add_team_keys(layers: Layers, document: Document) -> None:
    """Add the other spellings of team keys in *document* to *layers*."""
    for spelling, path in TEAM_KEYS.items():
        position = document.positions.get(spelling)
        if position is not None:
            value = document.data[str(spelling[0])]
            for part in spelling[1:]:
                value = value[part]
            layers.set_value(path, value, Source("file", document.file, position[0]), spelling)


def key_problems(document: Document) -> Iterator[LocatedError]:
    """Yield the problems of the key names; the schema checks their values."""
    config = document.data.get(CONFIG)
    if config is not None and not isinstance(config, dict):
        message = "expected a mapping ('key: value' lines)"
        yield (CONFIG,), ConfigurationError(message, where=_format_location(document, (CONFIG,)))
    known_keys = [str(path[1]) for path in TEAM_KEYS if path[0] == CONFIG]
    for key in config if isinstance(config, dict) else ():
        if key not in known_keys:
            place = format_location(document.locate((CONFIG, key)), (CONFIG,))
            yield (CONFIG, key), UnknownName("key", key, known_keys, where=place)
    own_path, workflows = ("workflows", OWN_WORKFLOW), document.data.get("workflows")
    is_file = isinstance(workflows, dict) and isinstance(workflows.get(OWN_WORKFLOW), str)
    for spelling, target in {**TEAM_KEYS, **RENAMED}.items():
        path = own_path if is_file and target[:2] == own_path else target
        if spelling in document.positions and path in document.positions:
            line = document.positions[path][0]
            message = f"{format_key_path(path)} in line {line} is the same setting"
            hint = f"leave out {format_key_path(spelling)} or {format_key_path(path)}"
            yield (
                spelling,
                ConfigurationError(message, where=_format_location(document, spelling), hint=hint),
            )


def _format_location(document: Document, path: KeyPath) -> str:
    return format_location(document.locate(path), path)
