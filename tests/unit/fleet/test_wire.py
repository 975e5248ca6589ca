"""What travels comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import convert

from sequencer import errors
from sequencer.errors import ClaimHeld, SequencerError, StepFailed, UnknownName, WaitsForPerson
from sequencer.model.graph.choices import find_candidates, normalize
from sequencer.model.head import Claim, Gate, Head, Loop, Status
from sequencer.model.kind import AttemptResult
from sequencer.model.outcome import Outcome, OutcomeStatus, SessionFault, Usage, Verdict
from sequencer.model.sequence.order import find_step_ref
from sequencer.model.sequence.sequence_kind import Continuation, ContinuationKind
from sequencer.model.step import Output, Retry, Step
from sequencer.model.transitions import Event, Fact
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams import project_tasks
from sequencer.plugins.teams.expansion import TeamExpander
from sequencer.plugins.teams.team import Role, TeamBudget, TeamRules
from sequencer.plugins.temporal.wire import (
    HEAD,
    RUN,
    AttemptReport,
    build_run_owner,
    pack_error,
    pack_fact,
    pack_head,
    pack_report,
    pack_workflow,
    unpack_error,
    unpack_fact,
    unpack_head,
    unpack_result,
)

AT = "2026-01-02T03:04:05Z"
PLAIN: dict[str, Any] = {
    "run_id": "r-1",
    "workflow_name": "w",
    "workflow_digest": "sha256:0",
    "expected_step": "main",
    "last_update": AT,
}


def claim(**more: Any) -> Claim:
    values = {"token": 7, "step": "main", "step_index": 3, "attempt": 2, "claimed_at": AT}
    return Claim.model_validate({**values, "owner": build_run_owner("r-1"), "ttl_s": 60.0, **more})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"step_index": 3, "iteration": 4, "status": Status.RUNNING, "claims": (claim(),)},
        {"claims": (claim(step="other", step_index=9, share_usd=0.5),), "iteration": 1},
        {"params": {"review_every_n_cycles": 2}, "run_name": "nightly", "has_definition": True},
        {"iteration": 9},
        {"usage": Usage(steps=2, cost_usd=0.25, seconds=1.5), "note of a person": [1, {"a": None}]},
        {"gate": Gate(step="a", step_index=1, token=2, opened_at=AT), "exit": True},
        {"loop": Loop(stage="fix", round=1, reason="no"), "told": [["main", 4]]},
        {"not_before": AT, "not_before_reason": "retry", "pause_requested": True},
    ],
)  # fmt: skip
def test_a_head_survives_a_round_trip(more: dict[str, Any]) -> None:
    head = Head.model_validate({**PLAIN, **more})
    memo = json.loads(json.dumps(pack_head(head)))
    assert unpack_head(memo) == head
    assert unpack_head(memo).waiting_messages == head.waiting_messages


def test_constant_fields_are_packed_apart_from_changing_ones() -> None:
    head = Head.model_validate({**PLAIN, "revision": 4, "claims": (claim(),)})
    parts = pack_head(head)
    assert set(parts[RUN]) == {"run_id", "workflow_name", "workflow_digest"}
    assert pack_head(head.replace(revision=5, step_index=8, iteration=9))[RUN] == parts[RUN]
    assert "owner" not in parts[HEAD]["claims"][0]


def test_a_fact_has_its_record_again() -> None:
    record = {"status": "ok", "output": "x"}
    fact = Fact(Event.SUCCEEDED, "main", 3, 7, 1, {**record, "gate": True})
    told = pack_fact(fact, record)
    assert told["outcome"] == {"gate": True}
    assert unpack_fact(told, {7: record})["outcome"] == {**record, "gate": True}
    other = Fact(Event.SUCCEEDED, "main", 3, 7, 1, {"status": "failed"})
    assert unpack_fact(pack_fact(other, record), {7: record})["outcome"] == {"status": "failed"}
    none = Fact(Event.CLAIMED, "main", 3, 8, 1)
    assert unpack_fact(pack_fact(none, record), {7: record})["outcome"] is None


@pytest.mark.parametrize(
    "error",
    [
        WaitsForPerson("who?", where="here", hint="say it"),
        ClaimHeld("held"),
        StepFailed("no", hint="again"),
        UnknownName("step", "a", ["b"]),
    ],
)
def test_a_refusal_keeps_its_class_message_and_exit_code(error: SequencerError) -> None:
    found = unpack_error(pack_error(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert isinstance(found, SequencerError)
    assert found.exit_code == error.exit_code


def test_every_error_survives_a_round_trip() -> None:
    for name in dir(errors):
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, SequencerError):
            found = unpack_error({"type": name, "message": "m"})
            assert type(found) is kind
    assert isinstance(unpack_error(pack_error(ValueError("x"))), RuntimeError)


WORKFLOW = Workflow("w", (Step(name="a"), Step(name="b")))


@pytest.mark.parametrize(
    ("outcome", "more"),
    [
        (Outcome(status=OutcomeStatus.OK, output="o", session_id="s"), {}),
        (Outcome(status=OutcomeStatus.FAILED, error="e" * 5000, exit_code=3), {}),
        (Outcome(status=OutcomeStatus.LIMITED, not_before=AT), {}),
        (Outcome(status=OutcomeStatus.OK, session_id="s", session_steps=3, context_tokens=9), {}),
        (Outcome(status=OutcomeStatus.FAILED, session_fault=SessionFault.SUSPECT), {}),
        (Outcome(status=OutcomeStatus.UNAVAILABLE, is_unexplained=True), {}),
        (
            Outcome(status=OutcomeStatus.FAILED, is_timed_out=True, structured={"a": [1]}),
            {"verdict": Verdict(is_pass=False, reason="r", source="json"), "is_final": True},
        ),
    ],
)
def test_an_attempt_ends_remotely_as_it_ended_locally(
    outcome: Outcome, more: dict[str, Any]
) -> None:
    step = Step(name="a", retry=Retry(max_attempts=3))
    here, held = find_step_ref(WORKFLOW, 0), claim(step="a", step_index=0)
    record: dict[str, Any] = {"status": str(outcome.status), "agent": "x", "began_at": AT}
    record |= {"output": outcome.output} if outcome.output else {}
    record |= {"error": outcome.error[:4000]} if outcome.error else {}
    record |= {"exit_code": outcome.exit_code} if outcome.exit_code else {}
    ending = Continuation(ContinuationKind.ACCEPT, find_step_ref(WORKFLOW, 0), has_gate=True)
    numbers = held.token, held.attempt
    ended = AttemptResult(
        outcome, step, here, "x", *numbers, began_at=AT, record=record, ending=ending, **more
    )
    report = json.loads(json.dumps(pack_report(ended, None, None)))
    again = unpack_result(convert(report, AttemptReport), held, here, Step(name="a"), WORKFLOW)
    assert again == ended


@pytest.mark.parametrize("has_gate", [False, True])
def test_a_step_that_says_the_run_is_complete_says_it_remotely_too(has_gate: bool) -> None:
    here, held = find_step_ref(WORKFLOW, 0), claim(step="a", step_index=0)
    ending = Continuation(ContinuationKind.ACCEPT, here, has_gate=has_gate, is_done=True)
    record = {"status": "complete"}
    ended = AttemptResult(Outcome(status=OutcomeStatus.COMPLETE), Step(name="a"), here, "x",
                          record=record, ending=ending)  # fmt: skip
    report = json.loads(json.dumps(pack_report(ended, None, None)))
    again = unpack_result(convert(report, AttemptReport), held, here, Step(name="a"), WORKFLOW)
    assert again.ending == ending


def test_a_gate_of_an_earlier_release_is_decided_as_it_was() -> None:
    here, held = find_step_ref(WORKFLOW, 0), claim(step="a", step_index=0)
    ending = {"kind": "accept", "to": 0, "gate": True, "done": True}
    report = AttemptReport({"status": "complete"}, ending=ending)
    again = unpack_result(report, held, here, Step(name="a"), WORKFLOW)
    assert (again.ending.has_gate, again.ending.is_done) == (True, False)


@pytest.mark.parametrize(
    ("output", "picks"),
    [
        ("word " * 20_000 + "\nDecision: send back\n", "send back"),
        (json.dumps({"decision": "Approve", "why": "w" * 70_000}), "Approve"),
        ("word " * 20_000 + '{"result": "3 passed"}\nsend back', "send back"),
        ("word " * 20_000 + '{"decision": "send back"}\nThat is all.', "send back"),
    ],
)
def test_the_choice_of_an_answer_is_sent_even_if_the_answer_is_too_large(
    output: str, picks: str
) -> None:
    here, held = find_step_ref(WORKFLOW, 0), claim(step="a", step_index=0)
    outcome = Outcome(status=OutcomeStatus.OK, output=output)
    record = {"status": "ok", "output_file": "results/0-1-x/output.txt"}
    ended = AttemptResult(outcome, Step(name="a"), here, "x", record=record)
    report = json.loads(json.dumps(pack_report(ended, None, None)))
    assert len(json.dumps(report)) < 1000
    again = unpack_result(convert(report, AttemptReport), held, here, Step(name="a"), WORKFLOW)
    said = again.outcome.output
    assert normalize(picks) in find_candidates(said)
    assert "output" not in report


def test_the_rules_of_a_team_survive_a_round_trip() -> None:
    rules = TeamRules(budget=TeamBudget(max_cost_usd=0.5), max_tasks=7)
    expander = TeamExpander({"builder": Role(writes=True, step={"model": "m"})}, 7, "x")
    made = project_tasks.make_execution(rules, expander)
    sent = json.dumps(project_tasks.dump(made))
    budgets, found = project_tasks.load(json.loads(sent))
    assert (budgets.rules, found) == (rules, expander)


def test_a_workflow_keeps_its_answer_schema_in_a_round_trip() -> None:
    output = Output.model_validate({"key": "x", "format": "json", "schema": {"type": "object"}})
    workflow = Workflow("w", (Step(name="a", output=output), Step(name="b")))
    data = json.loads(json.dumps(pack_workflow(workflow)))
    assert Workflow.model_validate(data) == workflow
