"""The keys of the schema, by key path, and the problems with their values in a file.

The schema's models are the only list of keys. Messages, variables, the list of sources and the
reference page are all derived from it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from msgspec import Struct

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.files.yamlfile import KeyPath, format_location
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import UNKNOWN_NAME, FieldSpec, ValidationError, format_value
from sequencer.model.step import Step

HELD_IN = "step"
"""A model's attribute for the step fields that a file puts beside its own; never itself a key."""


def annotation_at(root: type[Frozen], path: KeyPath) -> Any | None:
    """Return the type of the value at *path* below *root*; None: there is no such key.

    A free-form mapping has all keys, and the type of their values is Any.
    """
    annotation: Any = root
    for part in path:
        annotation = find_child_type(strip_optional(annotation), part)
        if annotation is None:
            return None
    return strip_optional(annotation)


def fields_by_key(model: type[Frozen]) -> dict[str, FieldSpec]:
    """Return the fields of *model* by their keys in a file.

    A model whose ``BESIDE`` names fields of a step has those fields instead of `HELD_IN`.
    """
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    step_keys: frozenset[str] = getattr(model, "BESIDE", frozenset())
    if not step_keys:
        return fields
    fields.pop(HELD_IN, None)
    return {name: field for name, field in Step.model_fields.items() if name in step_keys} | fields


def find_child_type(annotation: Any, part: str | int) -> Any | None:
    """Return the type of the value at *part* in a value of type *annotation*; None: no such key."""
    return strip_optional(_find_child(annotation, part))


def _find_child(annotation: Any, part: str | int) -> Any | None:
    if annotation is Any:
        return Any
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        fields = fields_by_key(annotation)
        if part in fields:
            return fields[str(part)].annotation
        return Any if annotation.model_options["extra"] == "allow" else None
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return get_args(annotation)[1]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return get_args(annotation)[0]
    return None


def strip_optional(annotation: Any) -> Any:
    """Return ``T`` for ``T | None`` and for ``Annotated[T, …]``."""
    if hasattr(annotation, "__metadata__"):
        return strip_optional(annotation.__origin__)
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return strip_optional(members[0]) if len(members) == 1 else annotation
    return annotation


def is_list(annotation: Any) -> bool:
    """Return whether *annotation* is the type of a list."""
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def is_mapping(annotation: Any) -> bool:
    """Return whether *annotation* is the type of a mapping or a model."""
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return True
    return isinstance(annotation, type) and issubclass(annotation, Frozen)


def known_keys(root: type[Frozen], path: KeyPath) -> tuple[str, ...]:
    """Return the names of the keys that are allowed below *path*; empty: all are.

    Fields marked ``exclude`` exist only to be refused with a reason, and are not listed.
    """
    annotation = annotation_at(root, path) if path else root
    # A value that may also be a word or a number has the keys of its mapping.
    members = (
        get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    )
    for model in members:
        if isinstance(model, type) and issubclass(model, Frozen):
            return tuple(name for name, field in fields_by_key(model).items() if not field.exclude)
    return ()


def iter_leaves(
    root: type[Frozen], path: KeyPath = (), within: tuple[type[Frozen], ...] = ()
) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, default) for each key that has a value or a free-form mapping.

    A model nested in the same model (the step that fixes another) counts as one value, and so does
    a model that may be written as its name.
    """
    within = (*within, root)
    for name, field in fields_by_key(root).items():
        annotation = strip_optional(field.annotation)
        if field.exclude:
            continue
        is_model = isinstance(annotation, type) and issubclass(annotation, Frozen)
        is_model = is_model and not hasattr(field.annotation, "__metadata__")
        if is_model and not any(issubclass(model, annotation) for model in within):
            yield from iter_leaves(annotation, (*path, name), within)
        else:
            yield (*path, name), field.get_default()


_MISSING = ("missing", "too_short", "extends_missing", "sink_missing")
"""In a later round, the removal of a wrong value may have caused these errors."""


class Problem(Struct, frozen=True):
    """One error that pydantic found."""

    path: KeyPath
    error: ConfigurationError
    is_missing: bool


def find_problems(
    error: ValidationError,
    root: type[Frozen],
    where: Callable[[KeyPath], str],
    origin: Callable[[KeyPath], KeyPath] = tuple,
) -> list[Problem]:
    """Return each problem that pydantic found in a value of *root*.

    *origin* returns the key path under which a value was written, if that is not its own.
    """
    problems = [_build_problem(details, root, where, origin) for details in _flatten_errors(error)]
    # If pydantic refuses an item, it also reports that the list is too short.
    return [
        problem
        for problem in problems
        if not problem.is_missing
        or not any(_is_below(other.path, problem.path) for other in problems)
    ]


def _is_below(path: KeyPath, parent: KeyPath) -> bool:
    return len(path) > len(parent) and path[: len(parent)] == parent


def _flatten_errors(error: ValidationError) -> Iterator[dict[str, Any]]:
    """Yield the details of each error; those of a nested model instead of the model's own."""
    for details in error.errors():
        nested_error = details.get("ctx", {}).get("error")
        if isinstance(nested_error, ValidationError):
            for nested_details in _flatten_errors(nested_error):
                yield {**nested_details, "loc": (*details["loc"], *nested_details["loc"])}
        else:
            yield dict(details)


def _build_problem(
    details: dict[str, Any],
    root: type[Frozen],
    locate: Callable[[KeyPath], str],
    origin: Callable[[KeyPath], KeyPath],
) -> Problem:
    # pydantic adds '[key]' if the key of a mapping is wrong, and not its value.
    path = tuple(part for part in details["loc"] if part != "[key]")
    kind = details["type"]
    if kind == "extra_forbidden":
        known_names = known_keys(root, path[:-1])
        position = format_location(locate(path), origin(path[:-1]))
        name_error = UnknownName("key", str(path[-1]), known_names, where=position)
        return Problem(path, name_error, is_missing=False)
    if kind == UNKNOWN_NAME:
        position = format_location(locate(path), origin(path))
        name, known_names = details["ctx"]["name"], details["ctx"]["known"]
        name_error = UnknownName(details["ctx"]["kind"], name, known_names, where=position)
        return Problem(path, name_error, is_missing=False)
    text = f"{details['msg']}{format_value(details)}"
    if len(path) < len(details["loc"]) and text.startswith(("should", "must", "can't")):
        text = f"the key {text}"
    problem = ConfigurationError(text, where=format_location(locate(path), origin(path)))
    return Problem(path, problem, is_missing=kind in _MISSING)
