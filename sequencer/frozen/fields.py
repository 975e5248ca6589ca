"""Declarations of fields, and the readers of their values.

`Field` and the validators are written as in pydantic and mean the same. A reader accepts values
that are clearly valid. For all others it raises `NeedsPydantic`, and `frozen.by_pydantic` decides
about them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from msgspec import Struct

from sequencer.errors import UnknownName

_T = TypeVar("_T")
Reader = Callable[[Any], Any]
MISSING: Any = object()
_MAX_EXACT = 2**53
"""A float can hold every whole number up to here exactly."""


class NeedsPydantic(Exception):
    """A reader can't tell whether a value is valid; only pydantic knows all rules."""


class ValidationError(ValueError):
    """Values are invalid for a class or a type."""

    def __init__(self, found: Any, errors: list[dict[str, Any]]) -> None:
        """Hold pydantic's error *found*, and its details as *errors*."""
        super().__init__(found)
        self.found, self._errors = found, errors

    def errors(self) -> list[dict[str, Any]]:
        """Return each error as in pydantic (``loc``, ``type``, …); ``msg`` is in our words."""
        return self._errors

    def messages(self, *, with_values: bool = True) -> list[str]:
        """Return each error in words: where it is, what is wrong, and the value if it is short."""
        return [_format_error(error, with_values=with_values) for error in self._errors]

    def __str__(self) -> str:
        """Return all errors on one line."""
        return "; ".join(self.messages())


SHOWN_CHARS = 60
"""A message does not show a longer value."""


def _format_error(error: Mapping[str, Any], *, with_values: bool) -> str:
    path = ".".join(map(str, error["loc"]))
    text = f"{path}: {error['msg']}" if path else str(error["msg"])
    return text + format_value(error) if with_values else text


def format_value(error: Mapping[str, Any]) -> str:
    """Return ``, not VALUE`` if the *error* is about a short value; else an empty text."""
    value = error["input"]
    is_scalar = isinstance(value, (str, int, float)) and error["type"] not in _WITHOUT_VALUE
    if isinstance(value, bool):
        return f", not {str(value).lower()}"
    return f", not {value!a}" if is_scalar and len(str(value)) <= SHOWN_CHARS else ""


def describe_value(value: object) -> str:
    """Return *value* in a few words, as a person has written it in a file.

    >>> [describe_value(value) for value in ([1, 2], {}, None, True, "x")]
    ['a list', 'a mapping', 'nothing', 'true', "'x'"]
    """
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, Mapping):
        return "a mapping"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else ascii(value)
    return text if len(text) <= SHOWN_CHARS else "a long text"


UNKNOWN_NAME = "unknown_name"
"""Type of the error about an undefined name; its context has the arguments of `UnknownName`."""
_WITHOUT_VALUE = ("missing", "value_error", "extra_forbidden", "json_invalid", UNKNOWN_NAME)
"""Types of errors that are not about the value, or whose message contains it."""


class Refusal(Exception):
    """An error of a validator with its own type, see `frozen.by_pydantic`."""

    def __init__(self, kind: str, context: Mapping[str, Any], message: str | None = None) -> None:
        """Refuse with an error of type *kind*; without *message*, it is a type of pydantic."""
        super().__init__(kind)
        self.kind, self.message, self.context = kind, message, dict(context)

    @classmethod
    def from_unknown_name(cls, kind: str, name: str, known: Iterable[str]) -> Refusal:
        """Return the refusal of *name*, which is not one of the *known* names of this *kind*."""
        context = {"kind": kind, "name": name, "known": sorted(known)}
        message = UnknownName(kind, name, context["known"]).in_one_line
        return cls(UNKNOWN_NAME, {**context, "message": message}, "{message}")


class FieldSpec:
    """One field of a class; within ``Annotated``, the limits of a value."""

    owner: type
    name = ""

    def __init__(
        self,
        default: Any,
        factory: Callable[[], Any] | None,
        alias: str | None,
        limits: Mapping[str, Any],
        *,
        exclude: bool,
    ) -> None:
        """Hold the arguments of `Field`."""
        self.default, self.default_factory = default, factory
        self.alias, self.exclude, self.limits = alias, exclude, limits
        self.is_required = default is MISSING and factory is None
        self.is_fresh = factory is not None or isinstance(default, (dict, list))
        """Whether each object gets its own copy of the default."""

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember *name* and *owner* of the field."""
        self.owner, self.name, self.key = owner, name, self.alias or name

    @property
    def annotation(self) -> Any:
        """Return its type, which is resolved at the first access."""
        return _annotations(self.owner)[self.name]

    def get_default(self) -> Any:
        """Return the default."""
        if self.default_factory is not None:
            return self.default_factory()
        return self.default.copy() if self.is_fresh else self.default

    def __eq__(self, other: object) -> bool:
        """Return whether the limits are equal: a default is not part of a type."""
        return isinstance(other, FieldSpec) and self.limits == other.limits

    def __hash__(self) -> int:
        """Return the same hash for equal limits."""
        return hash(tuple(self.limits))


class Checked:
    """The part of `Frozen` that `frozen.by_pydantic` uses."""

    __slots__ = ()
    model_fields: ClassVar[dict[str, FieldSpec]] = {}
    model_options: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    _before: ClassVar[tuple[str, ...]] = ()
    """Names of the validators that run on the input, before the fields are read."""
    _after: ClassVar[tuple[str, ...]] = ()
    """Names of the validators that run on the object."""

    @classmethod
    def from_checked(
        cls, values: dict[str, Any], given: AbstractSet[str], extra: dict[str, Any]
    ) -> Self:
        """Return an object with complete, valid *values*; *given* are the fields that were set."""
        instance = cls.__new__(cls)
        object.__setattr__(instance, "__dict__", values)
        object.__setattr__(instance, "_given", (given, extra))
        return instance


def ensure_mapping(value: object, other_form: str) -> object:
    """Return *value*, a mapping or an object that was made of one.

    *other_form* names the short form of the key, which the caller has already read.

    Raises:
        Refusal: it is something else.
    """
    if not isinstance(value, (Mapping, Checked)):
        message = f"expected {other_form}, or a mapping ('key: value' lines)"
        raise Refusal("form_type", {}, message)
    return value


class LazySpec(FieldSpec):
    """A field whose type is imported when it is first needed."""

    def __init__(
        self, name: str, kind: Callable[[], Any], default: Callable[[], Any] = lambda: None
    ) -> None:
        """Declare the field *name*; *kind* returns its type. The value is None if not given."""
        super().__init__(None, None, None, {}, exclude=False)
        self.name = self.key = name
        self._kind, self._default = kind, default

    @property
    def annotation(self) -> Any:
        return self._kind()

    def get_default(self) -> Any:
        return self._default()


def Field(  # noqa: N802 - as in pydantic
    default: Any = MISSING,
    *,
    default_factory: Callable[[], Any] | None = None,
    alias: str | None = None,
    exclude: bool = False,
    **limits: Any,
) -> Any:
    """Declare a field; within ``Annotated``, only the *limits* of a value."""
    return FieldSpec(default, default_factory, alias, limits, exclude=exclude)


class BeforeValidator(Struct, frozen=True):
    """Within ``Annotated``: *change* gets the value as it is in the input."""

    change: Callable[[Any], Any]


class AfterValidator(Struct, frozen=True):
    """Within ``Annotated``: *change* gets a value of the right type."""

    change: Callable[[Any], Any]


def model_validator(*, mode: Literal["before", "after"]) -> Callable[[_T], _T]:
    """Mark a method that checks the object, or a class method that changes the input."""

    def mark(method: _T) -> _T:
        function: Any = getattr(method, "__func__", method)
        function.checks = mode
        return method

    return mark


@cache
def _annotations(owner: type) -> dict[str, Any]:
    return get_annotations(owner, eval_str=True)


def build_reader(annotation: Any, limits: Mapping[str, Any], *, is_exact: bool = False) -> Reader:
    """Return the reader for values of type *annotation*; it raises `NeedsPydantic` for all others.

    *limits* apply to every number in it. *is_exact*: don't read a word as a bool or a whole number
    as a float, because another type of a union might accept the value unchanged.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    reader: Reader | None = None
    if origin is Annotated:
        reader = _build_annotated_reader(annotation, limits, is_exact=is_exact)
    elif origin is Literal:
        reader = _build_literal_reader(tuple((type(value), value) for value in args))
    elif origin in (Union, UnionType):
        reader = _build_union_reader(args, limits, is_exact=is_exact)
    elif origin is list or (origin is tuple and args[1:] == (Ellipsis,)):
        reader = _build_list_reader(origin, build_reader(args[0], limits))
    elif origin in (dict, Mapping):
        reader = _build_mapping_reader(build_reader(args[0], limits), build_reader(args[1], limits))
    return reader or _build_plain_reader(
        annotation, is_strict=is_exact or bool(limits.get("strict"))
    )


def _build_plain_reader(kind: Any, *, is_strict: bool) -> Reader:
    """Return the reader for values of *kind*, which has no inner types."""
    if hasattr(kind, "model_fields"):
        reader: Reader = kind.read
        return reader
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _build_enum_reader(kind)
    if kind in (Any, object):
        return _read_any
    if kind in (bool, float) and not is_strict:
        return _read_bool if kind is bool else _read_float
    return _read_text if kind is str else _build_exact_reader(kind)


def _build_annotated_reader(
    annotation: Any, limits: Mapping[str, Any], *, is_exact: bool
) -> Reader:
    kind, markers = annotation.__origin__, annotation.__metadata__
    if any(isinstance(marker, FieldSpec) and marker.limits.get("strict") for marker in markers):
        limits = {**limits, "strict": True}
    reader = build_reader(kind, limits, is_exact=is_exact)
    for marker in markers:
        if isinstance(marker, FieldSpec):
            reader = add_limits(reader, marker.limits, kind)
        elif isinstance(marker, AfterValidator):
            reader = _compose(reader, marker.change)
        elif isinstance(marker, BeforeValidator):
            reader = _compose(marker.change, reader)
    return reader


def _compose(inner: Reader, second: Reader) -> Reader:
    return lambda value: second(inner(value))


def _read_any(value: Any) -> Any:
    return value


def _read_text(value: Any) -> Any:
    if type(value) is not str or not (value.isascii() or value.encode()):
        raise NeedsPydantic
    return value


def _read_bool(value: Any) -> Any:
    if type(value) is bool:
        return value
    if value not in ("true", "false"):
        raise NeedsPydantic
    return value == "true"


def _read_float(value: Any) -> Any:
    is_whole = type(value) is int and -_MAX_EXACT < value < _MAX_EXACT
    if not is_whole and (type(value) is not float or not -math.inf < value < math.inf):
        raise NeedsPydantic
    return float(value)


def _build_exact_reader(kind: Any) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind or (kind is float and not -math.inf < value < math.inf):
            raise NeedsPydantic
        return value

    return read


def _build_literal_reader(choices: tuple[tuple[type, Any], ...]) -> Reader:
    def read(value: Any) -> Any:
        if (type(value), value) not in choices:
            raise NeedsPydantic
        return value

    return read


def _build_enum_reader(kind: type[Enum]) -> Reader:
    def read(value: Any) -> Any:
        return value if isinstance(value, kind) else kind(value)

    return read


def _build_list_reader(kind: Callable[[Any], Any], reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) not in (list, tuple):
            raise NeedsPydantic
        return kind([reader(item) for item in value])

    return read


def _build_mapping_reader(key_reader: Reader, reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise NeedsPydantic
        return {key_reader(key): reader(item) for key, item in value.items()}

    return read


def _build_union_reader(
    kinds: tuple[Any, ...], limits: Mapping[str, Any], *, is_exact: bool
) -> Reader:
    other_kinds = [kind for kind in kinds if kind is not NoneType]
    is_exact = is_exact or len(other_kinds) > 1
    readers = [build_reader(kind, limits, is_exact=is_exact) for kind in other_kinds]
    takes_none = len(other_kinds) < len(kinds)

    def read(value: Any) -> Any:
        if value is None and takes_none:
            return None
        for reader in readers[:-1]:
            try:
                return reader(value)
            except NeedsPydantic:
                continue
        return readers[-1](value)

    return read


def add_limits(reader: Reader, limits: Mapping[str, Any], kind: Any) -> Reader:
    """Return *reader* with *limits*, which don't apply to None."""
    if unknown_names := limits.keys() - _LIMITS:
        raise TypeError(f"{sorted(unknown_names)} are not supported as limits")
    if limits.get("strict"):
        reader = build_reader(kind, {"strict": True})
    checks: list[Callable[[Any], Any]] = []
    if limits.keys() & {"ge", "gt", "le", "lt"}:
        ge, gt = limits.get("ge", -math.inf), limits.get("gt", -math.inf)
        le, lt = limits.get("le", math.inf), limits.get("lt", math.inf)
        checks.append(lambda result: ge <= result <= le and gt < result < lt)
    if limits.keys() & {"min_length", "max_length"}:
        minimum, maximum = limits.get("min_length", 0), limits.get("max_length", math.inf)
        checks.append(lambda result: minimum <= len(result) <= maximum)
    if "pattern" in limits:
        # pydantic's patterns are Rust's, where $ matches at the very end only.
        checks.append(re.compile(re.sub(r"\$\Z", r"\\Z", limits["pattern"])).search)

    def read(value: Any) -> Any:
        result = reader(value)
        if result is not None:
            for check in checks:
                if not check(result):
                    raise NeedsPydantic
        return result

    return read if checks else reader


_LIMITS = frozenset(
    {"ge", "gt", "le", "lt", "min_length", "max_length", "pattern", "strict", "allow_inf_nan"}
    | {"description"}
)
