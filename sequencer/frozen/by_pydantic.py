"""Validation of `Frozen` classes by pydantic, with error messages in the words of this program.

Loading pydantic takes longer than most commands, so this module is loaded only for a value that
`frozen.base` can't read itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import UnionType
from typing import Annotated, Any, ForwardRef, Literal, Union, cast, get_args, get_origin

import pydantic
from pydantic_core import CoreConfig, PydanticCustomError, PydanticKnownError, SchemaValidator

from sequencer.frozen import fields
from sequencer.frozen.fields import Checked, Refusal, ValidationError

_TWINS: dict[type[Checked], type[pydantic.BaseModel]] = {}
_NAMES: dict[str, Any] = {}
"""The twins by unique name, for a class that refers to itself."""
_OPEN: set[type[Checked]] = set()
"""Classes whose twins are under construction."""


def validate(kind: Any, value: Any) -> Any:
    """Return *value* as a value of type *kind*.

    Raises:
        ValidationError: *value* is invalid.
    """
    try:
        return _validator(kind).validate_python(value)
    except pydantic.ValidationError as error:
        raise _translate_error(error, value) from None


def validate_json(kind: type[Checked], data: str | bytes) -> Any:
    """Return the JSON text *data* as an object of *kind*.

    Raises:
        ValidationError: *data* is invalid.
    """
    try:
        return _validator(cast("Any", kind)).validate_json(data)
    except pydantic.ValidationError as error:
        value = None
        with suppress(ValueError, RecursionError):
            value = json.loads(data)
        raise _translate_error(error, value) from None


def json_schema(kind: type[Checked]) -> dict[str, Any]:
    """Return the JSON schema of *kind*."""
    return _get_twin(kind).model_json_schema()


def _translate_error(error: pydantic.ValidationError, value: Any) -> ValidationError:
    """Return *error* about *value* with the file's key paths and our wording.

    If a value may have several types, pydantic adds the type to the key path and reports an error
    for each type; here they become one error.
    """
    by_path: dict[KeyPath, list[dict[str, Any]]] = {}
    with_types: set[KeyPath] = set()
    for item in error.errors(include_url=False):
        path = _path_in_file(item["loc"], value)
        by_path.setdefault(path, []).append({**item, "loc": path, "msg": format_message(item)})
        if len(path) < len(item["loc"]):
            with_types.add(path)
    parent_paths = {path[:length] for path in with_types for length in range(len(path))}
    return ValidationError(
        error,
        [
            {**items[0], "msg": _join_messages([str(item["msg"]) for item in items])}
            for path, items in by_path.items()
            if path not in with_types & parent_paths
        ],
    )


KeyPath = tuple[int | str, ...]
_TYPE = re.compile(r"(?:constrained-)?(?:str|int|float|bool|none)|.+\[.*\]|function-.+|[A-Z]\w+")


def _path_in_file(path: KeyPath, value: Any) -> KeyPath:
    """Return *path* in *value* without the parts that name a type."""
    parts: list[int | str] = []
    for part in path:
        has_part = (isinstance(value, Mapping) and part in value) or (
            isinstance(value, (list, tuple)) and isinstance(part, int) and part < len(value)
        )
        if not has_part and isinstance(part, str) and _TYPE.fullmatch(part):
            continue
        parts.append(part)
        value = value[part] if has_part else None
    return tuple(parts)


def _join_messages(texts: list[str]) -> str:
    """Return *texts*, the errors for the possible types of one value, as one text."""
    if len(messages := list(dict.fromkeys(texts))) == 1:
        return messages[0]
    messages = [text.removesuffix("; put it in quotes") for text in messages]
    if all(text.startswith(_EXPECTED) for text in messages):
        return _EXPECTED + " or ".join(text.removeprefix(_EXPECTED) for text in messages)
    return ", or ".join(messages)


_EXPECTED = "expected "


_WORDS = {
    "string_type": "expected text; put it in quotes",
    "string_unicode": "is not UTF-8",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "int_parsing": "expected a whole number",
    "int_parsing_size": "expected a smaller number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "finite_number": "expected a number that is not infinite",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "dict_type": "expected a mapping ('key: value' lines)",
    "mapping_type": "expected a mapping ('key: value' lines)",
    "model_type": "expected a mapping ('key: value' lines)",
    "model_attributes_type": "expected a mapping ('key: value' lines)",
    "none_required": "has to be empty",
    "invalid_key": "a key must be text",
    "missing": "has to be there",
    "extra_forbidden": "is not known here",
}
_BOUNDS = {
    "greater_than": "should be greater than {gt}",
    "greater_than_equal": "should be greater than or equal to {ge}",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be less than or equal to {le}",
    "literal_error": "should be {expected}",
    "enum": "should be {expected}",
    "string_too_long": "should have at most {max_length} characters",
    "json_invalid": "is not JSON: {error}",
}
_PATTERNS = {
    r"^[A-Za-z_][A-Za-z0-9_]*$": "expected the name of a variable",
    r"^[A-Za-z_][A-Za-z0-9_]{0,199}$": "expected the name of a variable",
    r"^[A-Za-z_][A-Za-z0-9_]*\*?$": "expected the name of a variable; '*' may be at its end",
    r"^0?6[046][046]$": "expected the mode of a file, such as 0600 or 0644",
    r"^https?://\S+$": "expected an address that starts with http:// or https://",
    r"^[^\s/@]+:[0-9]+$": "expected HOST:PORT",
    r"^[A-Za-z0-9-]{1,100}/[A-Za-z0-9._-]{1,100}$": "expected OWNER/NAME",
    r"^[^-\s][^\s]*$": "can't have blanks, and can't start with '-'",
    r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$": "expected the name of a header",
    r"^[ -~\t]*$": "can't have a line break, or letters outside of ASCII",
    r"^[\w-]+$": "expected letters, digits, '-' and '_'",
    r"^[^\x00]*$": "can't have a NUL character",
    r"^[!-~]+$": "can't have blanks, or letters outside of ASCII",
}
"""What to tell a person instead of the pattern."""
_NO_CONTROLS = "^[^\\x00"


def format_message(error: Mapping[str, Any]) -> str:
    """Return the message for pydantic's *error* in the words of this program.

    A validator's own message stays as it is.
    """
    kind, context = error["type"], error.get("ctx", {})
    if kind in _WORDS:
        text = _WORDS[kind]
    elif kind in _BOUNDS:
        text = _BOUNDS[kind].format(
            **{name: _shorten_number(value) for name, value in context.items()}
        )
    elif kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        is_of_controls = pattern.startswith(_NO_CONTROLS)
        text = "can't have a line break or another control character" if is_of_controls else ""
        text = _PATTERNS.get(pattern) or text or f"should match the pattern {pattern}"
    elif kind in ("too_short", "string_too_short"):
        minimum, noun = context["min_length"], "item" if kind == "too_short" else "character"
        text = f"should have at least {minimum} {noun}{'s' * (minimum != 1)}"
        text = "must have at least one item" if kind == "too_short" and minimum == 1 else text
    elif kind == "too_long":
        # pydantic's own message mentions tuples, and counts the items after validation.
        text = f"should have at most {context['max_length']} items, not {context['actual_length']}"
    else:
        text = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "should")
        # Keep the capital of an abbreviation.
        text = text if text[1:2].isupper() else text[:1].lower() + text[1:]
    return text


def _shorten_number(value: object) -> object:
    """Return *value*, with 2.0 as 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def _validator(kind: Any) -> SchemaValidator:
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(_to_pydantic(kind))
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    return SchemaValidator(adapter.core_schema, CoreConfig(title=name))


def _to_pydantic(annotation: Any) -> Any:
    """Return *annotation* with types and markers of pydantic."""
    if isinstance(annotation, type) and issubclass(annotation, Checked):
        twin = ForwardRef(_twin_name(annotation)) if annotation in _OPEN else _get_twin(annotation)
        return Annotated[twin, pydantic.WrapValidator(_make_wrap_validator(annotation))]
    origin = get_origin(annotation)
    if origin is Annotated:
        markers = [item for marker in annotation.__metadata__ for item in _convert_marker(marker)]
        return Annotated[(_to_pydantic(annotation.__origin__), *markers)]
    if origin is None or origin is Literal:
        return annotation
    args = tuple(_to_pydantic(item) for item in get_args(annotation))
    return Union[args] if origin in (Union, UnionType) else origin[args]  # noqa: UP007 - at run time


def _convert_marker(marker: Any) -> Iterator[Any]:
    if isinstance(marker, fields.BeforeValidator):
        yield pydantic.BeforeValidator(_translate_errors(marker.change))
    elif isinstance(marker, fields.AfterValidator):
        yield pydantic.AfterValidator(_translate_errors(marker.change))
    else:
        yield pydantic.Field(**marker.limits)


def _translate_errors(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return *check* with its errors translated for pydantic."""

    def run_check(value: Any) -> Any:
        try:
            return check(value)
        except ValidationError as error:
            raise error.found from None
        except Refusal as refusal:
            # As Any: pydantic declares literal types for these arguments.
            values: Any = refusal
            if values.message is None:
                raise PydanticKnownError(values.kind, values.context) from None
            raise PydanticCustomError(values.kind, values.message, values.context) from None

    return run_check


def _make_wrap_validator(kind: type[Checked]) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Return the validator that converts objects of pydantic to checked objects of *kind*."""

    def read(value: Any, handler: Callable[[Any], Any]) -> Any:
        if isinstance(value, kind):
            return value
        for name in kind._before:  # noqa: SLF001 - the other half of that class
            value = _translate_errors(getattr(kind, name))(value)
        twin = handler(value)
        given_names = twin.model_fields_set
        values = {
            name: getattr(twin, name) if name in given_names else spec.get_default()
            for name, spec in kind.model_fields.items()
        }
        instance = kind.from_checked(values, frozenset(given_names), dict(twin.model_extra or {}))
        for name in kind._after:  # noqa: SLF001 - as above
            instance = _translate_errors(getattr(kind, name))(instance)
        return instance

    return read


def _twin_name(kind: type[Checked]) -> str:
    return f"_{id(kind)}"


def _get_twin(kind: type[Checked]) -> type[pydantic.BaseModel]:
    """Return the twin of *kind*: a model of pydantic with the same fields."""
    if kind in _TWINS:
        return _TWINS[kind]
    _OPEN.add(kind)
    native_fields: dict[str, Any] = {
        name: (_to_pydantic(spec.annotation), _build_field(spec))
        for name, spec in kind.model_fields.items()
    }
    _OPEN.remove(kind)
    config = cast("pydantic.ConfigDict", {**kind.model_options, "protected_namespaces": ()})
    twin = pydantic.create_model(
        kind.__name__, __config__=config, __doc__=kind.__doc__, **native_fields
    )
    _TWINS[kind] = _NAMES[_twin_name(kind)] = twin
    for model in () if _OPEN else _TWINS.values():
        model.model_rebuild(_types_namespace=_NAMES)
    return twin


def _build_field(spec: fields.FieldSpec) -> Any:
    extra_options: dict[str, Any] = {}
    if not spec.is_required:
        default = spec.get_default()
        extra_options["default"] = None if isinstance(default, Checked) else default
    return pydantic.Field(
        alias=spec.alias, exclude=spec.exclude or None, **spec.limits, **extra_options
    )
