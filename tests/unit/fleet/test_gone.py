"""A worker counts as gone only if its own machine can prove it."""

from __future__ import annotations

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from sequencer.plugins.temporal.connection import identity, is_gone


def test_only_a_process_proven_dead_here_is_gone() -> None:
    own = identity()
    name, proof = own.split("#")
    machine, boot, namespace, start = proof.split("/")
    assert not is_gone(own)
    assert is_gone(f"{name}#{machine}/{boot}/{namespace}/{int(start) + 1}")
    for other in (
        name,
        "",
        f"{name}#",
        f"{name}#x/{boot}x/{namespace}/{start}",
        f"{name}#{machine}/{boot}/pid:[1]/{int(start) + 1}",
        f"{name}#{machine}/{boot}/{namespace}/x",
        f"1{own}x",
    ):
        assert not is_gone(other), other
