"""The YAML of ``@{ … }`` and of a chart's front matter: bounded, and as Mermaid reads it.

Read as a stream of events, so that a limit is met while it is read. Anchors, aliases and
tags are refused: a chart has no use for them.
"""

from __future__ import annotations

import re
from typing import Any

MAX_CHARACTERS = 65_536
MAX_DEPTH = 32

_CONSTANTS: dict[str, Any] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_CONSTANTS |= dict.fromkeys(("true", "True", "TRUE"), True)
_CONSTANTS |= dict.fromkeys(("false", "False", "FALSE"), False)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,14})", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(?:[0-9]{1,15}\.[0-9]{0,15}|\.[0-9]{1,15})(?:e[-+]?[0-9]{1,2})?", re.IGNORECASE
)

# The common form, which needs no YAML parser and so a tenth of the time.
_SIMPLE = re.compile(
    r" *shape: +([a-z][a-z-]*) *(?:, *label: +"
    r'"([^"\\\x00-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]*)" *)?'
)


class Unreadable(Exception):
    """The text is no YAML that a chart may hold; the message says why."""


def read_shape_data(text: str) -> Any:
    """Return what the inside of ``@{ … }`` says: on one line a flow mapping, else a block.

    >>> read_shape_data(' shape: circle, label: "Ready?" ')
    {'shape': 'circle', 'label': 'Ready?'}

    Raises:
        Unreadable: see `read_properties`.
    """
    simple = _SIMPLE.fullmatch(text)
    if simple and simple[1] not in _CONSTANTS:
        return {"shape": simple[1]} | ({"label": simple[2]} if simple[2] is not None else {})
    if "\n" in text:
        return read_properties(text + "\n")
    return read_properties("{\n" + text + "\n}")


def read_properties(text: str) -> Any:
    """Return the value that *text* spells; None if it holds nothing at all.

    Raises:
        Unreadable: not YAML, too long, too deep, a key twice, an anchor, alias or tag.
    """
    import yaml  # noqa: PLC0415 - most charts have none, and yaml takes a while to load

    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"more than {MAX_CHARACTERS} characters")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.add(event)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "bad text"
        raise Unreadable(problem) from error
    except UnicodeError as error:
        raise Unreadable("a character that is no text") from error
    return builder.value


class _Builder:
    """Puts the values of a stream of events together."""

    def __init__(self) -> None:
        self.value: Any = None
        self._open: list[tuple[Any, list[str]]] = []
        self._documents = 0

    def add(self, event: Any) -> None:
        name = type(event).__name__
        if name == "AliasEvent" or getattr(event, "anchor", None) is not None:
            raise Unreadable("anchors and aliases ('&', '*') are not read; use quotes")
        if name in ("ScalarEvent", "MappingStartEvent", "SequenceStartEvent") and event.tag:
            raise Unreadable("tags ('!') are not read; use quotes")
        if name == "ScalarEvent":
            self._put(_plain(event.value) if event.implicit[0] else event.value)
        elif name in ("MappingStartEvent", "SequenceStartEvent"):
            if len(self._open) == MAX_DEPTH:
                raise Unreadable(f"nested deeper than {MAX_DEPTH} levels")
            self._open.append(({} if name == "MappingStartEvent" else [], []))
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            self._put(self._open.pop()[0])
        elif name == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise Unreadable("a second document ('---')")

    def _put(self, value: Any) -> None:
        if not self._open:
            self.value = value
            return
        container, keys = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif keys:
            container[keys.pop()] = value
        else:
            key = as_text(value)
            if key in container:
                raise Unreadable(f"key {key!r} is there twice")
            keys.append(key)


def _plain(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def as_text(value: Any) -> str:
    """Return *value* as a label shows it.

    >>> [as_text(value) for value in ("a", 5, 1.50, 2.0, True, None, ["b", 2], {"a": 1})]
    ['a', '5', '1.5', '2', 'true', 'null', 'b,2', '[object Object]']
    """
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list):
        return ",".join("" if item is None else as_text(item) for item in value)
    return "[object Object]" if isinstance(value, dict) else str(value)
