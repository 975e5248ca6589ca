"""The router in a run: what it may choose, and what a wrong answer costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.loop import Mode
from sequencer.engine.run import Run
from sequencer.errors import ConfigurationError, StepFailed
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


@pytest.mark.parametrize("mode", ["router_default", "router_first", "router_only"])
def test_the_routers_choice_is_run(tmp_path: Path, mode: str) -> None:
    run = routed(tmp_path, "main.md\n", mode)
    seen = one_step(run)
    head = head_of(run)
    assert (head.step_index, head.last_prompt) == (1, "main.md")
    assert head.usage.cost_usd == 0.75
    assert seen.steps == [("supervisor", 0, 1)]
    assert b"[router] main.md" in seen.logs[0].read_bytes()


@pytest.mark.parametrize("mode", ["router_default", "router_first", "router_only"])
@pytest.mark.parametrize(
    "answer",
    [
        "main.md\nreviewer.md",
        "no-such.md",
        "secret.md",
        "../secret.md",
        "/etc/passwd",
        "main.md; rm -rf /",
        "x" * 100_000,
        "\x00",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_wrong_answer_fails_the_step(tmp_path: Path, mode: str, answer: str) -> None:
    run = routed(tmp_path, answer, mode)
    with pytest.raises(StepFailed) as caught:
        one_step(run)
    assert len(str(caught.value)) < 5_000
    head = head_of(run)
    assert (head.step_index, head.failures_in_row, head.claims) == (0, 1, ())


@pytest.mark.parametrize("mode", ["router_default", "router_first"])
def test_no_answer_keeps_the_selection(tmp_path: Path, mode: str) -> None:
    run = routed(tmp_path, "\n  \n", mode)
    seen = one_step(run)
    head = head_of(run)
    assert (head.step_index, head.last_prompt, head.usage.cost_usd) == (1, "supervisor.md", 0.75)
    assert b"[router] the router gave no answer; supervisor.md runs" in seen.logs[0].read_bytes()
    *_, last = run.history()
    assert last["outcome"]["note"] == "the router gave no answer"


def test_no_answer_fails_the_step_where_only_the_router_selects(tmp_path: Path) -> None:
    run = routed(tmp_path, "\n  \n", "router_only")
    with pytest.raises(StepFailed, match="is empty"):
        one_step(run)
    assert head_of(run).step_index == 0


def test_an_allow_list_opens_other_prompts(tmp_path: Path) -> None:
    run = routed(tmp_path, "secret.md", allowlist=["secret.md"])
    one_step(run)
    assert head_of(run).last_prompt == "secret.md"


def test_a_router_that_fails_fails_the_step(tmp_path: Path) -> None:
    run = routed(tmp_path, "main.md")
    settings = {"enabled": True, "prompt": "router.md"}
    failing = {"step": "router", "status": "failed", "error": "no idea"}
    run = open_scripted(tmp_path, failing, OK, router=settings)
    with pytest.raises(StepFailed, match="the router failed: no idea"):
        one_step(run)
    limited = {"step": "router", "status": "limited", "not_before": "2999-01-01T00:00:00Z"}
    run = open_scripted(tmp_path, limited, OK, router=settings)
    run.control.retry()
    run.work(Mode.TICK)
    assert head_of(run).not_before_reason == "usage limit of agent 'canned'"


def test_a_router_without_a_prompt_is_no_router_unless_it_is_all_there_is(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, router={"enabled": True})
    one_step(run)
    assert head_of(run).last_prompt == "supervisor.md"
    with pytest.raises(ConfigurationError, match="router"):
        one_step(open_scripted(tmp_path, router={"enabled": True, "mode": "router_only"}))
    assert head_of(run).step_index == 1
