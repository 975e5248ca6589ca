"""Whose models there are, and that the table of them agrees with the executors."""

from __future__ import annotations

from importlib import import_module

import pytest

from sequencer.assembly.agents import EXECUTORS, PROVIDERS
from sequencer.executors.protocol import Particular

ANYBODYS = {"command", "opencode", "rehearsal", "scripted"}


def test_the_kinds_that_have_one_providers_models() -> None:
    told = {kind: provider for provider, kinds in PROVIDERS.items() for kind in kinds}
    assert told.keys() == EXECUTORS.keys() - ANYBODYS
    for kind, recipe in EXECUTORS.items():
        executor = getattr(import_module(recipe.module), recipe.executor)
        has = getattr(executor, "providers", None)
        assert has == ({told[kind]} if kind in told else None), kind


@pytest.mark.parametrize("kind", sorted(EXECUTORS.keys() - {"rehearsal", "scripted"}))
def test_who_honours_some_values_only_can_say_which(kind: str) -> None:
    executor = getattr(import_module(EXECUTORS[kind].module), EXECUTORS[kind].executor)
    # What the protocol asks for is looked up by name, so a slip would switch the check off.
    assert isinstance(executor.__new__(executor), Particular)
