"""An attempt that a server hands out to a worker: its process has the mark of its claim."""

from __future__ import annotations

from pathlib import Path

from sequencer import Cancellation, Run, find_step_ref
from sequencer.engine.allowance import Allowance
from sequencer.engine.events import ignore
from sequencer.engine.sequence_worker import SequenceWorker
from tests.acceptance.charging import calls_of, charged_project, run_of


def claimed(run: Run) -> tuple[SequenceWorker, int]:
    """Return a worker, and the token of the first step, which is claimed as a server does it."""
    worker = run.worker(ignore)
    assert isinstance(worker, SequenceWorker)
    head = run.commands.begin()
    running = worker.claim(head, worker.performer.prepare(find_step_ref(worker.workflow, 0)))
    assert running is not None
    return worker, running.claim.token


def test_an_attempt_that_a_server_hands_out_has_the_mark(tmp_path: Path) -> None:
    folder = charged_project(tmp_path / "p", {}, workflow={"name": "standard"})
    run = run_of(folder, None)
    worker, token = claimed(run)
    head = run.head
    assert head is not None
    ended, error = worker.run_attempt(head, token, Allowance(), Cancellation())
    worker.close()
    assert error is None
    assert ended.outcome.usage.cost_usd == 0.125
    assert [call["SEQUENCER_TOKEN"] for call in calls_of(folder)] == [str(token)]
