"""What pydantic says about a value of a `Frozen` class: the last word, and every message.

Loading pydantic takes longer than most commands do, so nothing loads this module but a value
that `model.frozen` does not read by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, ForwardRef, Literal, Union, cast, get_args, get_origin

import pydantic
from pydantic_core import CoreConfig, PydanticCustomError, PydanticKnownError, SchemaValidator

from sequencer.model import fields
from sequencer.model.fields import Refusal, ValidationError
from sequencer.model.frozen import Frozen

_TWINS: dict[type[Frozen], type[pydantic.BaseModel]] = {}
_NAMES: dict[str, Any] = {}
"""The same by names of their own, for a class that holds one of its own kind."""
_OPEN: set[type[Frozen]] = set()
"""Classes that are being looked at."""


def validated(kind: Any, value: Any) -> Any:
    """Return *value* as one of type *kind*.

    Raises:
        ValidationError: it is none.
    """
    try:
        return _validator(kind).validate_python(value)
    except pydantic.ValidationError as error:
        raise ValidationError(error) from None


def validated_json(kind: type[Frozen], data: str | bytes) -> Any:
    """Return the JSON text *data* as an object of *kind*.

    Raises:
        ValidationError: it is none.
    """
    try:
        return _validator(cast("Any", kind)).validate_json(data)
    except pydantic.ValidationError as error:
        raise ValidationError(error) from None


def json_schema(kind: type[Frozen]) -> dict[str, Any]:
    """Return the JSON schema of *kind*."""
    return _twin(kind).model_json_schema()


@cache
def _validator(kind: Any) -> SchemaValidator:
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(_native(kind))
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    return SchemaValidator(adapter.core_schema, CoreConfig(title=name))


def _native(annotation: Any) -> Any:
    """Return *annotation* in pydantic's own words."""
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        held = ForwardRef(_name(annotation)) if annotation in _OPEN else _twin(annotation)
        return Annotated[held, pydantic.WrapValidator(_reading(annotation))]
    origin = get_origin(annotation)
    if origin is Annotated:
        markers = [one for marker in annotation.__metadata__ for one in _markers(marker)]
        return Annotated[(_native(annotation.__origin__), *markers)]
    if origin is None or origin is Literal:
        return annotation
    args = tuple(_native(one) for one in get_args(annotation))
    return Union[args] if origin in (Union, UnionType) else origin[args]  # noqa: UP007 - at run time


def _markers(marker: Any) -> Iterator[Any]:
    if isinstance(marker, fields.BeforeValidator):
        yield pydantic.BeforeValidator(_told(marker.change))
    elif isinstance(marker, fields.AfterValidator):
        yield pydantic.AfterValidator(_told(marker.change))
    else:
        yield pydantic.Field(**marker.limits)


def _told(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return *check* whose refusals pydantic understands."""

    def told(value: Any) -> Any:
        try:
            return check(value)
        except ValidationError as error:
            raise error.found from None
        except Refusal as refusal:
            found: Any = refusal
            if found.message is None:
                raise PydanticKnownError(found.kind, found.context) from None
            raise PydanticCustomError(found.kind, found.message, found.context) from None

    return told


def _reading(kind: type[Frozen]) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Return what makes objects of *kind* of those that pydantic makes, and checks them."""

    def read(value: Any, handler: Callable[[Any], Any]) -> Any:
        if isinstance(value, kind):
            return value
        for name in kind._before:  # noqa: SLF001 - the other half of that class
            value = _told(getattr(kind, name))(value)
        twin = handler(value)
        said = twin.model_fields_set
        values = {
            name: getattr(twin, name) if name in said else spec.get_default()
            for name, spec in kind.model_fields.items()
        }
        new = kind.made(values, frozenset(said), dict(twin.model_extra or {}))
        for name in kind._after:  # noqa: SLF001 - as above
            new = _told(getattr(kind, name))(new)
        return new

    return read


def _name(kind: type[Frozen]) -> str:
    return f"_{id(kind)}"


def _twin(kind: type[Frozen]) -> type[pydantic.BaseModel]:
    """Return pydantic's own model with the fields of *kind*."""
    if kind in _TWINS:
        return _TWINS[kind]
    _OPEN.add(kind)
    found: dict[str, Any] = {
        name: (_native(spec.annotation), _field(spec)) for name, spec in kind.model_fields.items()
    }
    _OPEN.remove(kind)
    config = cast("pydantic.ConfigDict", {**kind.model_options, "protected_namespaces": ()})
    twin = pydantic.create_model(kind.__name__, __config__=config, __doc__=kind.__doc__, **found)
    _TWINS[kind] = _NAMES[_name(kind)] = twin
    for each in () if _OPEN else _TWINS.values():
        each.model_rebuild(_types_namespace=_NAMES)
    return twin


def _field(spec: fields.FieldSpec) -> Any:
    more: dict[str, Any] = {}
    if not spec.is_required:
        more["default"] = None if isinstance(spec.default, Frozen) else spec.get_default()
    return pydantic.Field(alias=spec.alias, exclude=spec.exclude or None, **spec.limits, **more)
