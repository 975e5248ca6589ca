"""Frozen: data whose fields are checked once, when an object is created, and never change.

Annotations, `Field`, validators, `model_validate` and `model_dump` mean the same as in pydantic.
This module only reads valid values, because loading pydantic takes longer than most commands. A
value that looks invalid, or has to be converted, goes to `frozen.by_pydantic`, where pydantic
decides.

Not promised: features of pydantic that no class of this program uses.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property
from itertools import compress
from operator import is_not
from types import NoneType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    dataclass_transform,
)

import msgspec

from sequencer.frozen.fields import (
    MISSING,
    Checked,
    Field,
    FieldSpec,
    NeedsPydantic,
    Reader,
    Refusal,
    add_limits,
    build_reader,
)

_set = object.__setattr__
"""Sets a field in spite of `Frozen.__setattr__`, which always refuses."""


def _pydantic_rules() -> Any:
    """Return the module that knows all rules; use it only for errors, because it loads slowly."""
    from sequencer.frozen import by_pydantic  # noqa: PLC0415 - it loads pydantic

    return by_pydantic


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
class Frozen(Checked):
    """A class whose objects never change, are compared by value, and have checked values."""

    __slots__ = ("__dict__", "_given")
    _given: tuple[AbstractSet[str], dict[str, Any]]
    _caches: ClassVar[bool] = False
    _has_aliases: ClassVar[bool] = False
    _blank: ClassVar[dict[str, Any]] = {}
    _required: ClassVar[frozenset[str]] = frozenset()
    _fresh: ClassVar[tuple[FieldSpec, ...]] = ()
    _by_key: ClassVar[dict[str, tuple[str, Reader]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Collect the fields; *options* are those of pydantic: extra, strict, allow_inf_nan."""
        cls.model_options = {**cls.model_options, **options}
        fields = dict(cls.model_fields)
        for name, text in cls.__annotations__.items():
            if not str(text).startswith(("ClassVar", "typing.ClassVar")) and name[0] != "_":
                default = cls.__dict__.get(name, MISSING)
                fields[name] = default if isinstance(default, FieldSpec) else Field(default)
                fields[name].__set_name__(cls, name)
                if default is not MISSING:
                    delattr(cls, name)
        cls.model_fields, cls._by_key = fields, {}
        cls._blank = {name: spec.default for name, spec in fields.items()}
        cls._required = frozenset(name for name, spec in fields.items() if spec.is_required)
        cls._fresh = tuple(spec for spec in fields.values() if spec.is_fresh)
        cls._has_aliases = any(spec.alias for spec in fields.values())
        for name, value in list(cls.__dict__.items()):
            cls._caches = cls._caches or isinstance(value, cached_property)
            mode = getattr(getattr(value, "__func__", value), "checks", None)
            if mode == "before" and name not in cls._before:
                cls._before = (*cls._before, name)
            elif mode == "after" and name not in cls._after:
                cls._after = (*cls._after, name)

    @classmethod
    def add_field(cls, spec: FieldSpec) -> None:
        """Add a field to the class, which must not have any objects yet."""
        cls.model_fields[spec.name] = spec
        cls._blank[spec.name] = spec.default
        spec.owner = cls

    def __init__(self, **given: Any) -> None:
        """Take *given* as the values of the fields.

        Raises:
            ValidationError: the class refuses some of them.
        """
        try:
            self._fill(given)
        except (NeedsPydantic, ValueError, AssertionError, Refusal):
            checked_object = self.model_validate(given)
            _set(self, "__dict__", checked_object.__dict__)
            _set(self, "_given", checked_object._given)  # noqa: SLF001 - of this class

    @property
    def model_fields_set(self) -> AbstractSet[str]:
        """Return the names of the fields that were given, including extra ones."""
        return self._given[0]

    @property
    def model_extra(self) -> dict[str, Any]:
        """Return the extra fields, which the class does not declare."""
        return self._given[1]

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """Return *value*, a mapping or an object of this class, as an object of this class.

        Raises:
            ValidationError: *value* is invalid; the error lists everything that is wrong.
        """
        try:
            return cls.read(value)
        except (NeedsPydantic, ValueError, AssertionError, Refusal):
            checked_object: Self = _pydantic_rules().validate(cls, value)
            return checked_object

    @classmethod
    def model_validate_json(cls, data: str | bytes) -> Self:
        """Return the JSON object *data* as an object of this class.

        Raises:
            ValidationError: *data* is invalid.
        """
        try:
            return cls.read(json.loads(data))
        except (NeedsPydantic, ValueError, AssertionError, Refusal, RecursionError):
            checked_object: Self = _pydantic_rules().validate_json(cls, data)
            return checked_object

    @classmethod
    def model_construct(cls, **values: Any) -> Self:
        """Return an object with *values*, which are not checked, and with the default values."""
        fields = {**cls._blank, **{spec.name: spec.get_default() for spec in cls._fresh}, **values}
        return cls.from_checked(fields, frozenset(values), {})

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return *value* as an object of this class, if it is clearly valid.

        Raises:
            NeedsPydantic: it is not clearly valid. This error, and errors of validators, are not
                final: pydantic decides.
        """
        if isinstance(value, cls):
            return value
        instance = cls.__new__(cls)
        instance._fill(value)  # noqa: SLF001 - of this class
        return instance

    def _fill(self, value: Any) -> None:
        """Set the fields from the mapping *value*."""
        for name in self._before:
            value = getattr(type(self), name)(value)
        if type(value) is not dict:
            raise NeedsPydantic
        values, extra_values = {**self._blank}, {}
        readers = self._by_key
        for key in value:
            if key in readers or self._add_reader(key):
                name, reader = readers[key]
                values[name] = reader(value[key])
            else:
                extra_values[key] = value[key]
        given_names: AbstractSet[str] = frozenset(value)
        if self._has_aliases:
            given_names = {readers[key][0] if key in readers else key for key in given_names}
        mode = self.model_options["extra"]
        if (extra_values and mode == "forbid") or not self._required <= given_names:
            raise NeedsPydantic
        if mode == "ignore":
            given_names, extra_values = given_names - extra_values.keys(), {}
        values |= {
            spec.name: spec.get_default() for spec in self._fresh if spec.name not in given_names
        }
        _set(self, "__dict__", values)
        _set(self, "_given", (given_names, extra_values))
        for name in self._after:
            getattr(self, name)()

    @classmethod
    def _add_reader(cls, key: Any) -> bool:
        """Create the reader of the field at *key*; return whether there is such a field."""
        for name, spec in cls.model_fields.items():
            if key == spec.key or (key == name and "populate_by_name" in cls.model_options):
                limits = {
                    name: value
                    for name, value in cls.model_options.items()
                    if name in ("strict", "allow_inf_nan")
                }
                reader = build_reader(spec.annotation, limits)
                cls._by_key[key] = (name, add_limits(reader, spec.limits, spec.annotation))
                return True
        if type(key) is not str:
            raise NeedsPydantic
        return False

    def replace(self, **update: Any) -> Self:
        """Return a copy with the values of *update*, which are not checked."""
        values = self.__dict__
        if self._caches:
            # Drop cached properties: they were computed from the old values.
            values = {name: values[name] for name in self.model_fields}
        given_names, extra_values = self._given
        if not update.keys() <= given_names:
            given_names = {*given_names, *update}
        copy = self.__new__(type(self))
        _set(copy, "__dict__", {**values, **update})
        _set(copy, "_given", (given_names, extra_values))
        return copy

    def revalidate(self) -> Self:
        """Return a validated copy; `replace` does not validate what a package gives it.

        Raises:
            ValidationError: `replace` was given a value that the constructor refuses.
        """
        given_names, extra_values = self._given
        values = {name: self.__dict__[name] for name in given_names}
        return type(self)(**values, **(extra_values or {}))

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        include: Collection[str] | None = None,
        exclude: Any = (),
        by_alias: bool = False,
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
        exclude_none: bool = False,
    ) -> dict[str, Any]:
        """Return the fields as plain data without those that *exclude* lists or maps to True."""
        options = {
            "mode": mode,
            "by_alias": by_alias,
            "exclude_unset": exclude_unset,
            "exclude_defaults": exclude_defaults,
            "exclude_none": exclude_none,
        }
        exclusions = exclude if isinstance(exclude, Mapping) else dict.fromkeys(exclude, True)
        dump: dict[str, Any] = {}
        values, fields = self.__dict__, self.model_fields
        names: Iterable[str] = fields
        if exclude_defaults:
            # Most fields of a graph have their defaults; they are skipped without running Python.
            has_changed = map(is_not, values.values(), map(self._blank.get, values))
            names = filter(fields.__contains__, compress(values, has_changed))
        for name in names:
            value, spec, exclusion = values[name], fields[name], exclusions.get(name)
            if (
                exclusion is True
                or spec.exclude
                or (include is not None and name not in include)
                or (exclude_unset and name not in self.model_fields_set)
                or (exclude_none and value is None)
                or (exclude_defaults and not spec.is_required and value == spec.get_default())
            ):
                continue
            if value is not None and type(value) not in _PLAIN:
                value = _dump_value(value, exclusion or {}, options)
            dump[spec.key if by_alias else name] = value
        for name, value in self.model_extra.items():
            if name not in exclusions and not (exclude_none and value is None):
                dump[name] = _dump_value(value, {}, options)
        return dump

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """Return the fields as JSON; *options* are the options of `model_dump`."""
        return encode_json(
            self.model_dump(mode="json", **options) if options else self, indent
        ).decode()

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: it is frozen."""
        raise AttributeError(f"{type(self).__name__} is frozen; {name} can't be set")

    def __delattr__(self, name: str) -> None:
        """Refuse: it is frozen."""
        raise AttributeError(f"{type(self).__name__} is frozen; {name} can't be deleted")

    def __eq__(self, other: object) -> bool:
        """Return whether *other* has the same class and the same values."""
        if type(other) is not type(self):
            return NotImplemented
        values, other_values = self.__dict__, other.__dict__
        is_same = values == other_values or all(
            values[name] == other_values[name] for name in self.model_fields
        )
        return is_same and self.model_extra == other.model_extra

    def __hash__(self) -> int:
        """Return the same for equal values."""
        return hash((type(self), *(self.__dict__[name] for name in self.model_fields)))

    def __repr__(self) -> str:
        """Return the class and its values."""
        values = {name: self.__dict__[name] for name in self.model_fields} | self.model_extra
        fields = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"{type(self).__name__}({fields})"

    def __reduce__(self) -> Any:
        """Return how to create a copy."""
        values = {name: self.__dict__[name] for name in self.model_fields}
        return type(self).from_checked, (values, self.model_fields_set, self.model_extra)


def json_schema(kind: type[Frozen]) -> dict[str, Any]:
    """Return the JSON schema of *kind*."""
    schema: dict[str, Any] = _pydantic_rules().json_schema(kind)
    return schema


def validate_value(annotation: Any, value: Any) -> Any:
    """Return *value* as a value of type *annotation*.

    Raises:
        ValidationError: *value* is invalid.
    """
    try:
        return build_reader(annotation, {})(value)
    except (NeedsPydantic, ValueError):
        return _pydantic_rules().validate(annotation, value)


_PLAIN = frozenset({str, int, float, bool, NoneType})


def _dump_value(value: Any, excluded_fields: Any, options: dict[str, Any]) -> Any:
    """Return *value*, the value of a field, as plain data without *excluded_fields*."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Frozen):
        return value.model_dump(exclude=excluded_fields, **options)
    is_json = options["mode"] == "json"
    if isinstance(value, (list, tuple)):
        excluded_of_items = (
            excluded_fields.get("__all__", {}) if isinstance(excluded_fields, Mapping) else {}
        )
        items = [_dump_value(item, excluded_of_items, options) for item in value]
        return items if is_json or isinstance(value, list) else tuple(items)
    if isinstance(value, Enum):
        return value.value if is_json else value
    if isinstance(value, Mapping):
        return {
            _dump_key(key) if is_json else key: _dump_value(item, {}, options)
            for key, item in value.items()
        }
    return value


def _dump_key(key: Any) -> Any:
    return key.value if isinstance(key, Enum) else key


def encode_json(value: Any, indent: int | None = None) -> bytes:
    """Return *value*, plain data or an object, as JSON."""
    data = _ENCODER.encode(value)
    return data if indent is None else format_json(data, indent)


def format_json(data: bytes, indent: int = 2) -> bytes:
    """Return the JSON *data* with a line for each value."""
    return msgspec.json.format(data, indent=indent)


def _to_plain(value: object) -> dict[str, Any]:
    """Return what the encoder writes for *value*, whose type it does not know."""
    if isinstance(value, Frozen):
        values, extra_values = value.__dict__, value._given[1]  # noqa: SLF001 - of this module
        if value._caches:  # noqa: SLF001
            values = {name: values[name] for name in value.model_fields}
        return {**values, **extra_values} if extra_values else values
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is not plain data")


_ENCODER = msgspec.json.Encoder(enc_hook=_to_plain)
