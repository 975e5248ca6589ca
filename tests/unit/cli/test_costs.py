"""Costs as a person meets them: caps that hold, unknown ones said, warnings where a cap can't."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.calling import Called, call, project, state

LIAR = f"""\
#!{sys.executable}
import json, os, pathlib, sys
sys.stdin.read()
told = pathlib.Path(os.environ["SEQUENCER_RESULT"])
told.parent.mkdir(parents=True, exist_ok=True)
told.write_text(json.dumps({{"usage": {{"cost_usd": 0, "input_tokens": 0}}}}))
model = {{"costUSD": 5, "inputTokens": 100, "outputTokens": 10}}
usage = {{"total_cost_usd": 5, "model_usage_since_last_result": {{"m": model}}}}
print(json.dumps({{"type": "result", "is_error": False, "result": "done", **usage}}))
"""
SILENT = {"kind": "command", "argv": ["true"]}


def made(folder: Path, **settings: Any) -> Path:
    return project(folder, json.dumps({"workflow": {"name": "standard"}, **settings}))


def with_agent(folder: Path, entry: dict[str, Any], **settings: Any) -> Path:
    return made(folder, agent={"default": "one"}, agents={"one": entry}, **settings)


def liar(folder: Path, **settings: Any) -> Path:
    folder.mkdir()
    program = folder / "liar"
    program.write_text(LIAR)
    program.chmod(0o755)
    entry = {"kind": "claude", "program": str(program), "permission_mode": "plan"}
    return with_agent(folder, entry, **settings)


def test_a_cap_stops_an_agent_that_misreports_its_cost(tmp_path: Path) -> None:
    folder = liar(tmp_path / "p", limits={"max_cost_usd": 6})
    ended = call(folder, "run", "--max-steps", "10")
    assert ended.code == 0
    assert "limit of 6.0 USD is reached (10.0000; limits.cost_usd)" in ended.out
    assert "warning" not in ended.err
    usage = state(folder)["usage"]
    assert (usage["steps"], usage["cost_usd"], usage["unpriced"]) == (2, 10, 0)
    assert usage["input_tokens"] == 200


def test_an_invocations_cap_holds_it_too(tmp_path: Path) -> None:
    folder = liar(tmp_path / "p")
    assert "10.0000 USD is spent" in call(folder, "run", "--max-cost", "6").out
    assert state(folder)["usage"]["steps"] == 2


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    return with_agent(tmp_path / "p", SILENT)


def test_an_unknown_cost_is_shown_as_such_everywhere(silent: Path) -> None:
    ended = call(silent, "run", "--max-steps", "2")
    assert "cost unknown" in ended.out
    assert ended.err.count("cost unknown") == 2
    assert state(silent)["usage"]["unpriced"] == 2
    assert "cost unknown" in call(silent, "status").out
    assert call(silent, "history").out.count("cost unknown") == 2
    assert "cost unknown" in call(silent, "status", "--all").out
    for log in (silent / "logs").glob("**/*.log"):
        assert log.read_text().splitlines()[-1].endswith("cost unknown")
    assert "cost_usd" not in call(silent, "report", "--metrics").out.replace(
        "run_cost_usd", "cost_usd"
    )
    assert "calls_unpriced_total" in call(silent, "report", "--metrics").out
    said = call(silent, "tick", "--json").json
    assert (said["cost_usd"], said["unpriced"], said["estimated_usd"]) == (None, 1, 0)
    (listed,) = call(silent, "status", "--all", "--json").json
    assert (listed["cost_usd"], listed["unpriced"]) == (None, 3)


# --- warnings ----------------------------------------------------------------------------


def warned(folder: Path) -> Called:
    found = call(folder, "check")
    assert found.code == 0, found.out
    return found


CAP = {"limits": {"max_cost_usd": 6}}


@pytest.mark.parametrize(
    ("entry", "more", "said"),
    [
        (SILENT, CAP, "free: true"),
        (SILENT, {"run": {"max_cost_usd": 6}}, "run.max_cost_usd"),
        ({"kind": "codex", "program": "true"}, CAP, "names no model"),
        ({"kind": "codex", "program": "true", "model": "m"}, CAP, "'m' has no price"),
        ({"kind": "gemini", "program": "true", "model": "m"}, CAP, "'m' has no price"),
    ],
)
def test_a_cap_on_an_agent_that_may_not_report_its_cost_is_a_warning(
    tmp_path: Path, entry: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    folder = with_agent(tmp_path / "p", entry, **more)
    found = warned(folder).out
    assert "agent 'one' may never report its cost" in found
    assert said in found


@pytest.mark.parametrize(
    ("entry", "more"),
    [
        (SILENT, {}),
        ({"kind": "codex", "program": "true", "model": "m"}, {}),
        (
            {"kind": "codex", "program": "true", "model": "m"},
            {**CAP, "prices": {"m": {"input": 1, "output": 2}}},
        ),
        (
            {
                "kind": "codex",
                "program": "true",
                "model": "m",
                "prices": {"m": {"input": 1, "output": 2}},
            },
            CAP,
        ),
        ({"kind": "claude", "program": "true"}, CAP),
        ({"kind": "rehearsal"}, CAP),
    ],
)
def test_there_is_no_warning_where_a_cap_works_or_is_not_set(
    tmp_path: Path, entry: dict[str, Any], more: dict[str, Any]
) -> None:
    assert "may never report" not in warned(with_agent(tmp_path / "p", entry, **more)).out


def test_project_prices_apply_to_every_agent_entry(tmp_path: Path) -> None:
    told = 'echo \'{"usage": {"input_tokens": 1000000}}\' > $SEQUENCER_RESULT'
    entry = {"kind": "command", "argv": ["sh", "-c", told, "{model}"]}
    prices = {"m": {"input": 3, "output": 9}}
    folder = with_agent(tmp_path / "p", entry, prices=prices, step_defaults={"model": "m"}, **CAP)
    ended = call(folder, "run", "--max-steps", "9")
    assert "limit of 6.0 USD is reached" in ended.out
    assert "~6.0000 USD" in ended.out
    usage = state(folder)["usage"]
    assert (usage["steps"], usage["estimated_usd"], usage["unpriced"]) == (2, 6, 0)
    assert "~6.0000 USD" in call(folder, "status").out


@pytest.mark.parametrize(
    "price", [{"input": -1, "output": 1}, {"input": 1}, {"input": ".nan", "output": 1}, 3]
)
def test_an_invalid_price_is_refused(tmp_path: Path, price: Any) -> None:
    folder = made(tmp_path / "p", prices={"m": price})
    refused = call(folder, "check")
    assert refused.code == 2
    assert "prices" in refused.out
