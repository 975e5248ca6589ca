"""Where each value comes from: defaults < file < environment < flags.

Each layer sets values one by one, and each value remembers its source, for messages and for
``sequencer check --settings``. Variables that identify an agent's step are not settings: an
agent may call ``sequencer`` itself, and that must not change the settings.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from msgspec import Struct, field

from sequencer.errors import ConfigurationError
from sequencer.files import keys
from sequencer.files import yamlfile as reader
from sequencer.files.yamlfile import Document, KeyPath, Position
from sequencer.model.step import FORMER_AGENT, parse_retry
from sequencer.model.workflow import OWN_WORKFLOW
from sequencer.project.schema import Schema
from sequencer.project.store_kinds import store_kind

PREFIX = "SEQUENCER_"
IDENTITY_VARIABLES = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "RUN_ID",
        "RUN_NAME",
        "WORKFLOW",
        "STEP",
        "POSITION",
        "STEP_INDEX",
        "ITERATION",
        "TOKEN",
        "ATTEMPT",
        "RESULT",
        "STATE",
    )
)
_GUARD_MARK = f"{PREFIX}GUARD"
"""A guard finds its agent's processes by it, including a ``sequencer`` that the agent calls."""
_TRUST = f"{PREFIX}TRUST"
"""Decides whose code may run on this machine, so it is not a setting of a project."""
_KEEPS_NULL = (("agents",), ("step_defaults",), ("workflows",), ("teams", "roles"))
"""Sections where ``null`` has a meaning ("no time limit"); elsewhere it leaves the default."""


OWN_STEPS = ("supervisor", "main")
"""The steps of a file that has a top-level review but no steps."""
NAMED: Mapping[KeyPath, KeyPath] = {
    ("agent",): ("agent", "default"),
    ("workflow",): ("workflow", "name"),
}
"""Key that may hold only a name -> the key that the name is a value for."""
RENAMED: Mapping[KeyPath, KeyPath] = {
    ("steps",): ("workflows", OWN_WORKFLOW, "steps"),
    ("review",): ("workflows", OWN_WORKFLOW, "review"),
    ("step_defaults", "retry"): ("retry",),
    ("store", "patience_s"): ("store", "retry_for_s"),
    **{
        ("limits", f"max_{name}"): ("limits", name)
        for name in ("steps", "cost_usd", "seconds", "failures_in_row", "attempts")
    },
}
"""Two spellings of one key: the one that a file may use -> the one that the program uses."""


def to_program_path(path: KeyPath) -> KeyPath:
    """Return the program's path for a value that is written at *path*."""
    for length in (1, 2):
        if path[:length] in RENAMED:
            return (*RENAMED[path[:length]], *path[length:])
    return path


def _expand_short_form(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, value) for *value* as written at *path*; a short form yields several pairs."""
    path = to_program_path(path)
    if path == ("retry",) and isinstance(parts := parse_retry(value), dict):
        yield from (((*path, key), part) for key, part in parts.items())
    else:
        yield NAMED.get(path, path) if isinstance(value, str) else path, value


SECRET_KEY = re.compile(r"(?:.*[_-])?(?:key|token|secret|password)", re.IGNORECASE)
"""Matches the last part of a key whose value is not shown."""


class Source(Struct, frozen=True):
    """The layer, and the place in it, that set a value."""

    kind: Literal["default", "file", "environment", "flag"]
    file: Path | None = None
    line: int | None = None
    name: str | None = None
    """The variable or the flag."""

    def __str__(self) -> str:
        """Return the text that ``check --settings`` shows."""
        if self.kind == "file":
            return f"{self.file}:{self.line}"
        return self.name or self.kind


DEFAULT = Source("default")


class FlagValue(Struct, frozen=True):
    """A value from a command-line flag, and the flag as typed."""

    flag: str
    value: Any


class Layers(Struct):
    """The merged values of all layers so far; later layers win."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[KeyPath, Source] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    document: Document | None = None
    unavailable: dict[KeyPath, ConfigurationError] = field(default_factory=dict)
    """Keys that were left out because no plug-in provides them; see `Settings.unavailable`."""
    _origins: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def set_value(
        self, path: KeyPath, value: Any, source: Source, origin: KeyPath | None = None
    ) -> None:
        """Set the value at *path*; *origin* is its path in the file if that differs."""
        if _is_left_empty(path, value):
            return
        for place, part in _expand_short_form(path, value):
            self._set_value(place, part, source, origin or path)

    def _set_value(self, path: KeyPath, value: Any, source: Source, origin: KeyPath) -> None:
        parent = self.values
        for part in path[:-1]:
            child = parent.setdefault(str(part), {})
            if not isinstance(child, dict):
                # An earlier layer has a wrong value: keep it, so that it is reported.
                return
            parent = child
        if isinstance(parent.get(str(path[-1])), dict):
            self._forget_below(path)
        if _has_boolean(value):
            value = _with_words(value, keys.annotation_at(Schema, path))
        parent[str(path[-1])] = value
        self.sources[path] = source
        self._origins[path] = origin

    def _forget_below(self, path: KeyPath) -> None:
        for source_path in [key for key in self.sources if key[: len(path)] == path]:
            del self.sources[source_path]

    def locate(self, path: KeyPath) -> str:
        """Return the place where the value at *path* or its parent was set."""
        source, origin = self._origin(path)
        if source is not None and source.kind != "file":
            return str(source)
        return self.document.locate(origin) if self.document else "settings"

    def format_location(self, path: KeyPath) -> str:
        """Return the place followed by the key path as it was written."""
        return reader.format_location(self.locate(path), self.origin(path))

    def origin(self, path: KeyPath) -> KeyPath:
        """Return the path of the value in the file; it may have another spelling there."""
        return self._origin(path)[1]

    def position(self, path: KeyPath) -> Position:
        """Return line and column of *path* in the file, or (0, 0) if it is not in the file."""
        source, origin = self._origin(path)
        if self.document is None or (source is not None and source.kind != "file"):
            return 0, 0
        return self.document.position(origin) or (0, 0)

    def _origin(self, path: KeyPath) -> tuple[Source | None, KeyPath]:
        for length in range(len(path), 0, -1):
            source = self.sources.get(path[:length])
            if source is not None:
                return source, self._origins[path[:length]] + path[length:]
        positions = self.document.positions if self.document else {}
        # An empty path is the whole file, which has no other spelling.
        for short_path, full_path in RENAMED.items() if path and path not in positions else ():
            # *path* is below the renamed key, or contains it.
            if short_path in positions and full_path[: len(path)] == path[: len(full_path)]:
                return None, short_path + path[len(full_path) :]
        return None, path


def _is_left_empty(path: KeyPath, value: Any) -> bool:
    """Return whether *value* leaves the key at *path* at its default.

    An unknown key is an error even without a value.
    """
    # An empty `steps:` is a mistake: a person who forgot the list doesn't want the default steps.
    if value not in (None, {}) or path == ("steps",):
        return False
    if any(len(path) > len(top) and path[: len(top)] == top for top in _KEEPS_NULL):
        return False
    annotation = keys.annotation_at(Schema, path)
    return annotation is not None and (value is None or keys.is_mapping(annotation))


def _has_boolean(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(map(_has_boolean, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bool)


def _with_words(value: Any, annotation: Any) -> Any:
    """Return *value* with booleans as words, which only a field of type bool accepts.

    pydantic accepts ``true`` as 1 for a number. Free-form values (an agent's options, a schema)
    keep their types. A boolean for text stays as it is and is an error.
    """
    if annotation is Any or annotation is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return [_with_words(item, keys.find_child_type(annotation, 0)) for item in value]
    if isinstance(value, dict):
        return {
            key: _with_words(item, keys.find_child_type(annotation, key))
            for key, item in value.items()
        }
    return value


_WORDS = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(("false", "no", "off"), False)


def convert_words(value: Any, annotation: Any) -> Any:
    """Return *value* with words converted to the booleans and numbers of type *annotation*.

    A boolean of the file became a word (see `_with_words`), and a variable holds only text.
    """
    members = [annotation]
    if get_origin(annotation) in (Union, UnionType):
        members = [keys.strip_optional(member) for member in get_args(annotation)]
    if isinstance(value, str):
        if bool in members:
            return _WORDS.get(value.lower(), value)
        is_number = (int in members or float in members) and str not in members
        number = reader.parse_scalar(value.strip()) if is_number else value
        return number if isinstance(number, (int, float)) else value
    if isinstance(value, list):
        container = next((member for member in members if keys.is_list(member)), None)
        return [convert_words(item, keys.find_child_type(container, 0)) for item in value]
    if isinstance(value, dict):
        container = next((member for member in members if keys.is_mapping(member)), None)
        return {
            key: convert_words(item, keys.find_child_type(container, key))
            for key, item in value.items()
        }
    return value


def flatten(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, leaf) for each leaf below *value*; an empty mapping is a leaf too."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from flatten(child, (*path, key))
    elif path:
        yield path, value


def add_file(layers: Layers, document: Document, known: Container[str]) -> None:
    """Add the values of *document* to *layers*, except for the top-level keys in *known*."""
    for key, value in document.data.items():
        for leaf_path, leaf in flatten(value, (key,)) if key not in known else ():
            layers.set_value(leaf_path, leaf, source_in(document, leaf_path))


def source_in(document: Document, path: KeyPath) -> Source:
    """Return the source of the value at *path* in *document*."""
    line, _ = document.positions[path]
    return Source("file", document.file, line)


def add_environment(layers: Layers, env: Mapping[str, str]) -> None:
    """Add the ``SEQUENCER_…`` variables to *layers*; unknown ones become notices.

    Raises:
        ConfigurationError: a list or mapping in a variable is not YAML.
    """
    for variable in sorted(env):
        text = env[variable]
        if not variable.startswith(PREFIX) or not text:
            continue
        if variable in IDENTITY_VARIABLES or variable in (_GUARD_MARK, _TRUST):
            continue
        path: KeyPath = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if "" in path[1:]:
            layers.notices.append(f"{variable} is ignored: a name is missing next to '__'")
            continue
        annotation = keys.annotation_at(Schema, path)
        is_short = path in (*NAMED, ("retry",), ("review", "step"))
        is_section = keys.is_mapping(annotation) and not text.startswith("{") and not is_short
        if annotation is None or is_section:
            layers.notices.append(_unknown_variable(variable, annotation, path))
            continue
        source = Source("environment", name=variable)
        for leaf_path, value in flatten(_parse_variable(text, annotation, variable), path):
            layers.set_value(leaf_path, value, source)


def _parse_variable(text: str, annotation: Any, variable: str) -> Any:
    bracket = "{" if keys.is_mapping(annotation) else "[" if keys.is_list(annotation) else "\0"
    if text.startswith(bracket):
        return reader.parse_value(text, Path(variable))
    if keys.is_list(annotation):
        return [item.strip() for item in text.split(",") if item.strip()]
    if annotation is Any:
        is_nested = text.startswith(("[", "{"))
        return reader.parse_value(text, Path(variable)) if is_nested else reader.parse_scalar(text)
    return text


def variable_name(path: KeyPath) -> str:
    """Return the variable that sets *path*.

    >>> variable_name(("limits", "cost_usd"))
    'SEQUENCER_LIMITS__COST_USD'
    """
    return PREFIX + "__".join(str(part).upper() for part in path)


def _unknown_variable(variable: str, annotation: Any, path: KeyPath) -> str:
    if annotation is not None:
        child_keys = keys.known_keys(Schema, path) or ("NAME",)
        names = ", ".join(variable_name((*path, key)) for key in child_keys)
        return f"{variable} is ignored: it names a section; its values are {names}"
    variable_names = [variable_name(leaf) for leaf, _ in keys.iter_leaves(Schema)]
    matches = get_close_matches(variable, variable_names, n=1)
    guess = f"; did you mean {matches[0]}?" if matches else ""
    return f"{variable} is ignored: there is no such setting{guess}"


def choose_own_steps(layers: Layers) -> None:
    """Choose the workflow of ``steps`` and ``review`` if the settings name no other one."""
    steps, review = RENAMED["steps",], RENAMED["review",]
    paths = [path for path in layers.sources if path[:3] in (steps, review)]
    if not paths:
        return
    source, origin = layers.sources[paths[0]], layers.origin(paths[0])
    if ("workflow", "name") not in layers.sources:
        layers.set_value(("workflow", "name"), OWN_WORKFLOW, source, origin)
    if not {(*steps[:2], key) for key in ("steps", "extends")} & layers.sources.keys():
        layers.set_value(steps, list(OWN_STEPS), source, origin)


def inherit_cadence(layers: Layers) -> None:
    """Use the router's old review interval if the workflow has none."""
    old_path, new_path = ("router", "review_every_n"), ("workflow", "review_every_n")
    if new_path in layers.sources or old_path not in layers.sources:
        return
    layers.set_value(
        new_path, layers.values["router"]["review_every_n"], layers.sources[old_path], old_path
    )


def add_former_agent_notices(layers: Layers) -> None:
    """Add a notice for each step that uses the former name of the key ``agent``."""
    document = layers.document
    for path in document.positions if document else ():
        if path[-1] == FORMER_AGENT and path[0] in ("steps", "review", "workflows", "teams"):
            where = document.locate(path) if document else ""
            layers.notices.append(
                f"{where}: {reader.format_key_path(path)!r} is read as 'agent', its present name"
            )


def add_commit_notices(layers: Layers) -> None:
    """Add a notice for each key about commits if the store moves no code, so it has no effect.

    `store.work.branch` has an effect with every store.
    """
    store = layers.values.get("store")
    name = store.get("kind") if isinstance(store, dict) else None
    with suppress(ConfigurationError):  # `setting_checks` reports it
        if isinstance(name, str) and store_kind(name).code is not None:
            return
    reported_keys = set()
    for path in layers.sources:
        if path[0] == "commit" or path[:3] == ("store", "work", "tolerated"):
            where, key = layers.locate(path), reader.format_key_path(layers.origin(path))
            if key not in reported_keys:
                layers.notices.append(f"{where}: {key!r} has no effect with store.kind file")
                reported_keys.add(key)
