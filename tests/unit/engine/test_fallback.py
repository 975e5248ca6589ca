"""An agent that can't be had, and the one that performs its steps meanwhile."""

from __future__ import annotations

import json
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
    shown = call(folder, "history").out
    assert "second instead of first: its week is over" in shown
    # The limit is known, so the first isn't asked again before its reset.
    assert shown.count("second instead") == 1
    assert "mine" not in shown


def test_an_ordinary_failure_is_given_to_nobody(tmp_path: Path) -> None:
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
def test_where_nobody_can_be_had_the_run_waits_for_the_first_that_can(
    tmp_path: Path, second: str, reset: str
) -> None:
    folder = made(tmp_path, scripted(LIMITED), scripted(second))
    assert call(folder, "tick").code == 0
    head = state(folder)
    # A moment is added, so that not everybody asks in the same one.
    waited = datetime.fromisoformat(head["not_before"]) - datetime.fromisoformat(reset)
    assert timedelta(0) <= waited < timedelta(minutes=5)
    assert head["usage"]["cost_usd"] == 0.5


def test_a_missing_program_is_replaced_and_check_knows_the_names(tmp_path: Path) -> None:
    folder = made(tmp_path, "{kind: claude, program: /nowhere/claude}")
    done = call(folder, "run", "--max-steps", "1", "--quiet")
    assert done.code == 0, done.err
    text = (folder / "orchestration.yaml").read_text()
    (folder / "orchestration.yaml").write_text(text.replace("[second]", "[secnod]"))
    checked = call(folder, "check")
    assert checked.code == 2
    assert "agent.fallback" in checked.out + checked.err
    assert "second" in checked.out + checked.err


def test_nobody_stands_in_for_a_command(tmp_path: Path) -> None:
    folder = made(tmp_path, "{kind: command, argv: [/nowhere/tests]}")
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 2


def test_an_agent_that_can_not_honor_the_step_is_left_out(tmp_path: Path) -> None:
    folder = made(
        tmp_path,
        scripted(LIMITED),
        "{kind: command, argv: ['true']}",
        "step_defaults: {model: x}\n",
    )
    assert call(folder, "tick").code == 0
    assert facts(folder, "succeeded") == []
