"""A step that repeats itself, and loops that only look like one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.events import AttemptStarted, RunEvent
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.run import Run
from sequencer.errors import WaitsForPerson
from sequencer.model.commands import Resume
from sequencer.model.limits import InvocationLimits
from tests.unit.engine.projects import Recorder, events, head_of, open_scripted, reopen, until

LOOP = 50
NOTE = b"# Do you repeat yourself?"


def said(answer: str = "a", **evidence: Any) -> dict[str, Any]:
    shown = {"has_text": True, **evidence}
    return {"status": "ok", "output": answer, "evidence": shown, "usage": {"unpriced": 1}}


def cycle(*steps: dict[str, Any], **settings: Any) -> dict[str, Any]:
    definition = {"kind": "cycle", "steps": [{"text": "x", **step} for step in steps]}
    return {"workflow": {"name": "one"}, "workflows": {"one": definition}, **settings}


def most(steps: int) -> InvocationLimits:
    return InvocationLimits(max_steps=steps)


class Changing(Recorder):
    """Changes a file of *folder* while the steps *names* run."""

    def __init__(self, folder: Path, *names: str) -> None:
        super().__init__()
        self.folder, self.names, self.count = folder, names, 0

    def __call__(self, event: RunEvent) -> None:
        super().__call__(event)
        if isinstance(event, AttemptStarted) and event.attempt.step.name in self.names:
            self.count += 1
            (self.folder / "work.txt").write_text(str(self.count))


def opened(folder: Path, *outcomes: dict[str, Any], **settings: Any) -> Run:
    """Open a project whose files are older than its first attempt, as they are in real life."""
    run = open_scripted(folder, *outcomes, **settings)
    until(lambda: time.time() > (folder / "orchestration.yaml").stat().st_ctime + 0.05)
    return run


def ticks(folder: Path, count: int) -> Summary:
    """Make *count* ticks, each a process of its own for all that the run knows."""
    summary = Summary()
    for _ in range(count):
        summary = reopen(folder).work(Mode.TICK)
    return summary


@pytest.mark.parametrize("way", ["one process", "ticks"])
def test_equal_answers_without_a_change_pause_the_run(tmp_path: Path, way: str) -> None:
    run = opened(tmp_path, said(), **cycle({"name": "main"}))
    with pytest.raises(
        WaitsForPerson, match="'main' gave the same answer 5 times in a row"
    ) as told:
        run.work(limits=most(LOOP)) if way == "one process" else ticks(tmp_path, LOOP)
    assert told.value.exit_code == 4
    head = head_of(run)
    assert (head.status, head.usage.steps, head.step_index) == ("paused", 5, 5)
    assert events(run)[-2:] == ["succeeded", "paused"]
    with pytest.raises(WaitsForPerson, match="'sequencer resume' lets it continue"):
        reopen(tmp_path).work(limits=most(1))


@pytest.mark.parametrize("way", ["the last allowed step", "a tick"])
def test_the_invocation_that_pauses_the_run_reports_it(tmp_path: Path, way: str) -> None:
    run = opened(tmp_path, said(), **cycle({"name": "main"}))
    if way == "a tick":
        ticks(tmp_path, 4)
    with pytest.raises(WaitsForPerson, match="'main' gave the same answer 5 times in a row"):
        ticks(tmp_path, 1) if way == "a tick" else run.work(limits=most(5))
    assert head_of(run).usage.steps == 5


def test_a_silent_agent_that_only_calls_tools_is_paused_too(tmp_path: Path) -> None:
    silent = {"output": "", "evidence": {"tool_calls": 3}}
    run = opened(tmp_path, silent, **cycle({"name": "main"}))
    with pytest.raises(WaitsForPerson, match="'main' gave the same answer 5 times in a row"):
        run.work(limits=most(LOOP))


def test_a_silent_agent_that_changes_files_is_not_paused(tmp_path: Path) -> None:
    silent = {"output": "", "evidence": {"tool_calls": 3}, "step": "main"}
    untouched(tmp_path, silent, seen=Changing(tmp_path, "main"), **cycle({"name": "main"}))


def test_the_prompt_warns_once_before_the_pause(tmp_path: Path) -> None:
    run, seen = opened(tmp_path, said(), **cycle({"name": "main"})), Recorder()
    with pytest.raises(WaitsForPerson):
        run.work(limits=most(LOOP), on_event=seen)
    assert [NOTE in log.read_bytes() for log in seen.logs] == [False] * 4 + [True]
    assert "your last 4 answers to this step" in seen.logs[-1].read_text()


def test_after_a_resume_the_count_starts_again(tmp_path: Path) -> None:
    run = opened(tmp_path, said(), **cycle({"name": "main", "stagnation": {"attempts": 3}}))
    for steps in (3, 6):
        with pytest.raises(WaitsForPerson):
            run.work(limits=most(LOOP))
        assert head_of(run).usage.steps == steps
        resumed = run.do(Resume()).head
        assert (resumed.status, resumed.exit_reason) == ("waiting-next", None)


def test_another_process_continues_the_count(tmp_path: Path) -> None:
    run = opened(tmp_path, said(), **cycle({"name": "main"}))
    run.work(limits=most(3))
    with pytest.raises(WaitsForPerson):
        reopen(tmp_path).work(limits=most(LOOP))
    assert head_of(run).usage.steps == 5


def test_two_attempts_are_enough_if_configured(tmp_path: Path) -> None:
    run = opened(tmp_path, said(), **cycle({"name": "main", "stagnation": {"attempts": 2}}))
    with pytest.raises(WaitsForPerson):
        run.work(limits=most(LOOP))
    assert head_of(run).usage.steps == 2


# --- loops that nobody may stop ------------------------------------------------------


def untouched(folder: Path, *outcomes: dict[str, Any], seen: Recorder | None = None,
              **settings: Any) -> None:  # fmt: skip
    """Run 50 steps, half of them by ticks, and see that nothing has stopped them."""
    run = open_scripted(folder, *outcomes, **settings)
    heard = seen or Recorder()
    assert run.work(limits=most(LOOP // 2), on_event=heard).usage.steps == LOOP // 2
    for _ in range(LOOP // 2):
        assert reopen(folder).work(Mode.TICK, on_event=heard).usage.steps == 1
    assert "paused" not in events(run)
    assert not any(NOTE in log.read_bytes() for log in heard.logs)


@pytest.mark.slow
def test_an_hourly_check_that_finds_nothing_to_do_is_not_paused(tmp_path: Path) -> None:
    idle = said(is_idle=True)
    untouched(tmp_path, idle, **cycle({"name": "look", "stagnation": {"attempts": 2}}))


@pytest.mark.slow
def test_an_hourly_check_that_answers_nothing_to_do_is_not_paused(tmp_path: Path) -> None:
    idle = {**said(), "output": "All is green.\nNothing to do: no issue is open."}
    untouched(tmp_path, idle, **cycle({"name": "look", "expects": "change"}))


@pytest.mark.slow
def test_a_reviewer_who_always_agrees_while_work_continues_is_not_paused(tmp_path: Path) -> None:
    main, review = {**said("m"), "step": "main"}, {**said("lgtm"), "step": "review"}
    steps = {"name": "main"}, {"name": "review", "stagnation": {"attempts": 3}}
    untouched(tmp_path, main, review, seen=Changing(tmp_path, "main"), **cycle(*steps))


@pytest.mark.slow
def test_a_ci_check_that_expects_nothing_is_not_paused(tmp_path: Path) -> None:
    untouched(tmp_path, said(), **cycle({"name": "ci", "expects": "nothing"}))


@pytest.mark.slow
def test_a_ci_check_by_a_command_is_not_paused(tmp_path: Path) -> None:
    ci = {"kind": "command", "argv": ["echo", "pending"]}
    settings = cycle({"name": "ci"}, agents={"ci": ci}, agent={"default": "ci"})
    untouched(tmp_path, said(), **settings)


@pytest.mark.slow
def test_a_working_client_that_gives_no_reason_is_not_paused(tmp_path: Path) -> None:
    codex = said(reason=None, tool_calls=3)
    untouched(tmp_path, codex, seen=Changing(tmp_path, "main"), **cycle({"name": "main"}))


@pytest.mark.slow
def test_a_step_completed_by_a_file_is_not_paused(tmp_path: Path) -> None:
    marked = {**said("", is_stated=True, has_text=False), "step": "main"}
    untouched(tmp_path, marked, **cycle({"name": "main", "complete_when": {"file": "done"}}))


@pytest.mark.slow
def test_nothing_is_paused_when_the_check_is_switched_off(tmp_path: Path) -> None:
    untouched(
        tmp_path, said(), **cycle({"name": "main"}), step_defaults={"stagnation": {"attempts": 0}}
    )


def test_a_change_since_the_last_attempt_counts_without_an_earlier_check(tmp_path: Path) -> None:
    """What the files were after the first answer nobody knows; when they changed is enough."""
    main, review = {**said("m"), "step": "main"}, {**said("lgtm"), "step": "review"}
    steps = {"name": "main"}, {"name": "review", "stagnation": {"attempts": 2}}
    run, seen = opened(tmp_path, main, review, **cycle(*steps)), Changing(tmp_path, "main")
    assert run.work(limits=most(8), on_event=seen).usage.steps == 8
