"""Our `dataclass` does what that of the standard library does, for what this program uses."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from sequencer.model.dataclass import dataclass


def made_by(decorator: Callable[..., Any]) -> tuple[Any, Any]:
    @decorator(frozen=True, slots=True)
    class Point:
        KIND: ClassVar[str] = "point"
        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list, repr=False)
        seen: int = field(default=0, compare=False)
        hidden: int = field(default=7, init=False)

        @property
        def total(self) -> int:
            return self.x + self.y

    @decorator(kw_only=True)
    class Named:
        name: str
        size: float = 1.5
        place: Any = None

        def __post_init__(self) -> None:
            self.size *= 2

    return Point, Named


@pytest.fixture(params=["library", "own", "often"])
def classes(request: pytest.FixtureRequest) -> Any:
    point, named = made_by(dataclasses.dataclass if request.param == "library" else dataclass)
    for _ in range(30 if request.param == "often" else 0):
        point(1)
        named(name="a")
    return point, named


def test_what_an_object_holds(classes: Any) -> None:
    point, named = classes
    made = point(1)
    assert (made.x, made.y, made.tags, made.hidden, made.total, made.KIND) == (
        1,
        2,
        [],
        7,
        3,
        "point",
    )
    assert point(1).tags is not made.tags
    assert point(1, y=5) == point(1, 5, seen=9)
    assert point(1) != point(2)
    assert point(1) != (1, 2)
    assert repr(made).endswith("Point(x=1, y=2, seen=0, hidden=7)")
    assert named(name="a").size == 3.0
    match made:
        case point(1, 2):
            pass
        case _:
            pytest.fail("does not match by its places")


def test_what_the_library_does_with_it(classes: Any) -> None:
    point, named = classes
    assert replace(point(1), y=3) == point(1, 3)
    assert [one.name for one in fields(point)] == ["x", "y", "tags", "seen", "hidden"]
    assert asdict(point(1, tags=["a"])) == {"x": 1, "y": 2, "tags": ["a"], "seen": 0, "hidden": 7}
    assert copy.deepcopy(named(name="a", place=[1])).place == [1]
    assert dataclasses.is_dataclass(point)


def test_frozen_ones_can_be_hashed_and_not_changed(classes: Any) -> None:
    point, named = classes
    with pytest.raises(FrozenInstanceError):
        point(1).x = 2
    with pytest.raises(FrozenInstanceError):
        del point(1).x
    with pytest.raises(TypeError, match="unhashable"):
        hash(named(name="a"))
    whole = named(name="a")
    whole.size = 4
    assert whole.size == 4


@pytest.mark.parametrize(
    "made",
    [
        lambda point, _: point(),
        lambda point, _: point(1, z=2),
        lambda point, _: point(1, hidden=2),
        lambda point, _: point(1, 2, [], 4, 5, 6),
        lambda _, named: named("a"),
        lambda _, named: named(),
    ],
)
def test_wrong_arguments_are_refused(classes: Any, made: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(TypeError):
        made(*classes)


@dataclass(frozen=True)
class Kept:
    value: int


@dataclass(frozen=True)
class More(Kept):
    extra: str = "x"


def test_it_can_be_derived_from_and_kept() -> None:
    assert pickle.loads(pickle.dumps(More(1))) == More(1, "x")  # noqa: S301
    assert hash(More(1)) == hash(More(1))
    assert len({More(1), More(1), More(2)}) == 2
