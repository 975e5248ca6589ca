"""What is read without pydantic is what pydantic reads; all else is left to it."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import pkgutil
from collections.abc import Iterator
from enum import StrEnum
from operator import getitem
from typing import Annotated, Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

import sequencer
from sequencer.frozen import by_pydantic
from sequencer.frozen.base import Frozen, encode_json, validate_value
from sequencer.frozen.fields import Field, NeedsPydantic, Refusal, ValidationError, build_reader
from sequencer.model.head import Head
from sequencer.model.step import Step, Validation


def every_class(kind: type[Frozen] = Frozen) -> Iterator[type[Frozen]]:
    if kind is Frozen:
        for module in pkgutil.walk_packages(sequencer.__path__, "sequencer."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for found in kind.__subclasses__():
        yield found
        yield from every_class(found)


EDGES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 5, 2**53, 2**53 + 1, 2**63, -(2**63), 0.0, 0.5, 1.0, -0.5),
    *(float("inf"), float("-inf"), float("nan"), 1e300, "", " ", "a", "a\n", "a\nb", "é", "\u2028"),
    *("-x", "true", "false", "yes", "1", "1.5", "x" * 101, "a/b", "../a", "A_TOKEN", "\ud800"),
    *("https://a.example/x", "http://u:p@h/", "auto", "cycle", "ok", "2026-01-01T00:00:00Z", b"a"),
    *([], ["a"], ["a", "b"], ["a", 1], [1, 2], [[]], (), ("a",), {}, {"a": "b"}, {"a": 1}, {1: 2}),
    *({"a": True}, {"a": {}}, {"name": "a"}, {"name": "a", "prompt": "b.md"}, [{"name": "a"}]),
    *({"file": "a.md"}, {"name": "", "x": 1}, {"max_attempts": 3}, object),
)


@pytest.mark.parametrize("kind", sorted(set(every_class()), key=str), ids=lambda one: one.__name__)
def test_each_field_is_read_as_pydantic_reads_it(kind: type[Frozen]) -> None:
    for name, spec in kind.model_fields.items():
        whole: Any = getitem(cast("Any", Annotated), (spec.annotation, Field(**spec.limits)))
        options = {k: v for k, v in kind.model_options.items() if k == "strict"}
        reader = build_reader(whole, options)
        for value in EDGES:
            try:
                found = reader(value)
            except (NeedsPydantic, ValueError, Refusal):
                continue
            assert repr(found) == repr(by_pydantic.validate(whole, value)), (name, value)


class Colour(StrEnum):
    RED = "red"


class Inner(Frozen, extra="allow"):
    number: int = Field(default=1, ge=0)
    colour: Colour = Colour.RED


class Outer(Frozen):
    name: Annotated[str, Field(min_length=1, pattern=r"^[a-z]+$")]
    inner: Inner = Inner()
    either: int | str | None = None
    told: Literal["x", 1] = "x"
    share: float = Field(default=0.5, gt=0)
    many: tuple[Inner, ...] = ()
    named: dict[str, Inner] = Field(default_factory=dict)
    schema_of: dict[str, Any] | None = Field(default=None, alias="schema")


values = st.recursive(
    st.sampled_from(EDGES[:-1]) | st.text(max_size=3) | st.integers() | st.floats(),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part),
    max_leaves=6,
)
fields = st.dictionaries(st.sampled_from([*Outer.model_fields, "schema", "else"]), values)


@pytest.mark.slow
@given(fields)
def test_a_whole_object_is_read_as_pydantic_reads_it(raw: dict[str, Any]) -> None:
    try:
        found = Outer.read(raw)
    except (NeedsPydantic, ValueError):
        return
    slow = by_pydantic.validate(Outer, raw)
    assert (repr(found), found.model_fields_set) == (repr(slow), slow.model_fields_set)


@pytest.mark.parametrize(
    ("raw", "place", "told"),
    [
        ({}, ("name",), "has to be there"),
        ({"name": ""}, ("name",), "should have at least 1 character"),
        ({"name": "a", "x": 1}, ("x",), "is not known here"),
        ({"name": "a", "inner": {"number": -1}}, ("inner", "number"), "greater than or equal to 0"),
        ({"name": "a", "many": [{}, 3]}, ("many", 1), "expected a mapping"),
        ({"name": "a\n"}, ("name",), "should match the pattern"),
    ],
)
def test_an_error_names_the_place_of_the_wrong_value(
    raw: dict[str, Any], place: tuple[object, ...], told: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        Outer.model_validate(raw)
    (error,) = refused.value.errors()
    assert error["loc"] == place
    assert told in error["msg"]


def test_a_class_may_hold_its_own_kind() -> None:
    with pytest.raises(ValidationError) as refused:
        Validation.model_validate({"fixer": {"name": "a", "timeout_s": 0}})
    assert refused.value.errors()[0]["loc"] == ("fixer", "timeout_s")
    with pytest.raises(ValidationError) as refused:
        Step.model_validate({"name": "a", "validation": {"fixer": {"timeout_s": -1}}})
    assert [error["loc"][-1] for error in refused.value.errors()] == ["name", "timeout_s"]


def test_values_are_converted_where_needed() -> None:
    made = Outer.model_validate({"name": "a", "inner": {"number": "7"}, "share": "0.25"})
    assert (made.inner.number, made.share) == (7, 0.25)
    assert validate_value(Annotated[int, Field(ge=1)], "3") == 3


def test_unknown_fields_are_preserved_if_the_class_allows_it() -> None:
    made = Inner.model_validate({"number": 2, "note": [1]})
    assert made.model_extra == {"note": [1]}
    assert made.replace(number=3).model_dump() == {"number": 3, "colour": "red", "note": [1]}
    assert made != Inner(number=2)


def test_an_object_is_frozen_and_every_copy_equals_it() -> None:
    made = Outer(name="a", named={"x": Inner(number=3)})
    with pytest.raises(AttributeError, match="frozen"):
        made.name = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del made.name
    twins = (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)))  # noqa: S301
    assert all(twin == made and twin.model_fields_set == {"name", "named"} for twin in twins)
    assert copy.deepcopy(made).named is not made.named
    assert Outer(name="a").named is not Outer(name="a").named
    assert {made.inner, Inner()} == {Inner()}
    assert repr(made.inner) == "Inner(number=1, colour=<Colour.RED: 'red'>)"


def test_a_dump_leaves_out_what_is_excluded() -> None:
    made = Outer(name="a", many=(Inner(number=2),))
    assert made.model_dump(exclude_unset=True) == {
        "name": "a",
        "many": ({"number": 2},),
    }
    assert made.model_dump(mode="json", exclude_defaults=True) == {
        "name": "a",
        "many": [{"number": 2}],
    }
    less = made.model_dump(exclude={"inner": True, "many": {"__all__": {"number": True}}})
    assert less["many"] == ({"colour": Colour.RED},)
    assert "inner" not in less
    assert list(made.model_dump(by_alias=True, include={"schema_of", "told"})) == ["told", "schema"]
    assert "either" not in made.model_dump(exclude_none=True)


keys = st.text(max_size=5) | st.sampled_from(["b", 'a"b', '\\"b', 'b": null'])
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text() | st.sampled_from(Colour)
    | st.floats(-1e15, 1e15),
    lambda part: st.lists(part, max_size=4)
    | st.dictionaries(keys, part),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.slow
@given(plain, st.sampled_from([None, 1, 2]))
def test_json_is_byte_for_byte_the_same_as_pydantics(value: Any, indent: int | None) -> None:
    assert encode_json(value, indent) == to_json(value, indent=indent)
    made = Inner.model_validate({"note": value})
    whole = {"number": 1, "colour": "red", "note": value}
    assert made.model_dump_json(indent=indent).encode() == to_json(whole, indent=indent)


def test_a_key_that_ends_like_another_does_not_replace_it() -> None:
    value = {'a"b': None, "b": {"x": 1}, '\\"b': None, '"': [1]}
    assert json.loads(encode_json(value, 2)) == value


@pytest.mark.parametrize("number", [1e-5, 1.5e-7, 0.0001, 123456789.125, 2**70])
def test_numbers_are_written_as_pydantic_writes_them(number: float) -> None:
    assert encode_json({"a": [number]}, 2) == to_json({"a": [number]}, indent=2)


@pytest.mark.parametrize("number", [1e16, -2e22, 1.7976931348623157e308])
def test_a_large_number_survives_a_round_trip(number: float) -> None:
    assert json.loads(encode_json({"a": [number]}, 2)) == {"a": [number]}


def test_a_head_is_written_as_pydantic_writes_it() -> None:
    raw = {"run_id": "r", "workflow_name": "w", "workflow_digest": "d", "expected_step": "a"}
    head = Head.model_validate({**raw, "last_update": "now", "note": {"x": [1, {"y": "\x7f"}]}})
    assert head.model_dump_json(indent=2).encode() == to_json(
        head.model_dump(mode="json"), indent=2
    )
