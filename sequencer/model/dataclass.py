"""`dataclass`: that of the standard library, which compiles nothing for a seldom used class.

The library's own writes the source of six functions for each class and compiles it, which takes
a quarter of what a command does that only looks. Here all classes share functions that work
with the names of the fields. `dataclasses.replace`, `fields` and `asdict` know such classes.

Not promised: ``__slots__`` (a name that is no field is a type checker's to find), ordering,
`InitVar`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]
_set = object.__setattr__
_OFTEN = 20
"""Objects of a class after which making them is compiled: before, it takes longer than it saves."""


def _made(
    kind: type[Any] | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
) -> Any:
    """Return *kind* with the methods that its fields give it; see `dataclasses.dataclass`."""
    if kind is None:
        return partial(_made, frozen=frozen, slots=slots, kw_only=kw_only)
    fields: dict[str, Any] = dict(getattr(kind, "__dataclass_fields__", {}))
    for name, annotation in kind.__annotations__.items():
        if not str(annotation).startswith("ClassVar"):
            fields[name] = _field(kind, name, annotation, kw_only=kw_only)
    kind.__dataclass_fields__ = fields
    kind.__match_args__ = tuple(name for name, one in fields.items() if one.init)  # type: ignore[misc]
    shown = tuple(name for name, one in fields.items() if one.repr)
    compared = tuple(name for name, one in fields.items() if one.compare)
    methods: dict[str, Any] = {
        "__init__": _init_of(kind, fields),
        "__repr__": _repr_of(shown),
        "__eq__": _eq_of(compared),
        "__hash__": _hash_of(compared) if frozen else None,
    }
    if frozen:
        methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
    for name, method in methods.items():
        if name not in kind.__dict__:
            setattr(kind, name, method)
    return kind


def _field(kind: type, name: str, annotation: Any, *, kw_only: bool) -> Any:
    """Return what the standard library keeps of a field, and make its default *kind*'s own."""
    written = kind.__dict__.get(name, MISSING)
    is_field = isinstance(written, dataclasses.Field)
    one: Any = written if is_field else dataclasses.field(default=written)
    one.name, one.type, one.kw_only = name, annotation, kw_only
    one._field_type = dataclasses._FIELD  # type: ignore[attr-defined] # noqa: SLF001 - read by `replace`
    if is_field and one.default is MISSING:
        delattr(kind, name)
    elif is_field:
        setattr(kind, name, one.default)
    return one


def _init_of(kind: type, fields: dict[str, Any]) -> Callable[..., None]:
    told = [one for one in fields.values() if one.init]
    placed = tuple(one.name for one in told if not one.kw_only)
    defaults = {name: one.default for name, one in fields.items() if one.default is not MISSING}
    factories = [
        (name, one.default_factory)
        for name, one in fields.items()
        if one.default_factory is not MISSING
    ]
    names, hidden = {*fields}, {name for name, one in fields.items() if not one.init}
    most, uses = len(placed), 0
    after = getattr(kind, "__post_init__", None)

    def __init__(self: Any, /, *given: Any, **named: Any) -> None:  # noqa: N807 - it becomes one
        nonlocal uses
        uses += 1
        if uses == _OFTEN:
            kind.__init__ = _compiled(fields, has_after=after is not None)  # type: ignore[misc]
        values = {**defaults, **named}
        if given:
            values = {**values, **dict(zip(placed, given))}  # noqa: B905 - the rest have defaults
        for name, factory in factories:
            if name not in values:
                values[name] = factory()
        if {*values} != names or given[most:] or (hidden and hidden & {*named}):
            wrong = ", ".join(sorted({*values} ^ names)) or f"{len(given)} values"
            raise TypeError(f"{kind.__qualname__}() got wrong arguments: {wrong}")
        _set(self, "__dict__", values)
        if after is not None:
            self.__post_init__()

    return __init__


def _compiled(fields: dict[str, Any], *, has_after: bool) -> Callable[..., None]:
    """Return the same for a class of which many objects are made: it is worth compiling."""
    scope: dict[str, Any] = {"_set": _set, "_missing": MISSING}
    placed: list[str] = ["self"]
    named: list[str] = []
    values: list[str] = []
    for name, one in fields.items():
        told, value, kept = name, name, f"_default_{name}"
        if one.default is not MISSING:
            scope[kept], told = one.default, f"{name}={kept}"
        elif one.default_factory is not MISSING:
            scope[kept], told = one.default_factory, f"{name}=_missing"
            value = f"{kept}() if {name} is _missing else {name}"
        if one.init:
            (named if one.kw_only else placed).append(told)
        else:
            value = kept if one.default is not MISSING else f"{kept}()"
        values.append(f"{name!r}: {value}")
    told = ", ".join([*placed, *(["*", *named] if named else [])])
    body = f"_set(self, '__dict__', {{{', '.join(values)}}})"
    after = "; self.__post_init__()" if has_after else ""
    exec(f"def __init__({told}): {body}{after}", scope)  # noqa: S102 - of names of our own fields
    made: Callable[..., None] = scope["__init__"]
    return made


def _repr_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:  # noqa: N807 - it becomes one
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({told})"

    return __repr__


def _eq_of(names: tuple[str, ...]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:  # noqa: N807 - it becomes one
        if type(other) is not type(self):
            return NotImplemented
        one, two = self.__dict__, other.__dict__
        return [one[name] for name in names] == [two[name] for name in names]

    return __eq__


def _hash_of(names: tuple[str, ...]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:  # noqa: N807 - it becomes one
        values = self.__dict__
        return hash(tuple([values[name] for name in names]))

    return __hash__


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"{name} of {type(self).__qualname__} can't be changed")


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _made
