"""Combined mode and tick: what they run, and how they end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bench.project import Marks, NoOp, NoOpAgents, make_project, run_of
from sequencer.engine.events import AttemptStarted, RunEvent
from sequencer.engine.invocation_budget import Mode
from sequencer.errors import (
    ConfigurationError,
    DefinitionChanged,
    Interrupted,
    StepFailed,
    UnknownName,
)
from sequencer.model import limits as due
from sequencer.model.commands import Accept, Adopt, Pause, RunCommand, Stop
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits
from sequencer.store.file import FileStore
from sequencer.store.protocol import Change, View
from tests.unit.engine.projects import FAILED, OK, Recorder, events, head_of, open_scripted

LIMITED = {"status": "limited", "error": "usage limit"}


def steps(number: int, **more: Any) -> InvocationLimits:
    return InvocationLimits(max_steps=number, **more)


def test_a_usage_limit_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "DEFAULT_PAUSE_S", 0.3)
    monkeypatch.setattr(due, "GROWING_PAUSE_S", 0.2)
    monkeypatch.setattr(due, "JITTER_S", 0.0)
    main = {**OK, "step": "main", "step_index": 1}
    run, seen = open_scripted(tmp_path, main, LIMITED, LIMITED, OK), Recorder()
    started = time.monotonic()
    summary = run.work(limits=steps(2), on_event=seen)
    assert time.monotonic() - started > 0.6
    assert (summary.failures, summary.usage.steps) == (0, 2)
    assert [attempt for _, _, attempt in seen.steps] == [1, 2, 3, 1]
    assert len(seen.waits) >= 2
    assert "usage limit of agent '" in seen.waits[0][0]
    assert events(run).count("released") == 2
    assert head_of(run).failures_in_row == 0


@pytest.mark.parametrize("told", [None, "soon", "1999-01-01T00:00:00Z", "2026-99-99"])
def test_a_usage_limit_without_a_future_reset_still_waits(tmp_path: Path, told: str | None) -> None:
    run = open_scripted(tmp_path, {**LIMITED, "not_before": told})
    run.work(Mode.TICK)
    assert "nothing due" in run.work(Mode.TICK).reason
    assert events(run).count("claimed") == 1


STOPPED = "the run was stopped: enough; 'sequencer resume' lets it continue"
PAUSED = "the run is paused; 'sequencer resume' lets it continue"
ON_HOLD = pytest.mark.parametrize(
    ("command", "words"), [(Stop("enough"), STOPPED), (Pause(), PAUSED)], ids=["stop", "pause"]
)


@ON_HOLD
@pytest.mark.parametrize("mode", [Mode.COMBINED, Mode.TICK])
@pytest.mark.parametrize("failures_in_row", [1, 3])
def test_a_failure_in_a_run_put_on_hold_reports_how_to_continue(
    tmp_path: Path, command: RunCommand, words: str, mode: Mode, failures_in_row: int
) -> None:
    run = open_scripted(tmp_path, FAILED, limits={"failures_in_row": failures_in_row})

    def listen(event: RunEvent) -> None:
        if isinstance(event, AttemptStarted):
            run.do(command)

    with pytest.raises(StepFailed) as failed:
        run.work(mode, on_event=listen)
    limit = "step 'supervisor' failed (limits.failures_in_row: 1): look at 'sequencer log', "
    limit += "then 'sequencer retry' or 'skip'; "
    assert failed.value.hint == (f"{limit}{words}" if failures_in_row == 1 else words)


@ON_HOLD
def test_an_interrupt_of_a_run_on_hold_reports_how_to_continue(
    tmp_path: Path, command: RunCommand, words: str
) -> None:
    run = open_scripted(tmp_path, {**OK, "delay_s": 30})
    stops: list[Callable[[], None]] = []

    def listen(event: RunEvent) -> None:
        if isinstance(event, AttemptStarted):
            run.do(command)
            stops[0]()

    with pytest.raises(Interrupted) as interrupted:
        run.work(on_event=listen, on_ready=stops.append)
    assert interrupted.value.hint == words


def test_max_cycles_ends_the_invocation(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    run.work(limits=steps(1))
    summary = run.work(limits=InvocationLimits(max_cycles=2))
    assert "2 cycles" in summary.reason
    assert head_of(run).step_index == 4


def test_tick_leaves_other_positions_alone(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    assert "another position" in run.work(Mode.TICK, positions=["main"]).reason
    assert head_of(run).token == 0
    run.work(Mode.TICK, positions=["0"])
    assert head_of(run).step_index == 1
    with pytest.raises(UnknownName, match="position 'boss'"):
        run.work(Mode.TICK, positions=["boss"])


def test_a_next_step_that_cannot_be_prepared_does_not_undo_the_last(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    (tmp_path / "prompts/main.md").unlink()
    with pytest.raises(UnknownName, match=r"prompt 'main\.md'"):
        run.work()
    head = head_of(run)
    assert (head.step_index, head.status, head.claims) == (1, "waiting-next", ())
    (tmp_path / "prompts/main.md").mkdir()
    with pytest.raises(ConfigurationError):
        run.work()
    assert head_of(run).token == 1


def test_another_definition_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    run.work(limits=steps(1))
    settings = {"workflow": {"name": "review_cadence", "review_every_n": 3}}
    other = open_scripted(tmp_path, **settings)
    for verb in (other.work, lambda: other.workflow, lambda: other.do(Accept())):
        with pytest.raises(DefinitionChanged, match="standard"):
            verb()
    other.do(Adopt())
    other.work(limits=steps(1))
    head = head_of(other)
    assert (head.workflow_name, head.step_index) == ("review_cadence", 2)
    assert head.params == {"review_every_n_cycles": 3}


class Talkative(FileStore):
    """Has something to say at each look, as a store whose remote is out of reach."""

    updates = 0

    def view(self) -> View:
        view = super().view()
        return replace(view, notices=(*view.notices, "this is what this clone knows"))

    def update(self, change: Change) -> Head:
        self.updates += 1
        return super().update(change)


def test_a_notice_from_a_store_causes_no_extra_write(tmp_path: Path) -> None:
    store = Talkative(tmp_path / "sync" / "state.json")
    run = run_of(make_project(tmp_path), store, None, NoOpAgents(NoOp(Marks())))
    run.work(limits=InvocationLimits(max_steps=1))
    before = store.updates
    run.work(limits=InvocationLimits(max_steps=1))
    assert store.updates - before == 2, "a claim and a record"
