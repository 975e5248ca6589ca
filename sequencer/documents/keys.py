"""Questions about the keys that the schema knows, by key path.

The schema's models are the one list of keys; messages, variables, the list of sources and
the reference page are all derived from it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sequencer.documents.reader import KeyPath

HELD_IN = "step"
"""Where a model keeps the fields that stand beside its own in a file; no key of a file."""


def dotted(path: KeyPath) -> str:
    """Return *path* as people write it.

    >>> dotted(("workflows", "nightly", "steps", 1, "model"))
    'workflows.nightly.steps[1].model'
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def annotation_at(root: type[BaseModel], path: KeyPath) -> Any | None:
    """Return the type of the value at *path* below *root*; None where no such key is known.

    Within free-form mappings every key is known, and its type is Any.
    """
    here: Any = root
    for part in path:
        here = below(without_none(here), part)
        if here is None:
            return None
    return without_none(here)


def written_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of *model* by the keys that stand for them in a file.

    A model whose ``BESIDE`` has fields of another one takes those instead of its own `HELD_IN`.
    """
    own = {field.alias or name: field for name, field in model.model_fields.items()}
    beside: Mapping[str, FieldInfo] = getattr(model, "BESIDE", {})
    if beside:
        own.pop(HELD_IN, None)
    return {**beside, **own}


def below(annotation: Any, part: str | int) -> Any | None:
    """Return the type of what is at *part* below a value of type *annotation*."""
    return without_none(_below(annotation, part))


def _below(here: Any, part: str | int) -> Any | None:
    if here is Any:
        return Any
    if isinstance(here, type) and issubclass(here, BaseModel):
        fields = written_fields(here)
        if part in fields:
            return fields[str(part)].annotation
        return Any if here.model_config.get("extra") == "allow" else None
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
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def known_keys(root: type[BaseModel], path: KeyPath) -> tuple[str, ...]:
    """Return the names of the keys that may stand below *path*; empty where any may.

    Fields marked ``exclude`` are there to be refused with a reason, and aren't listed.
    """
    annotation = annotation_at(root, path) if path else root
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return tuple(
            name for name, field in written_fields(annotation).items() if not field.exclude
        )
    return ()


def leaves(
    root: type[BaseModel], path: KeyPath = (), within: tuple[type[BaseModel], ...] = ()
) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and default of each key that holds a value or a free mapping.

    A model inside of one of its own kind (the step that mends another) is one value.
    """
    within = (*within, root)
    for name, field in written_fields(root).items():
        annotation = without_none(field.annotation)
        if field.exclude:
            continue
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        if is_model and not any(issubclass(outer, annotation) for outer in within):
            yield from leaves(annotation, (*path, name), within)
        else:
            yield (*path, name), field.get_default(call_default_factory=True)
