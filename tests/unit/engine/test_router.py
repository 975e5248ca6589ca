"""The router in a run: what it may choose, and what a wrong answer costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.invocation_budget import Mode
from sequencer.engine.run import Run
from sequencer.errors import ConfigurationError, StepFailed
from sequencer.model.commands import RetryNow
from sequencer.model.limits import InvocationLimits
from tests.unit.engine.projects import OK, Recorder, head_of, open_scripted


def routed(folder: Path, answer: str, mode: str = "router_default", **router: Any) -> Run:
    settings = {"enabled": True, "mode": mode, "prompt": "router.md", **router}
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts/router.md").write_text("Choose.\n")
    (folder / "prompts/secret.md").write_text("Not for the router.\n")
    script = {"step": "router", "output": answer, "usage": {"cost_usd": 0.5}}
    return open_scripted(folder, script, {**OK, "usage": {"cost_usd": 0.25}}, router=settings)


def one_step(run: Run) -> Recorder:
    seen = Recorder()
    run.work(limits=InvocationLimits(max_steps=1), on_event=seen)
    return seen


def test_a_router_that_fails_fails_the_step(tmp_path: Path) -> None:
    run = routed(tmp_path, "main.md")
    settings = {"enabled": True, "prompt": "router.md"}
    failing = {"step": "router", "status": "failed", "error": "no idea"}
    run = open_scripted(tmp_path, failing, OK, router=settings)
    with pytest.raises(StepFailed, match="the router failed: no idea"):
        one_step(run)
    limited = {"step": "router", "status": "limited", "not_before": "2999-01-01T00:00:00Z"}
    run = open_scripted(tmp_path, limited, OK, router=settings)
    run.do(RetryNow())
    run.work(Mode.TICK)
    assert head_of(run).not_before_reason == "usage limit of agent 'canned'"


def test_a_router_without_a_prompt_is_an_error_only_in_router_only_mode(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, router={"enabled": True})
    one_step(run)
    assert head_of(run).last_prompt == "supervisor.md"
    with pytest.raises(ConfigurationError, match="router"):
        one_step(open_scripted(tmp_path, router={"enabled": True, "mode": "router_only"}))
    assert head_of(run).step_index == 1


@pytest.mark.parametrize("mode", ["router_default", "router_first"])
def test_an_empty_router_answer_keeps_the_selection(tmp_path: Path, mode: str) -> None:
    run = routed(tmp_path, "\n  \n", mode)
    seen = one_step(run)
    head = head_of(run)
    assert (head.step_index, head.last_prompt, head.usage.cost_usd) == (1, "supervisor.md", 0.75)
    assert b"[router] the router gave no answer; supervisor.md runs" in seen.logs[0].read_bytes()
    *_, last = run.history()
    assert last["outcome"]["note"] == "the router gave no answer"
