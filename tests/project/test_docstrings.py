"""What docstrings have to say, beyond what ruff sees: it doesn't know what a method inherits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure import ROOT, Program

MODULE = '''
from typing import Protocol


class Wheel(Protocol):
    def turn(self, degrees: int) -> None:
        """Turn by *degrees*."""

    def stop(self) -> None: ...


class Wooden:
    def turn(self, degrees: int) -> None: ...

    def stop(self) -> None:
        """Stop."""

    @property
    def color(self) -> str:
        """What color it is."""

    @color.setter
    def color(self, value: str) -> None: ...


class Painted(Wooden):
    @property
    def color(self) -> str: ...

    def stop(self) -> None: ...
'''


@pytest.fixture(scope="module")
def program() -> Program:
    return Program(ROOT)


def written(tmp_path: Path, more: str) -> Program:
    """Return a program that is `MODULE` and *more*."""
    (tmp_path / "sequencer").mkdir()
    (tmp_path / "sequencer" / "wheels.py").write_text(MODULE + more)
    return Program(tmp_path)


def lacking(tmp_path: Path, more: str = "") -> list[str]:
    return [one.what for one in written(tmp_path, more).undocumented()]


def stale(tmp_path: Path, more: str) -> list[str]:
    return [one.what for one in written(tmp_path, more).stale_references()]


def test_every_public_method_has_a_docstring_or_inherits_one(program: Program) -> None:
    assert program.undocumented() == []


def test_a_method_inherits_the_docstring_of_a_base_or_a_protocol(tmp_path: Path) -> None:
    # The protocol's own `stop` has none to pass on.
    assert lacking(tmp_path) == ["Wheel.stop"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("class Half:\n    def turn(self, degrees: int): ...", ["Half.turn"]),
        ("class Square(Wooden):\n    def fall(self): ...", ["Square.fall"]),
        ("class Book:\n    def turn(self, page): ...\n    stop: bool", ["Book.turn"]),
        ("class Disk:\n    def turn(self, degrees): ...\n    stop: bool", []),
        ("class _Hidden:\n    def roll(self) -> None: ...", []),
        ("class Shown:\n    def _roll(self) -> None: ...", []),
        ("def f() -> None:\n    class Local:\n        def roll(self) -> None: ...", []),
    ],
)
def test_an_undocumented_method_is_found(tmp_path: Path, more: str, expected: list[str]) -> None:
    assert lacking(tmp_path, more) == ["Wheel.stop", *expected]


def test_no_docstring_is_only_a_reference(program: Program) -> None:
    # What the other place says is inherited, or is the first sentence here.
    assert [one for one in program.docstrings() if one.what.startswith("See `")] == []


def test_names_after_see_in_docstrings_exist(program: Program) -> None:
    assert program.stale_references() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See `wheels`, `Wheel` and `Wheel.turn`; see also `wheels.Wheel.turn`.", []),
        ("Raises: see `stop`, of which\n    nothing is known, see\n    `Painted.stop`.", []),
        ("A wheel; see `Wheel.fall`.", ["Wheel.fall"]),
        ("A wheel; see `Wheel` and `wagons.Wheel`.", ["wagons.Wheel"]),
        ("A wheel; see `Axle`.", ["Axle"]),
        ("A key; see ``axle:`` in docs/wheels.md.", []),
    ],
)
def test_a_reference_to_an_unknown_name_is_found(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    assert stale(tmp_path, f'def f() -> None:\n    """{text}"""') == expected
