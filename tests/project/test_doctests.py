"""The examples in the docstrings of the package."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tests.project.documents import ROOT

# Only these: ``--doctest-modules`` searches every module of the tests, too, in each process.
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "sequencer").rglob("*.py"))
    if ">>> " in path.read_text() and "examples" not in path.parts
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    failures, examples = doctest.testmod(import_module(name))
    assert examples > 0
    assert failures == 0
