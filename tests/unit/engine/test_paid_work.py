"""What was paid is counted, and calls have a bound, however an attempt ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine import sequence_worker
from sequencer.engine.events import AttemptStarted, RunEvent
from sequencer.engine.graph_worker import GraphWorker
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.logs import find_later_logs, log_name, read_log_token
from sequencer.engine.run import Run
from sequencer.engine.workspace import Workspace
from sequencer.errors import (
    MachineBusy,
    RecordRefused,
    StaleClaim,
    StepFailed,
    StorageFailed,
    TransitionRefused,
)
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.fake_agents import ScriptedExecutor
from sequencer.executors.protocol import Listener, StepRequest
from sequencer.history.story import build_story
from sequencer.model import limits as due
from sequencer.model.commands import Pause, Reset, RunCommand, SetField, Stop, StopNow, TakeOver
from sequencer.model.graph import graph_kind
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.model.outcome import Outcome, OutcomeStatus, Quota, Usage
from sequencer.model.sequence import sequence_kind
from sequencer.model.whole_numbers import MAX_USED
from tests.unit.engine.flow.labs import lab, limited
from tests.unit.engine.projects import OK, Recorder, head_of, open_scripted, reopen
from tests.unit.git.clones import claim, head

LIMITED = {"status": "limited", "error": "slow down", "usage": {"cost_usd": 0.5}}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every pause be over at once; how long one is is `due`'s to say, and tested there."""
    for name in ("DEFAULT_PAUSE_S", "GROWING_PAUSE_S", "JITTER_S"):
        monkeypatch.setattr(due, name, 0.0)


def work(run: Run, max_steps: int | None) -> Summary:
    return run.work(limits=InvocationLimits(max_steps=max_steps), on_event=Recorder())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("mode", [Mode.COMBINED, Mode.SYNC, Mode.ASYNC])
def test_max_steps_also_bounds_how_often_a_limit_is_met(tmp_path: Path, mode: Mode) -> None:
    run = open_scripted(tmp_path, LIMITED)
    summary = run.work(mode, InvocationLimits(max_steps=3), on_event=Recorder())
    assert (summary.usage.steps, summary.limits_met, summary.failures) == (0, 4, 0)
    assert summary.reason == "0 steps are done, and a usage limit was reached 4 times (--max-steps)"


@pytest.mark.usefixtures("at_once")
def test_max_steps_also_bounds_how_often_a_graph_meets_a_limit(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", {"a": limited()})
    assert made.work(limits={"max_steps": 2}).limits_met == 3
    assert made.actor.names == ["a"] * 3


@pytest.mark.usefixtures("at_once")
def test_progress_restarts_the_count(tmp_path: Path) -> None:
    script: list[dict[str, Any]] = [{**OK, "attempt": 3}, LIMITED]
    run = open_scripted(tmp_path, *script, limits={"max_attempts": 3})
    assert work(run, 4).limits_met == 5
    assert [fact["step_index"] for fact in run.history() if fact["event"] == "succeeded"] == [0, 1]


def test_an_agent_that_reported_its_limit_twice_is_not_asked_again(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(9)]
    made = lab(tmp_path, f"s --> {' & '.join(names)}", dict.fromkeys(names, limited()))
    for _ in range(12):
        made.work(Mode.TICK)
    assert made.actor.names == ["s", "n0", "n1"]


UNREADABLE = Outcome(
    status=OutcomeStatus.OK,
    quota=Quota(window="x" * 2**22, resets_at=""),
    usage=Usage(input_tokens=10**30, cost_usd=1e300),
)


def test_a_step_whose_result_can_not_be_recorded_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_scripted(tmp_path, OK)
    monkeypatch.setattr(ScriptedExecutor, "perform", lambda *_: UNREADABLE)
    with pytest.raises(RecordRefused, match="could not be read back"):
        work(run, 1)
    newest = head_of(run)
    assert (newest.claims, newest.failures_in_row, newest.step_index) == ((), 1, 0)
    assert (newest.usage.input_tokens, newest.usage.cost_usd) == (MAX_USED, MAX_USED)


def test_a_node_whose_result_can_not_be_recorded_has_failed(tmp_path: Path) -> None:
    made = lab(tmp_path, "s --> a & b", {"a": UNREADABLE})
    with pytest.raises(StepFailed, match="could not be read back"):
        made.work()
    assert [fact["step"] for fact in made.facts("failed")] == ["a"]
    assert made.head.claims == ()


@pytest.mark.parametrize("mark", ["x" * 2000, "a\nb", "\ud800"])
def test_an_id_that_no_client_accepts_is_no_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    run = open_scripted(tmp_path, OK)
    outcome = Outcome(status=OutcomeStatus.OK, session_id=mark, context_tokens=10**30)
    monkeypatch.setattr(ScriptedExecutor, "perform", lambda *_: outcome)
    assert work(run, 1).usage.steps == 1
    assert head_of(run).session is None
    assert all("session" not in (fact.get("outcome") or {}) for fact in run.store.history())


@pytest.mark.parametrize("answer", ["no-such.md", "main.md\nreviewer.md"])
def test_the_cost_of_a_refused_router_answer_is_counted(tmp_path: Path, answer: str) -> None:
    settings = {"enabled": True, "prompt": "router.md"}
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/router.md").write_text("Choose.\n")
    script = {"step": "router", "output": answer, "usage": {"cost_usd": 0.5}}
    run = open_scripted(tmp_path, script, OK, router=settings)
    with pytest.raises(StepFailed):
        work(run, 1)
    assert head_of(run).usage.cost_usd == 0.5


@pytest.mark.parametrize(
    ("heard", "counted"),
    [(None, (0.5, 0)), (b"I begin.", (0.5, 1)), (Usage(cost_usd=0.25), (0.75, 0))],
)
def test_the_cost_before_an_agent_broke_off_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: Any, counted: tuple[float, int]
) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/router.md").write_text("Choose.\n")
    script = {"step": "router", "output": "main.md", "usage": {"cost_usd": 0.5}}
    run = open_scripted(tmp_path, script, OK, router={"enabled": True, "prompt": "router.md"})
    perform = ScriptedExecutor.perform

    def broken(
        self: ScriptedExecutor, request: StepRequest, listener: Listener, stop: Cancellation
    ) -> Outcome:
        if request.step.name == "router":
            return perform(self, request, listener, stop)
        if isinstance(heard, bytes):
            listener.write(heard)
        elif heard is not None:
            listener.report_usage(heard)
        raise MachineBusy("no room")

    monkeypatch.setattr(ScriptedExecutor, "perform", broken)
    with pytest.raises(MachineBusy):
        work(run, 1)
    usage = head_of(run).usage
    assert (usage.cost_usd, usage.unpriced) == counted


def test_the_cost_of_an_attempt_with_an_unsaved_output_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> dict[str, Any]:
        raise StorageFailed("no room")

    monkeypatch.setattr(sequence_worker, "keep_large_output", refuse)
    run = open_scripted(tmp_path, {**OK, "usage": {"cost_usd": 0.5, "unpriced": 1}})
    with pytest.raises(StorageFailed):
        work(run, 1)
    head = head_of(run)
    assert (head.usage.cost_usd, head.usage.unpriced, head.usage.steps) == (0.5, 1, 0)


def test_a_plain_workspace_carries_and_refuses_nothing() -> None:
    carrier = Workspace(Path())
    state, held = head(), claim()
    before = state.model_dump(), held.model_dump()
    carrier.ensure_ready(state)
    carrier.enter(state)
    assert carrier.refs == {}
    assert carrier.collect(held, "main", state) is None
    assert carrier.keep(held, "main", state) is None
    carrier.leave(state)
    carrier.leave(None)
    assert (state.model_dump(), held.model_dump()) == before


def lose_claim(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *commands: RunCommand,
    cost_usd: float = 0.12,
) -> None:
    """Let a person give *commands* while the agent works, which charges *cost_usd* at its end."""

    def perform(*_: Any) -> Outcome:
        other = reopen(folder)
        for command in commands:
            other.do(command)
        return Outcome(status=OutcomeStatus.OK, output="done", usage=Usage(cost_usd=cost_usd))

    monkeypatch.setattr(ScriptedExecutor, "perform", perform)


def charges(run: Run) -> list[tuple[int, float]]:
    """Return the token and the cost of each attempt that was counted after it lost its claim."""
    facts = [fact for fact in run.history() if fact["event"] == "released"]
    return [
        (fact["token"], fact["outcome"]["usage"].get("cost_usd", 0.0))
        for fact in facts
        if fact["outcome"]["reason"] == "claim-lost"
    ]


def test_attempts_that_lost_their_claims_are_counted_under_the_cost_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_scripted(tmp_path, limits={"max_cost_usd": 0.2})
    lose_claim(monkeypatch, tmp_path, TakeOver())
    for _ in range(2):
        with pytest.raises(StaleClaim):
            work(run, 1)
    assert "the run's limit of 0.2 USD is reached" in work(run, 1).reason
    assert charges(run) == [(1, 0.12), (2, 0.12)]
    assert head_of(run).usage.cost_usd == pytest.approx(0.24)
    assert (head_of(run).step_index, head_of(run).usage.steps) == (0, 0)


def test_the_time_of_attempts_that_lost_their_claims_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work_for_5_s(event: RunEvent) -> None:
        if isinstance(event, AttemptStarted):
            event.attempt.started_s -= 5.0

    run = open_scripted(tmp_path, limits={"seconds": 8})
    lose_claim(monkeypatch, tmp_path, TakeOver(), cost_usd=0.0)
    for _ in range(2):
        with pytest.raises(StaleClaim):
            run.work(limits=InvocationLimits(max_steps=1), on_event=work_for_5_s)
    assert "the run's limit of 8 s is reached" in work(run, 1).reason
    assert charges(run) == [(1, 0.0), (2, 0.0)]
    assert head_of(run).usage.seconds == pytest.approx(10.0, abs=1.0)


def test_a_lost_attempt_is_one_attempt_with_its_cost_in_the_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_scripted(tmp_path)
    lose_claim(monkeypatch, tmp_path, TakeOver())
    with pytest.raises(StaleClaim):
        work(run, 1)
    (attempt,) = build_story(run.history()).tries
    assert (attempt.state, attempt.usage.cost_usd, attempt.usage.unpriced) == ("lost", 0.12, 1)


def test_an_interrupted_attempt_that_still_has_its_claim_was_not_lost(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)

    def lose_it(event: RunEvent) -> None:
        # As if the files of the run had been away at a heartbeat.
        if isinstance(event, AttemptStarted) and event.attempt.claim.attempt == 1:
            event.attempt.cancellation.set(StopReason.CLAIM_LOST)

    run.work(limits=InvocationLimits(max_steps=1), on_event=lose_it)
    (release,) = (fact for fact in run.history() if fact["event"] == "released")
    assert release["outcome"]["reason"] == "interrupted"
    assert build_story(run.history()).tries[0].state == "released"


def test_a_late_charge_does_not_end_the_wait_at_a_gate() -> None:
    told = [
        {"event": "claimed", "step": "a", "token": 1, "attempt": 1},
        {"event": "taken-over", "step": "a", "token": 1},
        {"event": "claimed", "step": "a", "token": 2, "attempt": 2},
        {"event": "succeeded", "step": "a", "token": 2, "outcome": {"gate": True}},
        {"event": "released", "step": "a", "token": 1, "outcome": {"reason": "claim-lost"}},
    ]
    facts = [{"at": "2026-11-28T10:00:00Z", **fact} for fact in told]
    ((turn, wait),) = build_story(facts).open
    assert (wait.is_gate, turn.is_accepted) == (True, True)


@pytest.mark.parametrize("to", [2, 0])
def test_another_step_index_counts_the_attempt_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: int
) -> None:
    run = open_scripted(tmp_path)
    run.do(SetField("step_index", 1))
    lose_claim(monkeypatch, tmp_path, SetField("step_index", to))
    with pytest.raises(StaleClaim):
        work(run, 1)
    lost = next(fact for fact in run.history() if fact["event"] == "taken-over")
    assert (lost["token"], lost["step_index"], lost["outcome"]["incomplete"]) == (1, 1, True)
    assert lost["outcome"]["note"] == f"set step_index={to}"
    assert charges(run) == [(1, 0.12)]
    usage = head_of(run).usage
    assert (usage.cost_usd, usage.unpriced) == (0.12, 1)


def test_a_run_that_was_started_over_does_not_count_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_scripted(tmp_path)
    lose_claim(monkeypatch, tmp_path, TakeOver(), Reset())
    with pytest.raises(StaleClaim):
        work(run, 1)
    assert charges(run) == []
    assert head_of(run).usage.cost_usd == 0


def test_a_cost_that_could_not_be_counted_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bool:
        raise StorageFailed("no room")

    run, seen = open_scripted(tmp_path), Recorder()
    lose_claim(monkeypatch, tmp_path, TakeOver())
    monkeypatch.setattr(sequence_worker, "charge_lost_attempt", refuse)
    with pytest.raises(StaleClaim):
        run.work(limits=InvocationLimits(max_steps=1), on_event=seen)
    assert any("0.1200 USD of step 'supervisor' could not be counted" in it for it in seen.notices)


@pytest.mark.parametrize(("command", "state"), [(Stop(), "stopped"), (Pause(), "paused")])
def test_an_agent_that_ends_while_its_step_is_stopped_ends_the_work_as_a_stop_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: RunCommand, state: str
) -> None:
    run, seen = open_scripted(tmp_path), Recorder()
    lose_claim(monkeypatch, tmp_path, command, StopNow())
    summary = run.work(limits=InvocationLimits(max_steps=1), on_event=seen)
    run_state = f"the run {'was' if state == 'stopped' else 'is'} {state}"
    assert run_state in summary.reason
    assert any("it was not accepted" in text for text in seen.notices)
    assert (head_of(run).step_index, summary.usage.steps) == (0, 0)
    assert charges(run) == [(1, 0.12)]


def test_stopping_a_step_that_has_ended_changes_nothing(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    with pytest.raises(TransitionRefused, match="the run has not started"):
        run.do(StopNow())
    work(run, 1)
    run.do(Stop())
    before = head_of(run)
    change = run.do(StopNow())
    assert (change.facts, change.head) == ((), before)
    assert head_of(reopen(tmp_path)) == before


def refuse_for_now(*_: Any) -> Outcome:
    raise MachineBusy("no descriptor is left")


def test_a_step_that_a_busy_machine_could_not_start_uses_up_no_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_kind, "POSTPONED_S", -1.0)
    run, seen = open_scripted(tmp_path, limits={"max_attempts": 2}), Recorder()
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedExecutor, "perform", refuse_for_now)
        for _ in range(4):
            with pytest.raises(MachineBusy):
                run.work(Mode.TICK, on_event=seen)
            assert (head_of(run).attempt, head_of(run).failures_in_row) == (0, 0)
    run.work(Mode.TICK, on_event=seen)
    assert head_of(run).step_index == 1
    claims = [(f["token"], f["attempt"]) for f in run.history() if f["event"] == "claimed"]
    assert claims == [(token, 1) for token in range(1, 6)]
    # The names of logs go on, so that none is overwritten.
    assert [read_log_token(log) for log in seen.logs] == [1, 2, 3, 4, 5]
    assert len(set(seen.logs)) == 5
    (turn,) = build_story(run.history()).turns
    assert [attempt.state for attempt in turn.tries] == [*["released"] * 4, "done"]


def test_an_attempt_that_was_paid_counts_although_the_machine_was_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def perform(_: Any, __: StepRequest, listener: Listener, ___: Cancellation) -> Outcome:
        listener.report_usage(Usage(cost_usd=0.25))
        raise MachineBusy("no descriptor is left")

    run = open_scripted(tmp_path)
    monkeypatch.setattr(ScriptedExecutor, "perform", perform)
    with pytest.raises(MachineBusy):
        work(run, 1)
    assert (head_of(run).attempt, head_of(run).usage.cost_usd) == (1, 0.25)


def test_a_node_that_a_busy_machine_could_not_start_uses_up_no_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_kind, "POSTPONED_S", -1.0)
    made = lab(tmp_path, "a --> b", limits=RunLimits(attempts=2))
    with monkeypatch.context() as patch:
        patch.setattr(GraphWorker, "_perform", refuse_for_now)
        for _ in range(4):
            assert isinstance(made.refused(Mode.TICK), MachineBusy)
    made.work()
    assert made.accepted() == ["a", "b"]
    claims = [(fact["token"], fact["attempt"]) for fact in made.facts("claimed")]
    assert claims == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
    turns = build_story(made.facts()).turns
    assert [(turn.step, len(turn.tries)) for turn in turns] == [("a", 5), ("b", 1)]


def test_a_later_attempt_is_evidence_beside_the_logs_of_those_that_were_given_back(
    tmp_path: Path,
) -> None:
    run_head = head().replace(token=2)
    for number, token in ((1, 2), (2, 3)):
        name = log_name(run_head.step_index, run_head.expected_step, number)
        (tmp_path / name).write_text(f"# token {token}\n# run {run_head.run_id} \n")
    assert [mark.token for mark in find_later_logs([tmp_path], run_head)] == [2, 3]
