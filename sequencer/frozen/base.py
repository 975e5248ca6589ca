"""Frozen: data whose fields are checked once, when it is made, and never change.

The language is pydantic's: annotations, `Field`, validators, `model_validate`, `model_dump`
mean what they mean there. Here is only what reads values that are right, because loading
pydantic takes longer than most commands. Whatever looks wrong, or has to be converted, goes to
`frozen.by_pydantic`, where pydantic has the last word.

Not promised: anything of pydantic's that no class of this program uses.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property
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
    Reader,
    Refusal,
    Unsure,
    limited,
    reader_of,
)

_set = object.__setattr__
"""A frozen object's own refuses."""


def _pydantic_rules() -> Any:
    """Return the module that knows all rules: only where something is wrong, for it is slow."""
    from sequencer.frozen import by_pydantic  # noqa: PLC0415 - it loads pydantic

    return by_pydantic


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
class Frozen(Checked):
    """A class whose objects are never changed, compared by value; made from checked values."""

    __slots__ = ("__dict__", "_given")
    _given: tuple[AbstractSet[str], dict[str, Any]]
    _caches: ClassVar[bool] = False
    _has_aliases: ClassVar[bool] = False
    _blank: ClassVar[dict[str, Any]] = {}
    _required: ClassVar[frozenset[str]] = frozenset()
    _fresh: ClassVar[tuple[FieldSpec, ...]] = ()
    _by_key: ClassVar[dict[str, tuple[str, Reader]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Collect the fields; *options* are pydantic's: extra, strict, allow_inf_nan."""
        cls.model_options = {**cls.model_options, **options}
        fields = dict(cls.model_fields)
        for name, text in cls.__annotations__.items():
            if not str(text).startswith(("ClassVar", "typing.ClassVar")) and name[0] != "_":
                written = cls.__dict__.get(name, MISSING)
                fields[name] = written if isinstance(written, FieldSpec) else Field(written)
                fields[name].__set_name__(cls, name)
                if written is not MISSING:
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
    def add(cls, spec: FieldSpec) -> None:
        """Give the class one more field; it must have been made for nobody before."""
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
        except (Unsure, ValueError, AssertionError, Refusal):
            made = self.model_validate(given)
            _set(self, "__dict__", made.__dict__)
            _set(self, "_given", made._given)  # noqa: SLF001 - of this class

    @property
    def model_fields_set(self) -> AbstractSet[str]:
        """Return the fields that were given, extra ones included."""
        return self._given[0]

    @property
    def model_extra(self) -> dict[str, Any]:
        """Return what the class does not know and keeps."""
        return self._given[1]

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """Return *value*, a mapping or an object of this class, as one.

        Raises:
            ValidationError: it is none; every error is told.
        """
        try:
            return cls.read(value)
        except (Unsure, ValueError, AssertionError, Refusal):
            made: Self = _pydantic_rules().validated(cls, value)
            return made

    @classmethod
    def model_validate_json(cls, data: str | bytes) -> Self:
        """Return the JSON object *data* as an object of this class.

        Raises:
            ValidationError: it is none.
        """
        try:
            return cls.read(json.loads(data))
        except (Unsure, ValueError, AssertionError, Refusal, RecursionError):
            made: Self = _pydantic_rules().validated_json(cls, data)
            return made

    @classmethod
    def model_construct(cls, **values: Any) -> Self:
        """Return an object with *values*, which are not checked, and the defaults."""
        fields = {**cls._blank, **{spec.name: spec.get_default() for spec in cls._fresh}, **values}
        return cls.made(fields, frozenset(values), {})

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return *value* as an object of this class, where it plainly is one.

        Raises:
            Unsure: it is not, and neither are those that a validator raises the last word.
        """
        if isinstance(value, cls):
            return value
        new = cls.__new__(cls)
        new._fill(value)  # noqa: SLF001 - of this class
        return new

    def _fill(self, value: Any) -> None:
        """Take the values of the fields from the mapping *value*."""
        for name in self._before:
            value = getattr(type(self), name)(value)
        if type(value) is not dict:
            raise Unsure
        values, extra = {**self._blank}, {}
        readers = self._by_key
        for key in value:
            if key in readers or self._finds_reader_of(key):
                name, reader = readers[key]
                values[name] = reader(value[key])
            else:
                extra[key] = value[key]
        said: AbstractSet[str] = frozenset(value)
        if self._has_aliases:
            said = {readers[key][0] if key in readers else key for key in said}
        kept = self.model_options["extra"]
        if (extra and kept == "forbid") or not self._required <= said:
            raise Unsure
        if kept == "ignore":
            said, extra = said - extra.keys(), {}
        values |= {spec.name: spec.get_default() for spec in self._fresh if spec.name not in said}
        _set(self, "__dict__", values)
        _set(self, "_given", (said, extra))
        for name in self._after:
            getattr(self, name)()

    @classmethod
    def _finds_reader_of(cls, key: Any) -> bool:
        """Find what reads the field that stands at *key*; return whether there is one."""
        for name, spec in cls.model_fields.items():
            if key == spec.key or (key == name and "populate_by_name" in cls.model_options):
                limits = {
                    name: value
                    for name, value in cls.model_options.items()
                    if name in ("strict", "allow_inf_nan")
                }
                reader = reader_of(spec.annotation, limits)
                cls._by_key[key] = (name, limited(reader, spec.limits, spec.annotation))
                return True
        if type(key) is not str:
            raise Unsure
        return False

    def replace(self, **update: Any) -> Self:
        """Return a copy with other values for the fields of *update*, which are not checked."""
        kept = self.__dict__
        if self._caches:
            # What was worked out from the old values is not kept.
            kept = {name: kept[name] for name in self.model_fields}
        said, extra = self._given
        if not update.keys() <= said:
            said = {*said, *update}
        new = self.__new__(type(self))
        _set(new, "__dict__", {**kept, **update})
        _set(new, "_given", (said, extra))
        return new

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
        """Return the fields as plain data; what *exclude* maps to True, or lists, is left out."""
        how = {
            "mode": mode,
            "by_alias": by_alias,
            "exclude_unset": exclude_unset,
            "exclude_defaults": exclude_defaults,
            "exclude_none": exclude_none,
        }
        inner = exclude if isinstance(exclude, Mapping) else dict.fromkeys(exclude, True)
        found: dict[str, Any] = {}
        values, blank = self.__dict__, self._blank
        for name, spec in self.model_fields.items():
            value = values[name]
            if exclude_defaults and value is blank[name]:
                continue  # most fields of a graph's nodes and edges: a dump takes half the time
            less = inner.get(name)
            if (
                less is True
                or spec.exclude
                or (include is not None and name not in include)
                or (exclude_unset and name not in self.model_fields_set)
                or (exclude_none and value is None)
                or (exclude_defaults and not spec.is_required and value == spec.get_default())
            ):
                continue
            if value is not None and type(value) not in _PLAIN:
                value = _dumped(value, less or {}, how)
            found[spec.key if by_alias else name] = value
        for name, value in self.model_extra.items():
            if name not in inner and not (exclude_none and value is None):
                found[name] = _dumped(value, {}, how)
        return found

    def model_dump_json(self, *, indent: int | None = None, **how: Any) -> str:
        """Return the fields as JSON; *how* is that of `model_dump`."""
        return as_json(self.model_dump(mode="json", **how) if how else self, indent).decode()

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: it is frozen."""
        raise AttributeError(f"{type(self).__name__} is frozen; {name} can't be set")

    def __delattr__(self, name: str) -> None:
        """Refuse: it is frozen."""
        raise AttributeError(f"{type(self).__name__} is frozen; {name} can't be deleted")

    def __eq__(self, other: object) -> bool:
        """Return whether *other* is of the same class and has the same values."""
        if type(other) is not type(self):
            return NotImplemented
        one, two = self.__dict__, other.__dict__
        is_same = one == two or all(one[name] == two[name] for name in self.model_fields)
        return is_same and self.model_extra == other.model_extra

    def __hash__(self) -> int:
        """Return the same for equal values."""
        return hash((type(self), *(self.__dict__[name] for name in self.model_fields)))

    def __repr__(self) -> str:
        """Return class and values."""
        values = {name: self.__dict__[name] for name in self.model_fields} | self.model_extra
        told = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"{type(self).__name__}({told})"

    def __reduce__(self) -> Any:
        """Tell how a copy is made."""
        values = {name: self.__dict__[name] for name in self.model_fields}
        return type(self).made, (values, self.model_fields_set, self.model_extra)


def json_schema(kind: type[Frozen]) -> dict[str, Any]:
    """Return the JSON schema of *kind*."""
    found: dict[str, Any] = _pydantic_rules().json_schema(kind)
    return found


def checked(annotation: Any, value: Any) -> Any:
    """Return *value* as one of type *annotation*.

    Raises:
        ValidationError: it is none.
    """
    try:
        return reader_of(annotation, {})(value)
    except (Unsure, ValueError):
        return _pydantic_rules().validated(annotation, value)


_PLAIN = frozenset({str, int, float, bool, NoneType})


def _dumped(value: Any, less: Any, how: dict[str, Any]) -> Any:
    """Return *value*, of a field, as plain data without *less*."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Frozen):
        return value.model_dump(exclude=less, **how)
    is_json = how["mode"] == "json"
    if isinstance(value, (list, tuple)):
        each = less.get("__all__", {}) if isinstance(less, Mapping) else {}
        found = [_dumped(one, each, how) for one in value]
        return found if is_json or isinstance(value, list) else tuple(found)
    if isinstance(value, Enum):
        return value.value if is_json else value
    if isinstance(value, Mapping):
        return {_key(key) if is_json else key: _dumped(one, {}, how) for key, one in value.items()}
    return value


def _key(key: Any) -> Any:
    return key.value if isinstance(key, Enum) else key


def as_json(value: Any, indent: int | None = None) -> bytes:
    """Return *value*, plain data or an object, as JSON."""
    data = _ENCODER.encode(value)
    return data if indent is None else msgspec.json.format(data, indent=indent)


def _as_plain(value: object) -> dict[str, Any]:
    """Return what the encoder writes of *value*, which it does not know by itself."""
    if isinstance(value, Frozen):
        kept, extra = value.__dict__, value._given[1]  # noqa: SLF001 - of this module
        if value._caches:  # noqa: SLF001
            kept = {name: kept[name] for name in value.model_fields}
        return {**kept, **extra} if extra else kept
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is not plain data")


_ENCODER = msgspec.json.Encoder(enc_hook=_as_plain)
