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


def lacking(tmp_path: Path, more: str = "") -> list[str]:
    """Return the methods without docstrings in a program that is `MODULE` and *more*."""
    (tmp_path / "sequencer").mkdir()
    (tmp_path / "sequencer" / "wheels.py").write_text(MODULE + more)
    return [one.what for one in Program(tmp_path).undocumented()]


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
def test_a_method_that_nothing_documents_is_found(
    tmp_path: Path, more: str, expected: list[str]
) -> None:
    assert lacking(tmp_path, more) == ["Wheel.stop", *expected]
