"""Procedures from the first step to the end: gates, rounds of judging, hooks, crashes."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sequencer.assembly import open_project
from sequencer.engine.run import Run
from sequencer.engine.work import Mode, Summary
from sequencer.errors import StepFailed, TooManyFailures, TransitionRefused, WaitsForPerson
from sequencer.model.head import Head, Status
from sequencer.model.limits import InvocationLimits
from sequencer.model.request import Request
from tests.unit.engine.projects import Recorder, events, head_of, write_project

REQUEST = Request(title="Debug login timeout", text="It times out.", labels=("bug",))
UNLIMITED = InvocationLimits(max_steps=None)
STEPS: list[Any] = [
    "reproduce",
    {"name": "ask", "requires_approval": True},
    "build",
    {"name": "verify", "validation": {"fixer": {"name": "fix"}}},
    "tell",
]
PASS, NO = '{"pass": true}', '{"pass": false, "reason": "2 fail"}'


def started(
    folder: Path,
    *outcomes: dict[str, Any],
    steps: list[Any] | None = None,
    more_agents: dict[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Begin the run of a request; its agent says its step's name where *outcomes* say nothing."""
    workflows = {"demo": {"kind": "procedure", "steps": steps or STEPS}}
    agents: dict[str, Any] = dict(more_agents or {})
    agents["canned"] = {"kind": "scripted", "outcomes": [*outcomes, {"output": "done"}]}
    write_project(folder, workflows=workflows, agents=agents, **settings)
    for name in ("reproduce", "ask", "build", "verify", "fix", "tell"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do {name}.\n")
    project = open_project(folder, environment={"PATH": "/usr/bin:/bin"})
    made = project.starter.define(REQUEST, "demo")
    run = project.run("one", made)
    run.control.start(made)
    return reopened(folder)


def reopened(folder: Path) -> Run:
    return open_project(folder, environment={"PATH": "/usr/bin:/bin"}).run("one")


def work(run: Run, **options: Any) -> Summary:
    return run.work(Mode.COMBINED, UNLIMITED, **options)


def until_gate(run: Run) -> Head:
    with pytest.raises(WaitsForPerson, match="'ask' waits for a decision"):
        work(run)
    return head_of(run)


def until_it_is_over(run: Run) -> None:
    """Return when the time of the gate at which *run* waits is over."""
    with contextlib.suppress(WaitsForPerson):
        work(run)
    gate = head_of(run).gate
    while gate is not None and datetime.now(UTC).isoformat() <= (gate.expires_at or "")[:-1]:
        pass


def judged(*answers: str) -> list[dict[str, Any]]:
    return [{"step": "verify", "output": answer} for answer in answers]


def test_a_gate_stops_the_run_until_somebody_approves(tmp_path: Path) -> None:
    run = started(tmp_path, *judged(PASS))
    head = until_gate(run)
    assert (head.status, head.step_index) == (Status.WAITING_APPROVAL, 2)
    with pytest.raises(WaitsForPerson):
        work(reopened(tmp_path))
    with pytest.raises(WaitsForPerson):
        reopened(tmp_path).work(Mode.TICK, UNLIMITED)
    approved = reopened(tmp_path).approve("go", by="ann")
    assert approved.status is Status.WAITING_NEXT
    assert work(reopened(tmp_path)).reason == "the run is complete after 5 steps"
    assert [e for e in events(run) if e != "claimed"] == [
        *("initialised", "succeeded", "succeeded", "approved"),
        *("succeeded", "succeeded", "succeeded", "completed"),
    ]


def test_a_rejected_run_is_over(tmp_path: Path) -> None:
    run = started(tmp_path)
    until_gate(run)
    assert run.reject("no", by="ann").was_rejected
    assert work(reopened(tmp_path)).reason == "the run was rejected at 'ask': no"
    with pytest.raises(TransitionRefused, match="already"):
        run.approve(by="bob")


def test_feedback_twice_and_then_approval(tmp_path: Path) -> None:
    run = started(tmp_path, *judged(PASS))
    for number, text in enumerate(("look at the retry", "and at the proxy"), start=1):
        head = until_gate(run)
        assert head.gate is not None
        assert head.gate.round == number
        back = run.feedback(text, by="ann")
        assert (back.step_index, back.expected_step) == (0, "reproduce")
        run = reopened(tmp_path)
    head = until_gate(run)
    assert head.gate is not None
    assert head.gate.round == 3
    run.approve(by="ann")
    work(run)
    assert events(run).count("feedback") == 2
    assert head_of(run).status is Status.COMPLETE


def test_the_prompt_of_the_step_before_has_the_feedback(tmp_path: Path) -> None:
    (tmp_path / "note.sh").write_text("cat > prompt-$SEQUENCER_TOKEN.txt\n")
    steps = [{**(s if isinstance(s, dict) else {"name": s}), "executor": "note"} for s in STEPS[:3]]
    agents = {"note": {"kind": "command", "argv": ["sh", "note.sh"]}}
    run = started(tmp_path, steps=steps, more_agents=agents)
    until_gate(run)
    run.feedback("look at the retry", by="ann")
    until_gate(reopened(tmp_path))
    first, asked, second = ((tmp_path / f"prompt-{token}.txt").read_text() for token in (1, 2, 3))
    assert (
        first == "Do reproduce.\n\n# Request: Debug login timeout\n\nIt times out.\n\nLabels: bug\n"
    )
    assert "look at the retry" not in asked
    assert second.startswith(first.rstrip())
    assert second.endswith("# What a person said about the last result\n\nlook at the retry\n")


def test_judging_passes_at_the_third_try(tmp_path: Path) -> None:
    run = started(tmp_path, *judged(NO, NO, PASS), steps=STEPS[3:])
    recorder = Recorder()
    work(run, observer=recorder)
    assert [name for name, _, _ in recorder.steps] == [
        *("verify", "fix", "verify", "fix", "verify"),
        "tell",
    ]
    assert {index for _, index, _ in recorder.steps} == {0, 1}
    assert events(run).count("invalid") == 2
    assert events(run).count("fixed") == 2
    assert head_of(run).loop is None
    assert head_of(run).failures_in_row == 0


def test_judging_is_exhausted_and_the_step_fails(tmp_path: Path) -> None:
    run = started(tmp_path, *judged(*[NO] * 8), steps=STEPS[3:])
    with pytest.raises(StepFailed, match=r"said no 4 times: 2 fail"):
        work(run)
    head = head_of(run)
    assert (head.status, head.step_index, head.failures_in_row) == (Status.FAILED, 0, 1)
    assert (head.loop, events(run).count("fixed")) == (None, 3)
    run.control.retry()
    with pytest.raises(StepFailed, match="said no 4 times"):
        work(reopened(tmp_path))
    assert events(run).count("fixed") == 6


@pytest.mark.parametrize("answer", ["all good", '{"pass": "yes"}', "", "[1, 2]"])
def test_an_answer_without_a_verdict_is_a_no(tmp_path: Path, answer: str) -> None:
    run = started(tmp_path, *judged(answer, PASS), steps=STEPS[3:])
    work(run)
    assert events(run).count("invalid") == 1


def test_a_test_run_judges_by_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "check.sh").write_text("test -e fixed || { echo 1 failed; exit 3; }\n")
    (tmp_path / "fix.sh").write_text("cat > prompt.txt; touch fixed\n")
    steps = [
        {
            "name": "verify",
            "executor": "tests",
            "validation": {"fixer": {"name": "fix", "executor": "fixer"}},
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
    made = project.starter.define(REQUEST, "demo")
    run = project.run("one", made)
    run.control.start(made)
    work(run)
    assert [e for e in events(run) if e not in ("claimed", "initialised")] == [
        *("invalid", "fixed", "succeeded", "succeeded", "completed")
    ]
    assert "1 failed" in (tmp_path / "prompt.txt").read_text()


def test_one_tick_is_one_step_of_a_loop(tmp_path: Path) -> None:
    run = started(tmp_path, steps=STEPS[3:])
    for expected in ("invalid", "fixed", "invalid"):
        reopened(tmp_path).work(Mode.TICK, UNLIMITED)
        assert events(run)[-1] == expected


def test_a_crash_in_a_loop_repeats_one_attempt(tmp_path: Path) -> None:
    run = started(tmp_path, *judged(NO, PASS), steps=STEPS[3:])
    run.work(Mode.TICK, UNLIMITED)
    head = head_of(run)
    assert head.loop is not None
    assert (head.loop.stage, head.expected_step) == ("fix", "fix")
    assert [entry["step"] for entry in reopened(tmp_path).next(2)] == ["fix", "tell"]


def test_a_gate_that_is_over_decides_for_itself(tmp_path: Path) -> None:
    ask = {"name": "ask", "requires_approval": True, "approval": {"timeout_s": 0.2}}
    run = started(tmp_path, steps=["reproduce", ask, "tell"])
    until_it_is_over(run)
    recorder = Recorder()
    summary = work(reopened(tmp_path), observer=recorder)
    assert summary.reason.startswith("the run was rejected at 'ask': nobody decided until")
    assert any("nobody decided about 'ask'" in notice for notice in recorder.notices)
    assert list(run.history())[-2]["outcome"]["by"] == "timeout"


def test_a_gate_may_be_let_pass_after_its_time(tmp_path: Path) -> None:
    approval = {"timeout_s": 0.2, "on_timeout": "approve"}
    ask = {"name": "ask", "requires_approval": True, "approval": approval}
    run = started(tmp_path, steps=["reproduce", ask, "tell"])
    until_it_is_over(run)
    work(reopened(tmp_path))
    assert head_of(run).status is Status.COMPLETE
    assert not head_of(run).was_rejected
    assert "approved" in events(run)


def test_a_missing_value_fails_the_step_before_an_agent_runs(tmp_path: Path) -> None:
    run = started(tmp_path, steps=["reproduce", "build"], limits={"max_failures_in_row": 1})
    (tmp_path / "prompts" / "reproduce.md").write_text("{{steps.build.output}}\n")
    with pytest.raises(StepFailed, match=r"asks for \{\{steps.build.output\}\}"):
        work(run)
    last = list(run.history())[-1]
    assert (last["event"], last["outcome"].get("output")) == ("failed", None)
    with pytest.raises(TooManyFailures):
        work(reopened(tmp_path))


def test_outputs_go_from_step_to_step(tmp_path: Path) -> None:
    outcomes = [{"step": "reproduce", "output": "x" * 10_000}, {"step": "build", "output": "short"}]
    run = started(tmp_path, *outcomes, steps=["reproduce", "build", "tell"])
    (tmp_path / "prompts" / "tell.md").write_text("{{steps.reproduce.output}}|{{output}}\n")
    recorder = Recorder()
    (tmp_path / "hooks.py").write_text("")
    work(run, observer=recorder)
    assert head_of(run).status is Status.COMPLETE
    record = next(f for f in run.history() if f["event"] == "succeeded")["outcome"]
    assert record["output_file"].startswith("results/0-1/")


HOOKS = """
from sequencer import Decision, Move, hookimpl

@hookimpl
def sequencer_transition(context, outcome):
    if context.step.name == "build":
        {body}
"""


@pytest.mark.parametrize(
    ("body", "ran"),
    [
        ("return Decision(Move.SKIP)", ["reproduce", "build", "tell"]),
        ("return Decision(Move.COMPLETE)", ["reproduce", "build"]),
        ("return Decision(Move.RETRY) if context.attempt < 3 else None",
         ["reproduce", "build", "build", "build", "other", "tell"]),
        ("return Decision(Move.GOTO, 'tell')", ["reproduce", "build", "tell"]),
    ],
)  # fmt: skip
def test_a_hook_moves_the_run(tmp_path: Path, body: str, ran: list[str]) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS.format(body=body))
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "other.md").write_text("x\n")
    run = started(tmp_path, steps=["reproduce", "build", "other", "tell"], hooks=["hooks.py"])
    recorder = Recorder()
    work(run, observer=recorder)
    assert [name for name, _, _ in recorder.steps] == ran


def test_a_hook_opens_a_gate(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS.format(body="return Decision(Move.GATE)"))
    run = started(tmp_path, steps=["reproduce", "build", "tell"], hooks=["hooks.py"])
    with pytest.raises(WaitsForPerson, match="'build' waits"):
        work(run)
    assert run.approve(by="ann").expected_step == "tell"


def test_a_hook_that_raises_fails_the_step_with_its_traceback_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS.format(body="raise RuntimeError('boom')"))
    run = started(tmp_path, steps=["reproduce", "build", "tell"], hooks=["hooks.py"])
    recorder = Recorder()
    with pytest.raises(StepFailed, match="boom"):
        work(run, observer=recorder)
    assert head_of(run).status is Status.FAILED
    log = recorder.logs[-1].read_text()
    assert "RuntimeError: boom" in log
    assert "hooks.py" in log


def test_completion_is_told_once(tmp_path: Path) -> None:
    hooks = "from pathlib import Path\nfrom sequencer import hookimpl\n@hookimpl\n"
    hooks += "def sequencer_completed(context, head):\n"
    hooks += f"    with Path({str(tmp_path / 'told')!r}).open('a') as file:\n"
    hooks += "        file.write(f'{context.step.name} {head.status}\\n')\n"
    (tmp_path / "hooks.py").write_text(hooks)
    run = started(tmp_path, steps=["reproduce", "tell"], hooks=["hooks.py"])
    work(run)
    work(reopened(tmp_path))
    assert (tmp_path / "told").read_text() == "tell complete\n"


def test_a_tampered_definition_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    run = started(tmp_path, steps=["reproduce", "tell"])
    path = run.store.state_path.with_name("definition.json")
    path.write_text(path.read_text().replace('"tell"', '"build"'))
    with pytest.raises(Exception, match="begun differently"):
        work(reopened(tmp_path))
    reopened(tmp_path).control.adopt()
    work(reopened(tmp_path))
    assert [f["step"] for f in run.history() if f["event"] == "succeeded"] == ["reproduce", "build"]
    path.write_text("{}")
    with pytest.raises(Exception, match="is no definition"):
        work(reopened(tmp_path))


def test_async_mode_goes_through_a_procedure_without_a_run(tmp_path: Path) -> None:
    started(tmp_path, *judged(NO, PASS), steps=STEPS[3:])
    project = open_project(tmp_path, environment={"PATH": "/usr/bin:/bin"})
    run = project.run("two", project.starter.define(REQUEST, "demo"))
    recorder = Recorder()
    summary = run.work(Mode.ASYNC, UNLIMITED, observer=recorder)
    assert summary.reason == "the procedure is complete"
    assert [name for name, _, _ in recorder.steps] == ["verify", "fix", "verify", "tell"]
    assert run.head is None
