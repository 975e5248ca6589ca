"""Read YAML that someone else may have written: bounded, unsurprising, with line numbers.

The file is read as a stream of events, so that the limits on depth and number of nodes apply while
it is read and not after it was built. An alias counts each time it is used. Words get only
the meaning that the core schema of YAML 1.2 gives them: only ``true`` and ``false`` are booleans;
``no``, ``1e``, ``010``, ``12:30`` and dates stay text. Tags, merge keys, duplicate keys, keys that
are not text, and second documents are refused.

Not promised: comments and the style of the text. This is not an editor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct, field

from sequencer.errors import ConfigurationError
from sequencer.files.regular import read_bytes

MAX_DEPTH = 32
MAX_NODES = 50_000

KeyPath = tuple[str | int, ...]
Position = tuple[int, int]
"""Line and column, both from 1."""

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]+|\.[0-9]+|(?:0|[1-9][0-9]*)(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?",
    re.ASCII,
)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True} | dict.fromkeys(
    ("false", "False", "FALSE"), False
)
# The C parser is fifty times faster; the Python parser accepts the same language.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def format_key_path(path: KeyPath) -> str:
    """Return *path* in the form that people write.

    >>> format_key_path(("workflows", "nightly", "steps", 1, "model"))
    'workflows.nightly.steps[1].model'
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def format_location(where: str, path: KeyPath) -> str:
    """Return *where*, followed by the key path if there is one."""
    return f"{where}: {format_key_path(path)}" if path else where


class Document(Struct, frozen=True):
    """The values of a file, and their positions."""

    file: Path
    data: dict[str, Any]
    positions: Mapping[KeyPath, Position]
    """The position of each key and each list item, by its path from the top."""

    def position(self, path: KeyPath) -> Position | None:
        """Return line and column of *path*, or of its nearest parent in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.positions:
                return self.positions[path[:length]]
        return None

    def locate(self, path: KeyPath) -> str:
        """Return the position of *path* as ``file:line:column``."""
        position = self.position(path)
        return f"{self.file}:{position[0]}:{position[1]}" if position else str(self.file)


def read(path: Path) -> Document:
    """Return the content of the YAML file *path*.

    Raises:
        ConfigurationError: see `regular.read_bytes` and `parse`.
    """
    return parse(read_bytes(path), path)


def parse(data: bytes, file: Path) -> Document:
    """Return the document of *data*, the content of *file*; an empty file has no keys.

    Raises:
        ConfigurationError: it is not UTF-8, not YAML, over a limit, or ambiguous; with line and
            column.
    """
    return parse_text(decode(data, file), file)


def parse_text(text: str, file: Path, first_line: int = 1) -> Document:
    """Return the document of *text*, which starts at line *first_line* of *file*.

    Raises:
        ConfigurationError: see `parse`.
    """
    node = _build_tree(text, file, first_line)
    if node is None or node.value is None:
        return Document(file, {}, {})
    if not isinstance(node.value, dict):
        line, column = node.position
        raise ConfigurationError(
            "expected 'key: value' lines at the top level", where=f"{file}:{line}:{column}"
        )
    return Document(file, node.value, dict(_iter_positions(node, ())))


def parse_value(text: str, file: Path) -> Any:
    """Return the value of the YAML *text*, under the limits of `parse`.

    Raises:
        ConfigurationError: see `parse`.
    """
    node = _build_tree(text, file, 1)
    return None if node is None else node.value


def _build_tree(text: str, file: Path, first_line: int) -> _Node | None:
    try:
        return _Builder(file, first_line).build(text)
    except yaml.YAMLError as error:
        raise _yaml_error(error, text, file, first_line) from error


def parse_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar.

    >>> [parse_scalar(text) for text in ("true", "3", "1e3", "0.5", "~")]
    [True, 3, 1000.0, 0.5, None]
    >>> [parse_scalar(text) for text in ("no", "010", "1_000", "2026-11-21", "12:30", ".inf")]
    ['no', '010', '1_000', '2026-11-21', '12:30', '.inf']
    """
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and isfinite(float(text)):
        return float(text)
    return text


def decode(data: bytes, file: Path) -> str:
    """Return *data* as text, without a byte order mark.

    Raises:
        ConfigurationError: it is not UTF-8; with line and column.
    """
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        valid_text = data[: error.start].decode("utf-8", "replace")
        line, column = _line_column(valid_text, len(valid_text))
        raise ConfigurationError(
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            where=f"{file}:{line}:{column}",
            hint="save the file as UTF-8",
        ) from error


def _line_column(text: str, offset: int) -> Position:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _yaml_error(
    error: yaml.YAMLError, text: str, file: Path, first_line: int
) -> ConfigurationError:
    mark = getattr(error, "problem_mark", None)
    offset = getattr(error, "position", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    hint = None
    location = str(file)
    if mark is not None:
        location = f"{file}:{mark.line + first_line}:{mark.column + 1}"
        lines = text.split("\n")
        line_end = lines[mark.line][mark.column :] if mark.line < len(lines) else ""
        if line_end.startswith("\t"):
            hint = "YAML does not allow tabs for indentation; use spaces"
        elif line_end[:1] in ("@", "`", "%", "&", "*", "!"):
            hint = f"put the text in quotes: it starts with {line_end[0]!r}"
    elif isinstance(offset, int):
        line, column = _line_column(text, offset)
        location = f"{file}:{line + first_line - 1}:{column}"
    return ConfigurationError(f"not YAML: {problem}", where=location, hint=hint)


class _Node(Struct):
    """A value, its position, and how much of the limits it uses."""

    value: Any
    position: Position
    children: dict[str | int, _Node] = field(default_factory=dict)
    key_positions: dict[str | int, Position] = field(default_factory=dict)
    size: int = 1
    height: int = 1


def _iter_positions(node: _Node, path: KeyPath) -> Iterator[tuple[KeyPath, Position]]:
    for key, child in node.children.items():
        yield (*path, key), node.key_positions[key]
        yield from _iter_positions(child, (*path, key))


class _Open(Struct):
    """A mapping or list whose end has not been read yet."""

    node: _Node
    anchor: str | None
    key: str | None = None
    key_position: Position = (1, 1)


class _Builder:
    """Turns parser events into nodes, and refuses the file as soon as a limit is exceeded."""

    def __init__(self, file: Path, first_line: int) -> None:
        self._file = file
        self._first_line = first_line
        self._open: list[_Open] = []
        self._anchors: dict[str, _Node | None] = {}
        self._root: _Node | None = None

    def build(self, text: str) -> _Node | None:
        documents = 0
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._build_error("a second document ('---') is not allowed here", event)
            elif isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent)):
                self._add(self._build_leaf(event), event, getattr(event, "anchor", None))
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                self._begin(event)
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                level = self._open.pop()
                self._add(level.node, event, level.anchor)
        return self._root

    def _build_leaf(self, event: yaml.ScalarEvent | yaml.AliasEvent) -> _Node:
        if isinstance(event, yaml.ScalarEvent):
            self._ensure_no_tag(event)
            is_plain = event.implicit[0]
            value = parse_scalar(event.value) if is_plain else event.value
            return _Node(value, self._position(event))
        name = event.anchor
        if name not in self._anchors:
            hint = f"put the text in quotes if it should start with '*': '*{name}'"
            raise self._build_error(f"there is no anchor for *{name}", event, hint)
        node = self._anchors[name]
        if node is None:
            raise self._build_error(f"*{name} is inside &{name}, which it refers to", event)
        return node

    def _begin(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        self._ensure_no_tag(event)
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        if self._needs_key():
            raise self._build_error("a key must be text, not a list or mapping", event)
        self._open.append(_Open(_Node(value, self._position(event)), event.anchor))
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if len(self._open) > MAX_DEPTH:
            raise self._build_error(f"nested deeper than {MAX_DEPTH} levels", event)

    def _add(self, node: _Node, event: yaml.Event, anchor: str | None) -> None:
        if anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._anchors[anchor] = node
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if self._needs_key():
            self._set_key(parent, node, event)
            return
        key: str | int
        if isinstance(parent.node.value, dict):
            assert parent.key is not None  # noqa: S101 - see _needs_key
            key, position = parent.key, parent.key_position
            parent.node.value[key] = node.value
            parent.key = None
        else:
            key = len(parent.node.value)
            # An alias is positioned where it is used; a list or mapping, where it starts.
            position = (
                self._position(event) if isinstance(event, yaml.AliasEvent) else node.position
            )
            parent.node.value.append(node.value)
        parent.node.children[key] = node
        parent.node.key_positions[key] = position
        self._count(parent.node, node, event)

    def _count(self, parent: _Node, node: _Node, event: yaml.Event) -> None:
        parent.size += node.size
        parent.height = max(parent.height, node.height + 1)
        # Count the open levels above too: an alias bomb grows on several levels at once.
        if sum(level.node.size for level in self._open) > MAX_NODES:
            raise self._build_error(f"more than {MAX_NODES} values, aliases counted in full", event)
        if len(self._open) + node.height > MAX_DEPTH + 1:
            raise self._build_error(f"nested deeper than {MAX_DEPTH} levels", event)

    def _needs_key(self) -> bool:
        return (
            bool(self._open)
            and isinstance(self._open[-1].node.value, dict)
            and self._open[-1].key is None
        )

    def _set_key(self, parent: _Open, node: _Node, event: yaml.Event) -> None:
        key = node.value
        if not isinstance(key, str):
            raise self._build_error(
                f"a key must be text, and {key!r} is not", event, "put the key in quotes"
            )
        # In quotes, '<<' is plain text.
        if key == "<<" and getattr(event, "implicit", (True,))[0]:
            raise self._build_error(
                "merge keys ('<<') are not supported", event, "write out the keys"
            )
        if key in parent.node.value:
            line = parent.node.key_positions[key][0]
            raise self._build_error(f"duplicate key {key!r}, first used in line {line}", event)
        parent.key, parent.key_position = key, self._position(event)

    def _ensure_no_tag(self, event: Any) -> None:
        if event.tag is not None:
            hint = "put the text in quotes if it should start with '!'"
            raise self._build_error(f"tags ({event.tag[:60]}) are not supported", event, hint)

    def _build_error(
        self, problem: str, event: yaml.Event, hint: str | None = None
    ) -> ConfigurationError:
        line, column = self._position(event)
        return ConfigurationError(problem, where=f"{self._file}:{line}:{column}", hint=hint)

    def _position(self, event: Any) -> Position:
        return event.start_mark.line + self._first_line, event.start_mark.column + 1
