"""An agent that can't be had, and the one that performs its steps meanwhile."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.calling import call, project, state

NOW = datetime.now(UTC).replace(microsecond=0)
EARLIER, LATER = ((NOW + timedelta(hours=h)).strftime("%Y-%m-%dT%H:%M:%SZ") for h in (5, 9))


def scripted(*outcomes: str) -> str:
    return f"{{kind: scripted, outcomes: [{', '.join(outcomes)}]}}"


LIMITED = (
    f"{{status: limited, not_before: '{LATER}', error: its week is over, "
    "usage: {cost_usd: 0.25}}"
)
DONE = "{output: done, usage: {cost_usd: 0.5}}"
AWAY = "{step: one, status: unavailable, error: no answer}"


def made(folder: Path, first: str, second: str = scripted(DONE), more: str = "") -> Path:
    return project(
        folder,
        "agent: {default: first, fallback: [second]}\nsteps: [one, two]\n"
        f"agents:\n  first: {first}\n  second: {second}\n{more}",
        "one.md",
        "two.md",
    )


def facts(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = call(folder, "history", "--json").out.splitlines()
    return [fact for fact in map(json.loads, lines) if fact["event"] == event]


def test_the_next_agent_performs_the_step_in_the_same_attempt(tmp_path: Path) -> None:
    folder = made(tmp_path, scripted(LIMITED, "{output: mine}"))
    done = call(folder, "run", "--max-steps", "2", "--quiet")
    assert done.code == 0, done.err
    one, two = facts(folder, "succeeded")
    assert (one["attempt"], two["attempt"]) == (1, 1)
    assert state(folder)["usage"]["cost_usd"] == 1.25
    assert one["outcome"]["note"] == "second instead of first: its week is over"
    # The limit is known, so the first isn't asked again before its reset.
    assert two["outcome"]["note"] == f"second instead of first: its usage limit ends {LATER}"
    shown = call(folder, "history").out
    assert "second instead of first: its week is over" in shown
    assert "mine" not in shown


def test_an_ordinary_failure_is_not_given_to_a_fallback(tmp_path: Path) -> None:
    folder = made(tmp_path, scripted("{status: failed}"))
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 1
    assert facts(folder, "succeeded") == []


def test_a_service_out_of_reach_is_asked_again_at_the_next_step(tmp_path: Path) -> None:
    folder = made(tmp_path, scripted(AWAY, "{step: two, output: back}"))
    done = call(folder, "run", "--max-steps", "2", "--quiet")
    assert done.code == 0, done.err
    shown = call(folder, "history").out
    assert shown.count("second instead of first: no answer") == 1


@pytest.mark.parametrize(
    ("second", "reset"),
    [(LIMITED, LATER), (LIMITED.replace(LATER, EARLIER), EARLIER)],
    ids=["the first", "the second"],
)
def test_the_run_waits_for_the_first_agent_to_become_available(
    tmp_path: Path, second: str, reset: str
) -> None:
    folder = made(tmp_path, scripted(LIMITED), scripted(second))
    assert call(folder, "tick").code == 0
    head = state(folder)
    # A moment is added, so that not everybody asks in the same one.
    waited = datetime.fromisoformat(head["not_before"]) - datetime.fromisoformat(reset)
    assert timedelta(0) <= waited < timedelta(minutes=5)
    assert head["usage"]["cost_usd"] == 0.5


def test_a_missing_program_is_replaced_and_check_finds_unknown_names(tmp_path: Path) -> None:
    folder = made(tmp_path, "{kind: claude, program: /nowhere/claude}")
    done = call(folder, "run", "--max-steps", "1", "--quiet")
    assert done.code == 0, done.err
    why = "second instead of first: '/nowhere/claude' is not a program"
    (accepted,) = facts(folder, "succeeded")
    assert accepted["outcome"]["note"].startswith(why)
    assert why[:38] in call(folder, "history").out
    assert f"[fallback] {why}" in step_log(folder)
    text = (folder / "orchestration.yaml").read_text()
    (folder / "orchestration.yaml").write_text(text.replace("[second]", "[secnod]"))
    checked = call(folder, "check")
    assert checked.code == 2
    assert "agent.fallback" in checked.out + checked.err
    assert "second" in checked.out + checked.err


def test_a_command_has_no_fallback(tmp_path: Path) -> None:
    folder = made(tmp_path, "{kind: command, argv: [/nowhere/tests]}")
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 2


def step_log(folder: Path) -> str:
    (log,) = (folder / "logs").glob("**/*.log")
    return log.read_text()


UNFIT = "fallback 'second' never performs steps one, two in place of 'first'"
CAN_NOT = "agent 'second' (kind codex) does not support max_cost_usd"


@pytest.fixture
def unfit(tmp_path: Path) -> Path:
    """Return a project with a fallback that can't have the steps' cap on costs."""
    second = f"{{kind: codex, program: {sys.executable}}}"
    return made(tmp_path, scripted(LIMITED), second, "step_defaults: {max_cost_usd: 3}\n")


def test_check_names_the_unfit_fallback_and_the_field(unfit: Path) -> None:
    found = call(unfit, "check").out
    assert found.count(UNFIT) == 1
    assert f"{UNFIT}: {CAN_NOT}" in found
    assert "change that, or take 'second' out of agent.fallback" in found
    config = unfit / "orchestration.yaml"
    config.write_text(config.read_text().replace("{max_cost_usd: 3}", "{timeout_s: 60}"))
    assert "never performs" not in call(unfit, "check").out


def test_a_new_run_warns_once_about_unfit_fallbacks(unfit: Path) -> None:
    started = call(unfit, "tick")
    assert started.code == 0
    assert f"warning: {UNFIT}: {CAN_NOT}" in started.err
    assert "never performs" not in call(unfit, "tick").err


def test_log_and_history_report_why_no_fallback_was_used(unfit: Path) -> None:
    assert call(unfit, "tick").code == 0
    assert facts(unfit, "succeeded") == []
    (released,) = facts(unfit, "released")
    assert released["outcome"]["note"] == f"second can't stand in: {CAN_NOT}"
    assert f"[fallback] second can't stand in: {CAN_NOT}" in step_log(unfit)
    assert "second can't stand in" in call(unfit, "history").out


def test_a_fallback_that_is_not_installed_is_reported_too(tmp_path: Path) -> None:
    folder = made(tmp_path, scripted(LIMITED), "{kind: codex, program: /nowhere/codex}")
    found = call(folder, "check").out
    assert UNFIT in found
    assert "install it, or take 'second' out of agent.fallback" in found
    assert call(folder, "tick").code == 0
    assert "second can't stand in: " in step_log(folder)


def test_each_reason_against_a_fallback_has_its_own_remedy(tmp_path: Path) -> None:
    folder = made(tmp_path, scripted(LIMITED), "{kind: codex, program: /nowhere/codex}")
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text().replace("[one,", "[{name: one, max_cost_usd: 2},"))
    found = call(folder, "check").out
    assert found.count("change that, or take 'second' out of agent.fallback") == 1
    assert found.count("install it, or take 'second' out of agent.fallback") == 1


def test_a_scheduled_workflow_has_its_fallbacks_checked_as_well(tmp_path: Path) -> None:
    more = "workflows: {nightly: {kind: procedure, steps: [{name: one, max_cost_usd: 2}]}}\n"
    second = f"{{kind: codex, program: {sys.executable}}}"
    folder = made(tmp_path, scripted(LIMITED), second, more)
    found = call(folder, "check").out
    assert f"fallback 'second' never performs step one in place of 'first': {CAN_NOT}" in found
    assert "workflow nightly" in found


def test_a_fallback_without_a_price_is_named_under_a_cap(tmp_path: Path) -> None:
    more = "limits: {cost_usd: 10}\n"
    second = f"{{kind: codex, program: {sys.executable}}}"
    folder = made(tmp_path, scripted(LIMITED), second, more)
    warning = "agent 'second' may never report its cost, so limits.cost_usd can't count it"
    assert call(folder, "check").out.count(warning) == 1
    assert f"warning: {warning}" in call(folder, "run", "--max-steps", "1").err


def test_an_agent_that_does_not_support_the_step_is_skipped(tmp_path: Path) -> None:
    folder = made(
        tmp_path,
        scripted(LIMITED),
        "{kind: command, argv: ['true']}",
        "step_defaults: {model: x}\n",
    )
    assert call(folder, "tick").code == 0
    assert facts(folder, "succeeded") == []
