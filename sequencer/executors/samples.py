"""What an agent would answer that does as little as its step's schema and its ways allow.

For rehearsals. Every usual form has a sample: what a form says with ``if``, ``not`` or an odd
``pattern`` is not looked at, and the check of the answer tells what does not fit then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sequencer.model.answers import DECISION_FIELDS
from sequencer.model.graph.choices import normalise

_MAX_DEPTH = 8
"""Of a form in a form; a deeper part has what it requires and nothing else."""
_MOST = 100
"""Items or letters of one value."""
_TEXTS = (
    "",
    "a",
    "1",
    "A1",
    "main",
    "2026-01-01",
    "2026-01-01T00:00:00Z",
    "a-1",
    "A-1",
    "a.b",
    "#1",
)
"""Where a pattern asks for more than a length: the first that it takes."""
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "nobody@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "127.0.0.1",
}


def sample(schema: Mapping[str, Any], label: str | None = None, word: str = "") -> Any:
    """Return a plain value of the form that *schema* asks for.

    Where the answer picks a way, *label* is the one to take. Names and the like are *word*, if
    their pattern takes it: two samples in one run need not have the same ids.

    >>> sample({"type": "object", "properties": {"pass": {"type": "boolean"}}})
    {'pass': True}
    >>> sample({"properties": {"decision": {"enum": ["No", "Yes!"]}}}, label="yes")
    {'decision': 'Yes!'}
    """
    sampler = _Sampler(schema, word)
    value = sampler.of(schema)
    if label is None or not isinstance(value, dict):
        return value
    resolved = sampler.resolved(schema)
    properties = resolved.get("properties", {})
    asked = [field for field in DECISION_FIELDS if isinstance(properties.get(field), Mapping)]
    if asked:
        known = properties[asked[0]].get("enum", [label])
        fitting = (
            one for one in known if isinstance(one, str) and normalise(one) == normalise(label)
        )
        return {**value, asked[0]: next(fitting, value.get(asked[0]))}
    is_open = resolved.get("additionalProperties", True) is not False
    return {**value, DECISION_FIELDS[0]: label} if is_open else value


class _Sampler:
    def __init__(self, whole: Mapping[str, Any], word: str) -> None:
        self._whole, self._word = whole, word

    def of(self, schema: Any, depth: int = 0) -> Any:
        schema = self.resolved(schema)
        if (given := _given(schema)) is not None:
            return given[0]
        kind = _type_of(schema)
        if kind in ("integer", "number"):
            return _number(schema, is_whole=kind == "integer")
        whole = {"object": self._object, "array": self._array}
        if kind in whole:
            return whole[kind](schema, depth)
        return _PLAIN[kind] if kind in _PLAIN else _text(schema, self._word)

    def resolved(self, schema: Any) -> dict[str, Any]:
        """Return *schema* with what it refers to and the first of its choices in it."""
        found: dict[str, Any] = {}
        pending, seen = [schema], 0
        while pending and seen < _MOST:
            part, seen = pending.pop(), seen + 1
            if not isinstance(part, Mapping):
                continue
            for key, value in part.items():
                if key == "properties" and isinstance(value, Mapping):
                    found[key] = {**found.get(key, {}), **value}
                elif key == "required" and isinstance(value, list):
                    found[key] = [*found.get(key, []), *value]
                elif key == "$ref":
                    pending.append(self._target(value))
                elif key == "allOf" and isinstance(value, list):
                    pending += value
                elif key in ("anyOf", "oneOf") and isinstance(value, list):
                    pending += value[:1]
                else:
                    found[key] = value
        return found

    def _target(self, reference: Any) -> Any:
        here: Any = self._whole
        for part in str(reference).removeprefix("#").strip("/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if name:
                here = here.get(name) if isinstance(here, Mapping) else None
        return here

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        parts = schema.get("properties", {})
        required = [name for name in schema.get("required", []) if isinstance(name, str)]
        names = required if depth >= _MAX_DEPTH else [*parts, *required]
        if depth >= 2 * _MAX_DEPTH:
            return {}
        return {name: self.of(parts.get(name), depth + 1) for name in dict.fromkeys(names)}

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        count = schema.get("minItems", 0)
        count = min(count, _MOST) if isinstance(count, int) else 0
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        forms = [*first[:count], *[schema.get("items")] * (count - len(first))]
        return [] if depth >= 2 * _MAX_DEPTH else [self.of(form, depth + 1) for form in forms]


_PLAIN = {"boolean": True, "null": None}


def _given(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return a list with the value that *schema* itself names; None: it names none."""
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return [schema["enum"][0]]
    return [schema["default"]] if "default" in schema else None


def _type_of(schema: Mapping[str, Any]) -> str:
    given = schema.get("type")
    if isinstance(given, list):
        given = next((one for one in given if one != "null"), "null")
    if given is None:
        given = "object" if "properties" in schema or "required" in schema else None
        given = given or ("array" if "items" in schema or "prefixItems" in schema else "string")
    return str(given)


def _number(schema: Mapping[str, Any], *, is_whole: bool) -> float | int:
    found: float | int = 0
    for key, more in (("minimum", 0), ("exclusiveMinimum", 1 if is_whole else 0.5)):
        bound = schema.get(key)
        if isinstance(bound, (int, float)) and not isinstance(bound, bool):
            found = max(found, bound + more)
    for key, less in (("maximum", 0), ("exclusiveMaximum", 1 if is_whole else 0.5)):
        bound = schema.get(key)
        if isinstance(bound, (int, float)) and not isinstance(bound, bool):
            found = min(found, bound - less)
    step = schema.get("multipleOf")
    if isinstance(step, (int, float)) and step > 0:
        found = -(-found // step) * step
    return int(found) if is_whole else found


def _text(schema: Mapping[str, Any], word: str) -> str:
    least, most = (schema.get(key, at) for key, at in (("minLength", 0), ("maxLength", _MOST)))
    least = min(least, _MOST) if isinstance(least, int) else 0
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        for text in (word, *_TEXTS, "a" * least, "1" * least):
            if text and least <= len(text) <= most and _fits(pattern, text):
                return text
    return "a" * least


def _fits(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False
