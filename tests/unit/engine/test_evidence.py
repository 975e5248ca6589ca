"""What an attempt's evidence is worth."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.cli.views.readiness import take_snapshot
from sequencer.engine.events import AttemptStarted, AttemptWrote, RunEvent
from sequencer.engine.evidence import judge, judge_turn, judge_work, says_nothing_to_do
from sequencer.errors import StepFailed
from sequencer.model.evidence import Evidence, TurnEnd
from sequencer.model.limits import InvocationLimits
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Expects, Step, Validation
from sequencer.workflows.registry import with_defaults
from tests.unit.engine.projects import Recorder, open_scripted, reopen, until

OK = OutcomeStatus.OK
TEXT = Evidence(has_text=True)
COUNTS = st.integers(min_value=0, max_value=3)
EVIDENCE = st.builds(
    Evidence,
    turn_end=st.sampled_from(TurnEnd),
    reason=st.none() | st.text(max_size=10),
    has_text=st.booleans(),
    tool_calls=COUNTS,
    open_calls=COUNTS,
    is_stated=st.booleans(),
    is_idle=st.booleans(),
    has_changed=st.sampled_from([None, True, False]),
)
STEPS = st.builds(Step, name=st.just("main"), expects=st.sampled_from([None, "text", "nothing"]))


def ended(evidence: Evidence | None, output: str = "") -> Outcome:
    return Outcome(status=OK, output=output, evidence=evidence)


@given(
    outcome=st.builds(
        Outcome,
        status=st.sampled_from(OutcomeStatus),
        output=st.text(max_size=30) | st.just("Nothing to do: all is done"),
        evidence=st.none() | EVIDENCE,
    ),
    step=STEPS,
)
def test_a_turn_that_was_cut_off_is_never_accepted(outcome: Outcome, step: Step) -> None:
    judged = judge(outcome, step, None, lambda _: None)
    shown = outcome.evidence
    if shown is not None and shown.turn_end is TurnEnd.CUT_OFF:
        assert not judged.is_accepted
    assert judged.is_accepted <= outcome.is_accepted, "what failed stays failed"
    assert judged.status in {outcome.status, OutcomeStatus.FAILED}
    assert bool(judged.error) or judged.status == outcome.status


@pytest.mark.parametrize(
    ("shown", "expects", "missing"),
    [
        (TEXT, None, None),
        (Evidence(), None, "anything"),
        (Evidence(tool_calls=2, open_calls=1), None, None),
        (Evidence(tool_calls=1, open_calls=1), None, "anything"),
        (Evidence(has_changed=True), None, None),
        (Evidence(has_changed=False), None, "anything"),
        (Evidence(is_stated=True), None, None),
        (Evidence(), "nothing", None),
        (TEXT, "text", None),
        (Evidence(tool_calls=3), "text", "text"),
        (Evidence(is_stated=True), "text", None),
        (TEXT.replace(has_changed=False), "change", "change"),
        (TEXT.replace(has_changed=True), "change", None),
        # Unknown is never "no change".
        (TEXT, "change", None),
        (Evidence(), "change", "change"),
        # What it says of itself changes no file.
        (Evidence(is_stated=True, has_changed=False), "change", "change"),
        (Evidence(is_idle=True, has_changed=False), "change", None),
    ],
)
def test_work_is_judged_by_what_the_step_expects(
    shown: Evidence, expects: Expects | None, missing: str | None
) -> None:
    judged = judge_work(ended(shown), expects, "main")
    assert (judged.missing, judged.is_accepted) == (missing, missing is None)


def test_an_unknown_reason_is_accepted_with_text_and_no_open_call() -> None:
    said: list[str] = []
    unknown = TEXT.replace(turn_end=TurnEnd.UNKNOWN, reason="tired")
    assert judge_turn(ended(unknown), said.append).is_accepted
    assert "a reason that is not known here (its client says 'tired')" in said[0]
    for refused in (unknown.replace(has_text=False), unknown.replace(open_calls=1)):
        assert "its client says 'tired'" in (judge_turn(ended(refused)).error or "")


def test_an_attempt_that_has_failed_keeps_its_own_reason() -> None:
    limited = ended(Evidence(turn_end=TurnEnd.CUT_OFF)).replace(status=OutcomeStatus.LIMITED)
    assert judge_turn(limited) == limited


def test_a_turn_that_was_cut_off_reports_how() -> None:
    shown = TEXT.replace(turn_end=TurnEnd.CUT_OFF, reason="tool_use", tool_calls=2, open_calls=1)
    error = judge_turn(ended(shown)).error or ""
    assert "was cut off: its client says 'tool_use', and 1 tool call got no result" in error
    told = judge_turn(ended(shown).replace(error="do this", denials=("Write x",))).error or ""
    assert "refused before: Write x\ndo this" in told


def test_the_last_line_of_an_answer_may_state_nothing_to_do() -> None:
    step = Step(name="main", expects="change")
    shown = Evidence(has_text=True, has_changed=False)
    idle = judge(
        ended(shown, "I looked.\n\n- **Nothing to do:** no issue is open"), step, None, str
    )
    assert idle.evidence is not None
    assert (idle.is_accepted, idle.evidence.is_idle) == (True, True)
    assert not judge(ended(shown, "Nothing to do: x\nBut I thought"), step, None, str).is_accepted


@pytest.mark.parametrize(
    "line",
    [
        "**Nothing to do**: the queue is empty.",
        "`Nothing to do`: the queue is empty.",
        "Nothing to do: #123 is still open.",
        'Nothing to do: "main" is up to date',
        "Nothing to do: ./src is clean",
        "Nothing to do: [issue 5](https://example.org) is closed",
        "Nothing to do: \u2705 all is green",
        "Nothing to do\uff1a\u961f\u5217\u4e3a\u7a7a\u3002",
        "1. Nothing to do: no issue is open",
        '"Nothing to do: no issue is open"',
        "```text\nNothing to do: no issue is open\n```",
    ],
)
def test_the_nothing_to_do_line_counts_with_any_markdown_and_reason(
    line: str,
) -> None:
    assert says_nothing_to_do(f"I looked.\n\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "Nothing to do: REASON",
        "> Nothing to do: REASON",
        "`Nothing to do: REASON`.",
        "Nothing to do: ...",
        "There is nothing to do: all is done",
        "~~Nothing to do: no issue is open~~",
    ],
)
def test_a_line_without_a_reason_or_in_a_sentence_does_not_count(line: str) -> None:
    assert not says_nothing_to_do(f"I looked.\n\n{line}\n")


# --- in a run ----------------------------------------------------------------------


class Works(Recorder):
    """Changes *path* while the agent works, at the attempts in *at* (from 1)."""

    def __init__(self, path: Path, *at: int, is_silent: bool = False) -> None:
        super().__init__()
        self.path, self.at, self.is_silent, self.attempts = path, at, is_silent, 0

    def __call__(self, event: RunEvent) -> None:
        super().__call__(event)
        # An agent that says nothing works before anybody has heard of it.
        is_at_work = isinstance(event, AttemptStarted if self.is_silent else AttemptWrote)
        if is_at_work:
            self.attempts += 1
            if self.attempts in self.at:
                self.path.write_text(str(self.attempts))


def worked(output: str = "worked", **evidence: Any) -> dict[str, Any]:
    used = {"unpriced": 1}
    return {"status": "ok", "output": output, "evidence": evidence, "usage": used}


def once(**step: Any) -> dict[str, Any]:
    definition = {"kind": "cycle", "steps": [{"name": "main", **step}]}
    return {"workflow": {"name": "one"}, "workflows": {"one": definition}}


LIMITS = InvocationLimits(max_steps=1)


def test_an_attempt_that_changes_nothing_fails_and_the_next_is_warned(tmp_path: Path) -> None:
    retry = {"max_attempts": 2}
    run = open_scripted(tmp_path, worked(), **once(expects="change", retry=retry))
    seen = Works(tmp_path / "a.txt", 2)
    assert run.work(limits=LIMITS, on_event=seen).failures == 1
    failed = next(fact["outcome"] for fact in run.history() if fact["event"] == "failed")
    assert (failed["missing"], failed["evidence"]["has_changed"]) == ("change", False)
    assert "it has changed nothing" in failed["error"]
    accepted = next(fact["outcome"] for fact in run.history() if fact["event"] == "succeeded")
    assert accepted["evidence"]["files"] == 1
    first, second = (path.read_text() for path in seen.logs)
    assert "# Your last attempt did not count" not in first
    assert "# Your last attempt did not count" in second


def test_another_process_knows_what_was_missing(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="changed nothing"):
        open_scripted(tmp_path, worked(), **once(expects="change")).work(limits=LIMITS)
    seen = Works(tmp_path / "a.txt", 1)
    reopen(tmp_path).work(limits=LIMITS, on_event=seen)
    assert "# Your last attempt did not count" in seen.logs[0].read_text()


def test_changes_to_the_runs_own_files_do_not_count(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, worked(), **once(expects="change"))
    for path in (tmp_path / "sync" / "mine", tmp_path / "logs" / "mine"):
        path.parent.mkdir(exist_ok=True)
        with pytest.raises(StepFailed, match="changed nothing"):
            run.work(limits=LIMITS, on_event=Works(path, 1))


def test_files_are_checked_only_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(
        "sequencer.engine.evidence.watch_tree", lambda folder, _: looked.append(folder)
    )
    run = open_scripted(tmp_path, worked("a"), worked("b"))
    run.work(limits=InvocationLimits(max_steps=2))
    assert looked == []


@pytest.mark.parametrize("changes", [True, False])
def test_a_silent_attempt_is_accepted_only_if_it_changed_files(
    tmp_path: Path, changes: bool
) -> None:
    run = open_scripted(tmp_path, worked(""), **once())
    # The project's files are older than its first attempt, as they are in real life.
    until(lambda: time.time() > (tmp_path / "orchestration.yaml").stat().st_ctime + 0.05)
    seen = Works(tmp_path / "a.txt", *([1] if changes else []), is_silent=True)
    if changes:
        assert run.work(limits=LIMITS, on_event=seen).usage.steps == 1
    else:
        with pytest.raises(StepFailed, match="it has shown nothing"):
            run.work(limits=LIMITS, on_event=seen)


def test_a_check_that_takes_too_long_does_not_mean_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sequencer.engine.evidence.LOOK_S", -1.0)
    run, seen = open_scripted(tmp_path, worked(), **once(expects="change")), Recorder()
    assert run.work(limits=LIMITS, on_event=seen).usage.steps == 1
    assert b"whether files have changed is not known" in seen.output


def test_an_attempt_over_its_cost_limit_is_reported(tmp_path: Path) -> None:
    dear = {"status": "ok", "output": "done", "usage": {"cost_usd": 1.5}}
    run, seen = open_scripted(tmp_path, dear, **once(max_cost_usd=1)), Recorder()
    run.work(limits=LIMITS, on_event=seen)
    told = "1.5000 USD, more than its max_cost_usd of 1"
    assert f"[sequencer] the attempt has spent {told}" in seen.logs[0].read_text()
    assert f"step 'main' has spent {told}" in seen.notices
    assert [*run.history()][-1]["outcome"]["overspent"] == told
    shown = take_snapshot(run).format_text()
    assert f"warning     main has spent {told}" in shown


def test_an_attempt_at_its_cost_limit_is_not_reported(tmp_path: Path) -> None:
    dear = {"status": "ok", "output": "done", "usage": {"cost_usd": 1.0}}
    run, seen = open_scripted(tmp_path, dear, **once(max_cost_usd=1)), Recorder()
    run.work(limits=LIMITS, on_event=seen)
    assert seen.notices == []
    assert "overspent" not in [*run.history()][-1]["outcome"]


@pytest.mark.parametrize(
    "step",
    [
        Step(name="a", single_turn=True),
        Step(name="a", disallow_all_tools=True),
        Step(name="a", validation=Validation()),
    ],
)
def test_a_default_of_change_does_not_apply_to_steps_that_only_answer(step: Step) -> None:
    assert with_defaults(step, {"expects": "change"}).expects is None
    assert with_defaults(step, {"expects": "text"}).expects == "text"
    assert with_defaults(Step(name="a"), {"expects": "change"}).expects == "change"
