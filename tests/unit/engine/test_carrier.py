"""The carrier of a run whose code is not moved: it lets everything pass."""

from __future__ import annotations

from sequencer.engine.carrier import Carrier, NothingCarried
from tests.unit.git.clones import claim, head


def test_nothing_is_carried_and_nothing_refused() -> None:
    carrier: Carrier = NothingCarried()
    state, held = head(), claim()
    before = state.model_dump(), held.model_dump()
    carrier.ready(state)
    carrier.arrive(state)
    assert carrier.refs == {}
    assert carrier.collect(held, "main", state) is None
    assert carrier.keep(held, "main", state) is None
    carrier.leave(state)
    carrier.leave(None)
    assert carrier.take_notices() == []
    assert (state.model_dump(), held.model_dump()) == before
