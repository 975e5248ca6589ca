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

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct, field
from msgspec.json import decode

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.files import keys
from sequencer.files.yamlfile import Document, KeyPath, dotted, located
from sequencer.project.schema import Schema
from sequencer.project.sections import Found
from sequencer.project.sources import OWN, RENAMED, Layers, Source, source_in


class Tables(Struct):
    """What ``builtin/hoidn.json`` says; the key that is written here stands with dots."""

    commit_keys: dict[str, str]
    """What is committed after a step; later ones win over earlier ones of the same meaning."""
    ignored_keys: frozenset[str]
    variables: dict[str, str | None]
    """The variables that it reads, and what is written here instead; None: nothing is needed."""
    flat_keys: dict[str, str] = field(name="keys")


@cache
def tables() -> Tables:
    """Return its keys and variables, which few projects have."""
    path = Path(__file__).parents[1].joinpath("builtin", "hoidn.json")
    return decode(path.read_bytes(), type=Tables)


_REPORT_KEYS = ("report_extensions", "report_path_globs")
_SCRATCH = "tmp/"
"""There, reports below this folder are never committed, whatever else says so."""
TOLERATING = "tolerate_doc_dirty"
OWN_VARIABLES = ("ORCHESTRATION_", "ORCHESTRATOR_", "SUPERVISOR_", "LOOP_", "ROUTER_")
"""How names begin that only that program has; the others (STATE_FILE) may be anybody's."""
OWN_KEYS = frozenset({"supervisor_prompt", "main_prompt", "reviewer_prompt"})
"""Keys that both programs know."""
_IGNORED_FAMILIES = re.compile(r"auto_?commit_[a-z_]+|max_[a-z_]+_bytes", re.ASCII)


def lay_keys(layers: Layers, document: Document) -> Iterator[str]:
    """Lay what *document* says in old spellings over *layers*; yield the keys that it knows."""
    known = tables()
    for key, dots in known.flat_keys.items():
        if key in document.data:
            path, source = tuple(dots.split(".")), source_in(document, (key,))
            layers.put(path, document.data[key], source, (key,))
    _lay_commits(layers, document)
    _lay_team_keys(layers, document)
    for key in document.data:
        if key in (TOLERATING, *TOP_KEYS, *known.flat_keys, *known.commit_keys):
            yield key
        elif key in known.ignored_keys or _IGNORED_FAMILIES.fullmatch(key):
            where = document.where((key,))
            layers.notices.append(f"{where}: {key!r} has no effect here")
            yield key


def _lay_commits(layers: Layers, document: Document) -> None:
    """Lay what the flat keys say about commits after a step."""
    for key, dots in tables().commit_keys.items():
        if key in document.data:
            path, value = tuple(dots.split(".")), document.data[key]
            if isinstance(value, str) and keys.is_list(keys.annotation_at(Schema, path)):
                value = [part.strip() for part in value.split(",") if part.strip()]
            layers.put(path, value, source_in(document, (key,)), (key,))
    for key in _REPORT_KEYS:
        if key in document.data:
            layers.put(("commit", "exclude"), [_SCRATCH], source_in(document, (key,)), (key,))
    if document.data.get(TOLERATING) in (True, "true", "yes", "on"):
        source = source_in(document, (TOLERATING,))
        layers.put(("store", "work", "tolerated"), ["/**"], source, (TOLERATING,))


def notice_variables(layers: Layers, env: Mapping[str, str]) -> None:
    """Say of each variable of that program that it has no effect, and what has.

    A name that anybody's program may have is spoken of only beside a sign of that program:
    a variable that nobody else has, or a key of its file.
    """
    old = tables()
    known = sorted(name for name in old.variables if env.get(name))
    written = layers.document.data.keys() if layers.document else frozenset()
    if written.isdisjoint(OWN_KEYS.union(old.flat_keys, old.commit_keys, old.ignored_keys)):
        known = known if any(name.startswith(OWN_VARIABLES) for name in known) else []
    for name in known:
        use = old.variables[name]
        instead = f"use {use}" if use else "nothing replaces it, because it is not needed"
        layers.notices.append(f"the variable {name} has no effect here: {instead}")


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


def _lay_team_keys(layers: Layers, document: Document) -> None:
    """Lay what *document* says about teams by their other names over *layers*."""
    for written, path in TEAM_KEYS.items():
        position = document.positions.get(written)
        if position is not None:
            value = document.data[str(written[0])]
            for part in written[1:]:
                value = value[part]
            layers.put(path, value, Source("file", document.file, position[0]), written)


def key_problems(document: Document) -> Iterator[Found]:
    """Yield what is wrong with the names themselves; their values are the schema's to judge."""
    config = document.data.get(CONFIG)
    if config is not None and not isinstance(config, dict):
        message = "expected a mapping ('key: value' lines)"
        yield (CONFIG,), ConfigurationError(message, where=_place_in(document, (CONFIG,)))
    known = [str(path[1]) for path in TEAM_KEYS if path[0] == CONFIG]
    for key in config if isinstance(config, dict) else ():
        if key not in known:
            place = located(document.where((CONFIG, key)), (CONFIG,))
            yield (CONFIG, key), UnknownName("key", key, known, where=place)
    own, workflows = ("workflows", OWN), document.data.get("workflows")
    is_file = isinstance(workflows, dict) and isinstance(workflows.get(OWN), str)
    for written, kept in {**TEAM_KEYS, **RENAMED}.items():
        path = own if is_file and kept[:2] == own else kept
        if written in document.positions and path in document.positions:
            line = document.positions[path][0]
            message = f"{dotted(path)} in line {line} is the same setting"
            hint = f"leave out {dotted(written)} or {dotted(path)}"
            yield (
                written,
                ConfigurationError(message, where=_place_in(document, written), hint=hint),
            )


def _place_in(document: Document, path: KeyPath) -> str:
    return located(document.where(path), path)
