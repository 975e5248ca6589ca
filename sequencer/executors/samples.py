"""Makes the simplest answer that fits a step's schema and labels, for rehearsals.

Not promised: a fitting answer for every schema. ``if``, ``not`` and unusual patterns are
ignored, and the check of the answer reports what does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sequencer.model.answers import DECISION_FIELDS
from sequencer.model.graph.choices import normalize

_MAX_DEPTH = 8
"""Deeper objects in the schema get only their required properties."""
_MOST = 100
"""Maximum items or letters of one value."""
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
"""Candidates for a text with a pattern; the first one that matches is used."""
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
    """Return a simple value that fits *schema*.

    If the answer decides where the run goes, it picks *label*. Texts with a pattern are *word* if
    that matches, so that two samples in one run can have different ids.

    >>> sample({"type": "object", "properties": {"pass": {"type": "boolean"}}})
    {'pass': True}
    >>> sample({"properties": {"decision": {"enum": ["No", "Yes!"]}}}, label="yes")
    {'decision': 'Yes!'}
    """
    sampler = _Sampler(schema, word)
    value = sampler.build_value(schema)
    if label is None or not isinstance(value, dict):
        return value
    resolved_schema = sampler.resolve(schema)
    properties = resolved_schema.get("properties", {})
    fields = [field for field in DECISION_FIELDS if isinstance(properties.get(field), Mapping)]
    if fields:
        choices = properties[fields[0]].get("enum", [label])
        matching_samples = (
            choice
            for choice in choices
            if isinstance(choice, str) and normalize(choice) == normalize(label)
        )
        return {**value, fields[0]: next(matching_samples, value.get(fields[0]))}
    is_open = resolved_schema.get("additionalProperties", True) is not False
    return {**value, DECISION_FIELDS[0]: label} if is_open else value


class _Sampler:
    def __init__(self, root: Mapping[str, Any], word: str) -> None:
        self._root, self._word = root, word

    def build_value(self, schema: Any, depth: int = 0) -> Any:
        schema = self.resolve(schema)
        if (values := _find_fixed_values(schema)) is not None:
            return values[0]
        kind = _get_schema_type(schema)
        if kind in ("integer", "number"):
            return _build_number(schema, is_whole=kind == "integer")
        containers = {"object": self._build_object, "array": self._build_array}
        if kind in containers:
            return containers[kind](schema, depth)
        return _PLAIN[kind] if kind in _PLAIN else _build_text(schema, self._word)

    def resolve(self, schema: Any) -> dict[str, Any]:
        """Return *schema* merged with its references and the first of its choices."""
        merged_schema: dict[str, Any] = {}
        stack, count = [schema], 0
        while stack and count < _MOST:
            part, count = stack.pop(), count + 1
            if not isinstance(part, Mapping):
                continue
            for key, value in part.items():
                if key == "properties" and isinstance(value, Mapping):
                    merged_schema[key] = {**merged_schema.get(key, {}), **value}
                elif key == "required" and isinstance(value, list):
                    merged_schema[key] = [*merged_schema.get(key, []), *value]
                elif key == "$ref":
                    stack.append(self._target(value))
                elif key == "allOf" and isinstance(value, list):
                    stack += value
                elif key in ("anyOf", "oneOf") and isinstance(value, list):
                    stack += value[:1]
                else:
                    merged_schema[key] = value
        return merged_schema

    def _target(self, reference: Any) -> Any:
        target: Any = self._root
        for part in str(reference).removeprefix("#").strip("/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if name:
                target = target.get(name) if isinstance(target, Mapping) else None
        return target

    def _build_object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        parts = schema.get("properties", {})
        required_names = [name for name in schema.get("required", []) if isinstance(name, str)]
        names = required_names if depth >= _MAX_DEPTH else [*parts, *required_names]
        if depth >= 2 * _MAX_DEPTH:
            return {}
        return {name: self.build_value(parts.get(name), depth + 1) for name in dict.fromkeys(names)}

    def _build_array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        count = schema.get("minItems", 0)
        count = min(count, _MOST) if isinstance(count, int) else 0
        first_schemas = schema.get("prefixItems")
        first_schemas = first_schemas if isinstance(first_schemas, list) else []
        forms = [*first_schemas[:count], *[schema.get("items")] * (count - len(first_schemas))]
        return (
            [] if depth >= 2 * _MAX_DEPTH else [self.build_value(form, depth + 1) for form in forms]
        )


_PLAIN = {"boolean": True, "null": None}


def _find_fixed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return a list of the one value that *schema* itself has; None: it has none."""
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return [schema["enum"][0]]
    return [schema["default"]] if "default" in schema else None


def _get_schema_type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind is None:
        kind = "object" if "properties" in schema or "required" in schema else None
        kind = kind or ("array" if "items" in schema or "prefixItems" in schema else "string")
    return str(kind)


def _build_number(schema: Mapping[str, Any], *, is_whole: bool) -> float | int:
    number: float | int = 0
    for key, offset in (("minimum", 0), ("exclusiveMinimum", 1 if is_whole else 0.5)):
        limit = schema.get(key)
        if isinstance(limit, (int, float)) and not isinstance(limit, bool):
            number = max(number, limit + offset)
    for key, negative_offset in (("maximum", 0), ("exclusiveMaximum", 1 if is_whole else 0.5)):
        limit = schema.get(key)
        if isinstance(limit, (int, float)) and not isinstance(limit, bool):
            number = min(number, limit - negative_offset)
    step = schema.get("multipleOf")
    if isinstance(step, (int, float)) and step > 0:
        number = -(-number // step) * step
    return int(number) if is_whole else number


def _build_text(schema: Mapping[str, Any], word: str) -> str:
    min_length, max_length = (
        schema.get(key, default) for key, default in (("minLength", 0), ("maxLength", _MOST))
    )
    min_length = min(min_length, _MOST) if isinstance(min_length, int) else 0
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        for text in (word, *_TEXTS, "a" * min_length, "1" * min_length):
            if text and min_length <= len(text) <= max_length and _is_match(pattern, text):
                return text
    return "a" * min_length


def _is_match(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False
