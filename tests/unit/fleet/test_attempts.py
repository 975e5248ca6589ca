"""What the run is told of an attempt that could not be made."""

from __future__ import annotations

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from temporalio.exceptions import ApplicationError

from sequencer.engine.attempt import Noticed, RunEvent
from sequencer.engine.worker import Worker
from sequencer.errors import RemoteUnreachable, SequencerError, UnknownName
from sequencer.executors.protocol import Cancellation
from sequencer.fleet.wire import Ticket
from sequencer.fleet.worker import Activities
from sequencer.fleet.workflow import LOST, REFUSED
from sequencer.model.head import Head


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RemoteUnreachable("the Temporal server does not answer", where="there:1"), LOST),
        (UnknownName("prompt", "main.md", known=()), REFUSED),
    ],
)
def test_a_server_that_is_away_is_no_fault_of_the_step(error: SequencerError, told: str) -> None:
    def worker_of(_: str) -> tuple[Worker, Head]:
        raise error

    heard: list[tuple[str | None, RunEvent]] = []
    attempts = Activities(worker_of, lambda *one: heard.append(one))
    with pytest.raises(ApplicationError) as raised:
        attempts._made("seq/p/nightly", Ticket(1), Cancellation())
    assert raised.value.type == told
    assert raised.value.non_retryable
    said = [("nightly", Noticed(f"not made here: {error}"))] if told == REFUSED else []
    assert heard == said
