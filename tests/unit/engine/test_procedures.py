"""Procedures from the first step to the end: gates, rounds of judging, hooks, crashes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.events import HeadMoved, RunEvent
from sequencer.engine.invocation_budget import Mode
from sequencer.errors import (
    CorruptState,
    StepFailed,
    TooManyFailures,
    TransitionRefused,
    WaitsForPerson,
)
from sequencer.model.commands import (
    Accept,
    Adopt,
    Approve,
    Feedback,
    Reject,
    Reset,
    RetryNow,
    Rewind,
    Skip,
)
from sequencer.model.head import Head, Loop, Status
from sequencer.model.sequence.order import describe_last_no
from sequencer.plugins.requests.project_requests import build_starter
from sequencer.project.project import open_project
from tests.unit.engine.procedures import (
    NO,
    PASS,
    REQUEST,
    STEPS,
    UNLIMITED,
    judged,
    reopened,
    started,
    until_gate,
    until_it_is_over,
    work,
)
from tests.unit.engine.projects import Recorder, events, head_of, write_project


def test_a_rejected_run_is_over(tmp_path: Path) -> None:
    run = started(tmp_path)
    until_gate(run)
    assert run.do(Reject("no"), by="ann").head.was_rejected
    assert work(reopened(tmp_path)).reason == "the run was rejected at 'ask': no"
    with pytest.raises(TransitionRefused, match="already"):
        run.do(Approve(), by="bob")


def test_a_judge_that_uses_up_its_rounds_fails_the_step(tmp_path: Path) -> None:
    run = started(tmp_path, *judged(*[NO] * 8), steps=STEPS[3:])
    with pytest.raises(StepFailed, match=r"said no 4 times: 2 fail"):
        work(run)
    head = head_of(run)
    assert (head.status, head.step_index, head.failures_in_row) == (Status.FAILED, 0, 1)
    assert head.loop == Loop(stage="verify", round=1, reason="2 fail", exhausted=1)
    assert events(run).count("fixed") == 3
    run.do(RetryNow())
    with pytest.raises(StepFailed, match="said no 4 times"):
        work(reopened(tmp_path))
    assert events(run).count("fixed") == 6


def test_a_judge_reports_its_verdict_its_round_and_the_reason(tmp_path: Path) -> None:
    heard, told = Recorder(), []
    run = started(tmp_path, *judged(NO, NO, PASS), steps=STEPS[3:])

    def listen(event: RunEvent) -> None:
        heard(event)
        if isinstance(event, HeadMoved):
            told.append(describe_last_no(run.workflow, event.head))

    work(run, on_event=listen)
    assert heard.verdicts == [
        "no (round 1 of 4): 2 fail",
        "no (round 2 of 4): 2 fail",
        "yes (round 3 of 4)",
    ]
    said = [f"verify said no (round {number} of 4): 2 fail" for number in (1, 2)]
    assert told[:5] == [said[0], said[0], said[1], said[1], ""]


def logged(folder: Path, part: str) -> int:
    """Return in how many step logs *part* is."""
    return sum(part in path.read_text() for path in (folder / "logs").rglob("*.log"))


def test_a_judge_without_a_verdict_is_asked_again_with_instructions(tmp_path: Path) -> None:
    run = started(tmp_path, *judged("It looks fine to me.", PASS), steps=STEPS[3:])
    work(run)
    assert head_of(run).status is Status.COMPLETE
    seen = events(run)
    assert [seen.count(event) for event in ("failed", "invalid", "fixed")] == [1, 0, 0]
    asked = 'has to end with the JSON object {"pass": true'
    assert logged(tmp_path, f"This time, the answer {asked}") == 1


def test_a_judge_that_never_gives_a_verdict_fails_and_nothing_is_fixed(tmp_path: Path) -> None:
    run = started(tmp_path, *judged("Not a word", "of JSON", PASS), steps=STEPS[3:])
    with pytest.raises(StepFailed, match=r"no verdict in the answer; .* \{\"pass\": true"):
        work(run)
    head, seen = head_of(run), events(run)
    assert (head.status, head.failures_in_row, head.loop) == (Status.FAILED, 2, None)
    assert [seen.count(event) for event in ("failed", "invalid", "fixed")] == [2, 0, 0]


def test_a_judge_is_asked_for_a_verdict_as_often_as_its_retry_allows(tmp_path: Path) -> None:
    judge = {"name": "verify", "validation": {}, "retry": {"max_attempts": 3}}
    run = started(tmp_path, *judged("a", "b", PASS), steps=[judge])
    work(run)
    assert events(run).count("failed") == 2


def test_a_failing_agent_is_not_retried_just_because_it_judges(tmp_path: Path) -> None:
    broken = {"step": "verify", "status": "failed"}
    run = started(tmp_path, broken, *judged(PASS), steps=STEPS[3:])
    with pytest.raises(StepFailed):
        work(run)
    assert events(run).count("failed") == 1


def test_a_missing_verdict_between_two_rounds_loses_no_round(tmp_path: Path) -> None:
    run = started(tmp_path, *judged(NO, "hm", NO, PASS), steps=STEPS[3:])
    work(run)
    rounds = [
        fact["outcome"]["verdict"]["round"]
        for fact in run.store.history()
        if "verdict" in (fact["outcome"] or {})
    ]
    assert rounds == [1, 2, 3]


def test_used_up_rounds_start_again_only_a_few_times(tmp_path: Path) -> None:
    started(tmp_path, *judged(*[NO] * 8), steps=STEPS[3:])
    for number in range(1, 4):
        with pytest.raises(StepFailed, match="said no 4 times"):
            work(reopened(tmp_path))
        loop = head_of(reopened(tmp_path)).loop
        assert loop is not None
        assert loop.exhausted == number
    run = reopened(tmp_path)
    with pytest.raises(TooManyFailures, match=r"said no in all its rounds, 3 times .*: 2 fail"):
        work(run)
    assert describe_last_no(run.workflow, head_of(run)) == (
        "verify said no in all 4 rounds, 3 times: 2 fail"
    )
    calls = events(run).count("claimed")
    run.do(RetryNow())
    with pytest.raises(StepFailed, match="said no 4 times"):
        work(reopened(tmp_path))
    assert events(run).count("claimed") == calls + 7


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_rounds_that_are_used_up_count_as_tries(tmp_path: Path, rounds: int) -> None:
    judge = {"name": "verify", "retry": {"max_attempts": 2}, "validation": {"max_attempts": rounds}}
    run = started(tmp_path, *judged(*[NO] * 20), steps=[judge], limits={"failures_in_row": 9})
    with pytest.raises(StepFailed, match=f"said no {rounds} times"):
        work(run)
    assert (events(run).count("claimed"), events(run).count("failed")) == (2 * rounds, 2)
    assert (head_of(run).failures_in_row, head_of(run).not_before) == (2, None)


def test_a_failure_after_used_up_rounds_counts_for_the_same_step(tmp_path: Path) -> None:
    broken = {"step": "verify", "status": "failed"}
    judge = {**STEPS[3], "retry": {"max_attempts": 2}}
    judge["validation"] = {**judge["validation"], "max_attempts": 2}
    said = [*judged(NO, NO, NO), broken, *judged(PASS)]
    run = started(tmp_path, *said, steps=[judge])
    with pytest.raises(StepFailed):
        work(run)
    assert head_of(run).failures_in_row == 2


def test_a_fixer_has_all_its_tries_after_used_up_rounds(tmp_path: Path) -> None:
    broken = {"step": "fix", "status": "failed"}
    fixer = {"name": "fix", "retry": {"max_attempts": 2}}
    validation = {"max_attempts": 2, "fixer": fixer}
    judge = {"name": "verify", "retry": {"max_attempts": 2}, "validation": validation}
    fixed = {"step": "fix", "output": "fixed"}
    said = [*judged(NO), fixed, *judged(NO, NO), broken, *judged(PASS)]
    run = started(tmp_path, *said, steps=[judge])
    work(run)
    assert head_of(run).status is Status.COMPLETE


def test_a_test_run_judges_by_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "check.sh").write_text("test -e fixed || { echo 1 failed; exit 3; }\n")
    (tmp_path / "fix.sh").write_text("cat > prompt.txt; touch fixed\n")
    steps = [
        {
            "name": "verify",
            "agent": "tests",
            "validation": {"fixer": {"name": "fix", "agent": "fixer"}},
        },
        "tell",
    ]
    workflows = {"demo": {"kind": "procedure", "steps": steps}}
    agents = {
        "canned": {"kind": "scripted", "outcomes": [{"output": "done"}]},
        "tests": {"kind": "command", "argv": ["sh", "check.sh"]},
        "fixer": {"kind": "command", "argv": ["sh", "fix.sh"]},
    }
    write_project(tmp_path, workflows=workflows, agents=agents)
    for name in ("fix", "tell"):
        (tmp_path / "prompts" / f"{name}.md").write_text(f"Do {name}: {{{{validation.reason}}}}\n")
    project = open_project(tmp_path, environment={"PATH": "/usr/bin:/bin"})
    made = build_starter(project).define(REQUEST, "demo")
    run = project.run("one", made)
    run.commands.start(made)
    work(run)
    assert [e for e in events(run) if e not in ("claimed", "initialised")] == [
        *("invalid", "fixed", "succeeded", "succeeded", "completed")
    ]
    assert "1 failed" in (tmp_path / "prompt.txt").read_text()


def test_a_crash_in_a_loop_repeats_one_attempt(tmp_path: Path) -> None:
    run = started(tmp_path, *judged(NO, PASS), steps=STEPS[3:])
    run.work(Mode.TICK, UNLIMITED)
    head = head_of(run)
    assert head.loop is not None
    assert (head.loop.stage, head.expected_step) == ("fix", "fix")
    assert [entry.step for entry in reopened(tmp_path).next(2)] == ["fix", "tell"]


def test_an_expired_gate_rejects_the_run(tmp_path: Path) -> None:
    ask = {"name": "ask", "requires_approval": True, "approval": {"timeout_s": 0.2}}
    run = started(tmp_path, steps=["reproduce", ask, "tell"])
    until_it_is_over(run)
    recorder = Recorder()
    summary = work(reopened(tmp_path), on_event=recorder)
    assert summary.reason.startswith("the run was rejected at 'ask': no one decided until")
    assert any("no one decided about 'ask'" in notice for notice in recorder.notices)
    assert list(run.history())[-2]["outcome"]["by"] == "timeout"


def test_an_expired_gate_may_approve_the_step(tmp_path: Path) -> None:
    approval = {"timeout_s": 0.2, "on_timeout": "approve"}
    ask = {"name": "ask", "requires_approval": True, "approval": approval}
    run = started(tmp_path, steps=["reproduce", ask, "tell"])
    until_it_is_over(run)
    work(reopened(tmp_path))
    assert head_of(run).status is Status.COMPLETE
    assert not head_of(run).was_rejected
    assert "approved" in events(run)


@pytest.mark.parametrize("approval", [{}, {"timeout_s": 0.2, "on_timeout": "approve"}])
@pytest.mark.parametrize("speaker", ["agent", "hook"])
def test_approval_completes_a_run_whose_gated_step_said_that_it_is_complete(
    tmp_path: Path, approval: dict[str, Any], speaker: str
) -> None:
    steps = ["reproduce", {"name": "build", "requires_approval": True, "approval": approval}]
    outcomes, hooks = [{"step": "build", "status": "complete"}], []
    if speaker == "hook":
        outcomes, hooks = [], ["hooks.py"]
        (tmp_path / "hooks.py").write_text(HOOKS.format(body="return Decision(Move.COMPLETE)"))
    run = started(tmp_path, *outcomes, steps=[*steps, "tell"], hooks=hooks)
    with contextlib.suppress(WaitsForPerson):
        work(run)
    if approval:
        until_it_is_over(run)
        work(reopened(tmp_path))
    else:
        assert head_of(run).status is Status.WAITING_APPROVAL
        run.do(Approve(), by="ann")
    head = head_of(run)
    assert (head.status, head.usage.steps, head.gate) == (Status.COMPLETE, 2, None)
    assert events(run)[-2:] == ["approved", "completed"]


def gate_of(head: Head) -> tuple[int, bool]:
    """Return the round of the gate of *head*, and whether approval completes the run."""
    assert head.gate is not None
    return head.gate.round, head.gate.completes_run


def test_feedback_and_rejection_outweigh_a_gated_step_that_said_it_is_complete(
    tmp_path: Path,
) -> None:
    says = {"step": "ask", "status": "complete"}
    run = started(tmp_path, says, {"step": "ask"}, says)
    assert gate_of(until_gate(run)) == (1, True)
    assert run.do(Feedback("not yet"), by="ann").head.expected_step == "reproduce"
    assert gate_of(until_gate(run)) == (2, False)
    assert run.do(Approve(), by="ann").head.expected_step == "build"
    run.do(Rewind("1"))
    assert gate_of(until_gate(run)) == (1, True)
    assert run.do(Reject(), by="ann").head.was_rejected


def test_a_missing_value_fails_the_step_before_an_agent_runs(tmp_path: Path) -> None:
    run = started(tmp_path, steps=["reproduce", "build"], limits={"max_failures_in_row": 1})
    (tmp_path / "prompts" / "reproduce.md").write_text("{{steps.build.output}}\n")
    with pytest.raises(StepFailed, match=r"asks for \{\{steps.build.output\}\}"):
        work(run)
    last = list(run.history())[-1]
    assert (last["event"], last["outcome"].get("output")) == ("failed", None)
    with pytest.raises(TooManyFailures):
        work(reopened(tmp_path))


def test_a_tampered_definition_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    run = started(tmp_path, steps=["reproduce", "tell"])
    path = run.store.state_path.with_name("definition.json")
    path.write_text(path.read_text().replace('"tell"', '"build"'))
    with pytest.raises(Exception, match="started differently"):
        work(reopened(tmp_path))
    reopened(tmp_path).do(Adopt())
    work(reopened(tmp_path))
    assert [f["step"] for f in run.history() if f["event"] == "succeeded"] == ["reproduce", "build"]
    path.write_text("{}")
    with pytest.raises(Exception, match="is not the definition"):
        work(reopened(tmp_path))


def test_a_run_without_its_definition_is_refused(tmp_path: Path) -> None:
    run = started(tmp_path, steps=["reproduce", "tell"])
    run.store.state_path.with_name("definition.json").unlink()
    with pytest.raises(CorruptState, match="its definition is missing"):
        work(reopened(tmp_path))
    with pytest.raises(CorruptState):
        reopened(tmp_path).do(Reset())


def test_a_fix_by_hand_is_judged(tmp_path: Path) -> None:
    run = started(tmp_path, *judged(NO, NO, PASS), steps=STEPS[3:])
    run.work(Mode.TICK, UNLIMITED)
    for number, command in enumerate((Accept("by hand"), Skip("by hand")), start=2):
        head = reopened(tmp_path).do(command).head
        assert head.loop is not None
        assert (head.expected_step, head.loop.stage, head.loop.round) == (
            "verify",
            "verify",
            number,
        )
        # A script starts over with each opening, so this judge says no each time.
        reopened(tmp_path).work(Mode.TICK, UNLIMITED)
    assert (head_of(run).step_index, events(run).count("invalid")) == (0, 3)


def test_a_gate_in_a_cycle_goes_back_within_the_cycle(tmp_path: Path) -> None:
    (tmp_path / "note.sh").write_text("cat > prompt-$SEQUENCER_STEP_INDEX-$SEQUENCER_STEP.txt\n")
    steps = [{"name": "main"}, {"name": "ask", "requires_approval": True,
                                "approval": {"feedback_to": "main"}}]  # fmt: skip
    agents = {"canned": {"kind": "command", "argv": ["sh", "note.sh"]}}
    write_project(
        tmp_path, workflow={"name": "w"}, workflows={"w": {"steps": steps}}, agents=agents
    )
    (tmp_path / "prompts" / "ask.md").write_text("Ask.\n")
    run = open_project(tmp_path, environment={"PATH": "/usr/bin:/bin"}).run()
    with pytest.raises(WaitsForPerson):
        work(run)
    run.do(Approve(), by="ann")
    with pytest.raises(WaitsForPerson):
        work(run)
    assert head_of(run).step_index == 4
    assert run.do(Feedback("make it blue"), by="ann").head.step_index == 2
    with pytest.raises(WaitsForPerson):
        work(run)
    assert "make it blue" in (tmp_path / "prompt-2-main.txt").read_text()
    assert "make it blue" not in (tmp_path / "prompt-0-main.txt").read_text()


def test_feedback_at_a_review_reaches_the_step_before_the_review(tmp_path: Path) -> None:
    (tmp_path / "note.sh").write_text("cat > prompt-$SEQUENCER_STEP_INDEX-$SEQUENCER_STEP.txt\n")
    review = {"name": "reviewer", "requires_approval": True, "approval": {"feedback_to": "main"}}
    write_project(
        tmp_path,
        workflow={"name": "w"},
        workflows={"w": {"steps": ["main"], "review": {"every": 2, "step": review}}},
        agents={"canned": {"kind": "command", "argv": ["sh", "note.sh"]}},
    )
    run = open_project(tmp_path, environment={"PATH": "/usr/bin:/bin"}).run()
    for answer in (Approve(), Feedback("make it blue")):
        with pytest.raises(WaitsForPerson):
            work(run)
        run.do(answer, by="ann")
    assert (head_of(run).step_index, head_of(run).expected_step) == (2, "main")
    with pytest.raises(WaitsForPerson):
        work(run)
    assert "make it blue" in (tmp_path / "prompt-2-main.txt").read_text()


def test_feedback_is_not_lost_behind_the_gates_on_the_way_back(tmp_path: Path) -> None:
    ask = {"name": "ask", "requires_approval": True, "approval": {"feedback_to": "reproduce"}}
    run = started(
        tmp_path, steps=[{"name": "reproduce", "requires_approval": True}, "build", ask, "tell"]
    )
    with pytest.raises(WaitsForPerson, match="'reproduce' waits"):
        work(run)
    run.do(Approve(), by="ann")
    until_gate(run)
    run.do(Feedback("use short words"), by="ann")
    for text in ("and a title", None):
        with pytest.raises(WaitsForPerson, match="'reproduce' waits"):
            work(run)
        run.do(Feedback(text) if text else Approve(), by="ann")
    assert logged(tmp_path, "reproduce, round 1: and a title") == 1
    assert gate_of(until_gate(run)) == (2, False)
    # The step with the first gate (twice), the one between, and the one that asks again.
    assert logged(tmp_path, "use short words") == 4
    assert logged(tmp_path, "and a title") == 1
    run.do(Approve(), by="ann")
    work(run)
    assert (head_of(run).status, head_of(run).gate) == (Status.COMPLETE, None)
    assert logged(tmp_path, "use short words") == 4


def test_async_mode_goes_through_a_procedure_without_a_run(tmp_path: Path) -> None:
    started(tmp_path, *judged(NO, PASS), steps=STEPS[3:])
    project = open_project(tmp_path, environment={"PATH": "/usr/bin:/bin"})
    run = project.run("two", build_starter(project).define(REQUEST, "demo"))
    recorder = Recorder()
    summary = run.work(Mode.ASYNC, UNLIMITED, on_event=recorder)
    assert summary.reason == "the procedure is complete"
    assert [name for name, _, _ in recorder.steps] == ["verify", "fix", "verify", "tell"]
    assert run.head is None


# --- what a project's hooks make of a procedure's run -----------------------------------------

HOOKS = """
from sequencer import Decision, Move, hookimpl

@hookimpl
def sequencer_transition(context, outcome):
    if context.step.name == "build":
        {body}
"""


def test_a_hook_that_raises_fails_the_step_with_its_traceback_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS.format(body="raise RuntimeError('boom')"))
    run = started(tmp_path, steps=["reproduce", "build", "tell"], hooks=["hooks.py"])
    recorder = Recorder()
    with pytest.raises(StepFailed, match="boom"):
        work(run, on_event=recorder)
    assert head_of(run).status is Status.FAILED
    log = recorder.logs[-1].read_text()
    assert "RuntimeError: boom" in log
    assert "hooks.py" in log


def test_completion_is_reported_once(tmp_path: Path) -> None:
    hooks = "from pathlib import Path\nfrom sequencer import hookimpl\n@hookimpl\n"
    hooks += "def sequencer_completed(context, head):\n"
    hooks += f"    with Path({str(tmp_path / 'told')!r}).open('a') as file:\n"
    hooks += "        file.write(f'{context.step.name} {head.status}\\n')\n"
    (tmp_path / "hooks.py").write_text(hooks)
    run = started(tmp_path, steps=["reproduce", "tell"], hooks=["hooks.py"])
    work(run)
    work(reopened(tmp_path))
    assert (tmp_path / "told").read_text() == "tell complete\n"


@pytest.mark.parametrize("target", ["reproduce", "build", "tell"])
def test_a_rejected_run_is_reported_with_the_step_that_asked(tmp_path: Path, target: str) -> None:
    hooks = "from pathlib import Path\nfrom sequencer import Decision, Move, hookimpl\n"
    hooks += "@hookimpl\ndef sequencer_transition(context, outcome):\n"
    hooks += f"    if context.step.name == 'ask': return Decision(Move.GOTO, {target!r})\n"
    hooks += "@hookimpl\ndef sequencer_completed(context, head):\n"
    hooks += f"    Path({str(tmp_path / 'told')!r}).write_text(context.step.name)\n"
    (tmp_path / "hooks.py").write_text(hooks)
    run = started(tmp_path, hooks=["hooks.py"])
    until_gate(run)
    run.do(Reject())
    assert (tmp_path / "told").read_text() == "ask"


def test_a_secret_in_a_hooks_reason_reaches_no_file(tmp_path: Path) -> None:
    body = "return Decision(Move.FAIL, reason='key supersecret-value-1')"
    (tmp_path / "hooks.py").write_text(HOOKS.format(body=body))
    started(tmp_path, steps=["build", "tell"], hooks=["hooks.py"])
    secret = {"PATH": "/usr/bin:/bin", "MY_API_KEY": "supersecret-value-1"}
    run = open_project(tmp_path, environment=secret).run("one")
    with pytest.raises(StepFailed):
        work(run)
    found = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "hooks.py"]
    assert not [p for p in found if b"supersecret" in p.read_bytes()]
