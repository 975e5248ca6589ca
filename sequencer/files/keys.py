"""The keys that the schema knows, by key path, and what is wrong with what stands there.

The schema's models are the one list of keys; messages, variables, the list of sources and
the reference page are all derived from it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.files.yamlfile import KeyPath, located
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import UNKNOWN_NAME, FieldSpec, ValidationError, shown_value
from sequencer.model.step import Step

HELD_IN = "step"
"""Where a model keeps the fields that stand beside its own in a file; no key of a file."""


def annotation_at(root: type[Frozen], path: KeyPath) -> Any | None:
    """Return the type of the value at *path* below *root*; None where no such key is known.

    Within free-form mappings every key is known, and its type is Any.
    """
    here: Any = root
    for part in path:
        here = below(without_none(here), part)
        if here is None:
            return None
    return without_none(here)


def written_fields(model: type[Frozen]) -> dict[str, FieldSpec]:
    """Return the fields of *model* by the keys that stand for them in a file.

    A model whose ``BESIDE`` names fields of a step takes those instead of its own `HELD_IN`.
    """
    own = {field.alias or name: field for name, field in model.model_fields.items()}
    beside: frozenset[str] = getattr(model, "BESIDE", frozenset())
    if not beside:
        return own
    own.pop(HELD_IN, None)
    return {name: field for name, field in Step.model_fields.items() if name in beside} | own


def below(annotation: Any, part: str | int) -> Any | None:
    """Return the type of what is at *part* below a value of type *annotation*."""
    return without_none(_below(annotation, part))


def _below(here: Any, part: str | int) -> Any | None:
    if here is Any:
        return Any
    if isinstance(here, type) and issubclass(here, Frozen):
        fields = written_fields(here)
        if part in fields:
            return fields[str(part)].annotation
        return Any if here.model_options["extra"] == "allow" else None
    origin = get_origin(here)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return get_args(here)[1]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return get_args(here)[0]
    return None


def without_none(annotation: Any) -> Any:
    """Return ``T`` for ``T | None`` and for ``Annotated[T, …]``."""
    if hasattr(annotation, "__metadata__"):
        return without_none(annotation.__origin__)
    if get_origin(annotation) in (Union, UnionType):
        kept = [member for member in get_args(annotation) if member is not type(None)]
        return without_none(kept[0]) if len(kept) == 1 else annotation
    return annotation


def is_list(annotation: Any) -> bool:
    """Return whether *annotation* is that of a list of values."""
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def is_mapping(annotation: Any) -> bool:
    """Return whether *annotation* has keys below it."""
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return True
    return isinstance(annotation, type) and issubclass(annotation, Frozen)


def known_keys(root: type[Frozen], path: KeyPath) -> tuple[str, ...]:
    """Return the names of the keys that may stand below *path*; empty where any may.

    Fields marked ``exclude`` are there to be refused with a reason, and aren't listed.
    """
    annotation = annotation_at(root, path) if path else root
    # What may also be a word or a number has the keys of its mapping.
    members = (
        get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    )
    for model in members:
        if isinstance(model, type) and issubclass(model, Frozen):
            return tuple(name for name, field in written_fields(model).items() if not field.exclude)
    return ()


def leaves(
    root: type[Frozen], path: KeyPath = (), within: tuple[type[Frozen], ...] = ()
) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and default of each key that holds a value or a free mapping.

    A model inside of one of its own kind (the step that fixes another) is one value, and so is
    one that may be written as its name.
    """
    within = (*within, root)
    for name, field in written_fields(root).items():
        annotation = without_none(field.annotation)
        if field.exclude:
            continue
        is_model = isinstance(annotation, type) and issubclass(annotation, Frozen)
        is_model = is_model and not hasattr(field.annotation, "__metadata__")
        if is_model and not any(issubclass(outer, annotation) for outer in within):
            yield from leaves(annotation, (*path, name), within)
        else:
            yield (*path, name), field.get_default()


_MISSING = ("missing", "too_short", "extends_missing", "sink_missing")
"""In a later round these are what taking a wrong value out has left behind."""


class Problem(NamedTuple):
    """One thing that pydantic found."""

    path: KeyPath
    error: ConfigurationError
    is_missing: bool


def problems_of(
    error: ValidationError,
    root: type[Frozen],
    where: Callable[[KeyPath], str],
    origin: Callable[[KeyPath], KeyPath] = tuple,
) -> list[Problem]:
    """Return each problem that pydantic found in a value of *root*.

    *origin* says under which key a value was written, where that is not its own.
    """
    found = [_problem(one, root, where, origin) for one in _single(error)]
    # pydantic calls a list too short as well when an item of it was refused.
    return [
        one
        for one in found
        if not one.is_missing
        or not any(len(p) > len(one.path) and p[: len(one.path)] == one.path for p, *_ in found)
    ]


def _single(error: ValidationError) -> Iterator[dict[str, Any]]:
    """Yield each error of *error*, those instead that a model within it had with its fields."""
    for one in error.errors():
        inner = one.get("ctx", {}).get("error")
        if isinstance(inner, ValidationError):
            for below in _single(inner):
                yield {**below, "loc": (*one["loc"], *below["loc"])}
        else:
            yield dict(one)


def _problem(
    found: dict[str, Any],
    root: type[Frozen],
    where: Callable[[KeyPath], str],
    origin: Callable[[KeyPath], KeyPath],
) -> Problem:
    # pydantic adds a '[key]' where a mapping's key is wrong rather than its value.
    path = tuple(part for part in found["loc"] if part != "[key]")
    kind = found["type"]
    if kind == "extra_forbidden":
        known = known_keys(root, path[:-1])
        place = located(where(path), origin(path[:-1]))
        unknown = UnknownName("key", str(path[-1]), known, where=place)
        return Problem(path, unknown, is_missing=False)
    if kind == UNKNOWN_NAME:
        place = located(where(path), origin(path))
        name, known = found["ctx"]["name"], found["ctx"]["known"]
        unknown = UnknownName(found["ctx"]["kind"], name, known, where=place)
        return Problem(path, unknown, is_missing=False)
    text = f"{found['msg']}{shown_value(found)}"
    if len(path) < len(found["loc"]) and text.startswith(("should", "must", "can't")):
        text = f"the key {text}"
    problem = ConfigurationError(text, where=located(where(path), origin(path)))
    return Problem(path, problem, is_missing=kind in _MISSING)
