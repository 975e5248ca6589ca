"""What hints tell a person to type."""

from __future__ import annotations

import shlex

import pytest

from sequencer.model.names import command


@pytest.mark.parametrize("name", ["my run", "it's", "$HOME", "a;b", "", 'a"b'])
def test_an_odd_name_can_be_typed_as_it_stands(name: str) -> None:
    assert shlex.split(command(name, "adopt")) == ["sequencer", "--run", name, "adopt"]
