"""The JSON schema of orchestration.yaml as `sequencer check --schema` prints it: keys, defaults."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from tests.project.documents import ROOT
from tests.unit.cli.calling import call


@functools.cache
def schema() -> dict[str, Any]:
    """Return the whole schema."""
    found: dict[str, Any] = call(ROOT, "check", "--schema").json
    return found


def fields(kind: str) -> dict[str, Any]:
    """Return the fields of *kind*, such as `Step`, without those that are only former names."""
    properties: dict[str, Any] = schema()["$defs"][kind]["properties"]
    return {name: field for name, field in properties.items() if not field.get("deprecated")}


def deprecated() -> list[str]:
    """Return the keys of the whole file that are former names, or mean nothing."""
    return [name for name, field in schema()["properties"].items() if field.get("deprecated")]


def leaves(kind: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, default) of each field of *kind*, and of the mappings in it."""
    for name, field in fields(kind).items():
        inner = _find_mapping(field)
        if inner is None or inner == "Step":
            yield prefix + name, field.get("default")
        else:
            yield from leaves(inner, f"{prefix}{name}.")


def has_key(path: list[str]) -> bool:
    """Return whether orchestration.yaml may have a value at *path*."""
    return _has_key(schema(), path)


def _has_key(field: dict[str, Any], path: list[str]) -> bool:
    if "$ref" in field and _has_key(schema()["$defs"][_name(field["$ref"])], path):
        return True
    if any(_has_key(one, path) for one in field.get("anyOf", ())):
        return True
    if not path:
        return "$ref" not in field and "anyOf" not in field
    first, rest = path[0], path[1:]
    named = field.get("properties", {}).get(first)
    if named is not None:
        return not named.get("deprecated") and _has_key(named, rest)
    others = [*field.get("patternProperties", {}).values(), field.get("additionalProperties")]
    return any(isinstance(one, dict) and _has_key(one, rest) for one in others)


def _find_mapping(field: dict[str, Any]) -> str | None:
    """Return the kind of the mapping that *field* has, if that is its first form."""
    while "anyOf" in field:
        field = field["anyOf"][0]
    return _name(field["$ref"]) if "$ref" in field else None


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
