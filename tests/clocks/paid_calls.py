"""How often a paid agent is called in an hour in which nothing goes well.

A timer starts `sequencer tick` every few seconds, and the wall clock is moved on to the next
date that the run waits for, so that an hour takes seconds. The agent is a program that notes
each call and answers as its plan says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.clocks.faketime import variables
from tests.storage.commands import project, sequencer

HOUR_S = 3_600.0
TIMER_S = 5.0
"""Between two ticks where nothing is waited for."""
QUIET_TICKS = 4
"""Without a call and without a date: nobody asks again before a person has looked."""
FAILURES = 3
"""``limits.failures_in_row``."""
PUT_OFF = 2
"""Attempts that are put off because the client failed before any work, for an unknown reason."""
IN_A_ROW = 8
"""Calls in an hour of an agent that says each time that a limit is reached."""
AGENT = f"""\
#!{sys.executable} -IS
import json, pathlib, sys, time
here = pathlib.Path(__file__).parent
prompt = sys.stdin.read()
calls = here / "calls.txt"
number = len(calls.read_text().splitlines()) if calls.exists() else 0
with calls.open("a") as file:
    file.write("call\\n")
plan = json.loads((here / "plan.json").read_text())
answer = plan[number % len(plan)]
for event in answer.get("events", []):
    text = json.dumps(event).replace('"@soon"', str(int(time.time()) + 2))
    print(text.replace('"@later"', str(int(time.time()) + 600)), flush=True)
print(answer.get("stderr", ""), file=sys.stderr, flush=True)
time.sleep(answer.get("sleep_s", 0))
sys.exit(answer.get("exit", 0))
"""


def result(text: str, **more: Any) -> dict[str, Any]:
    """Return the last event of claude."""
    is_error = more.pop("is_error", True)
    usage = {"model_usage_since_last_result": {"m": {"costUSD": 0.01}}, "total_cost_usd": 0.01}
    return {"type": "result", "is_error": is_error, "result": text, **usage, **more}


def rejected(**more: Any) -> dict[str, Any]:
    """Return the event with which claude says that a limit is reached."""
    info = {"status": "rejected", "rateLimitType": "five_hour", **more}
    return {"type": "rate_limit_event", "rate_limit_info": info}


FAILED = {"events": [result("API Error: 400 bad", api_error_status=400)], "exit": 1}
ANSWERED = {"events": [result("not what was asked", is_error=False)]}
NO = {"events": [result('{"pass": false, "reason": "not done"}', is_error=False)]}
LIMITED = {"events": [result("rate limit, retry in 1s", api_error_status=429)], "exit": 1}
SCHEMA = {"type": "object", "required": ["pass"]}


def _steps(**fields: Any) -> dict[str, Any]:
    steps = [{"name": "main", "prompt": "main.md", **fields}]
    return {"workflow": {"name": "w"}, "workflows": {"w": {"steps": steps}}}


@dataclass(frozen=True)
class Case:
    """One kind of trouble."""

    name: str
    plan: Sequence[Mapping[str, Any]]
    most: int
    """Calls in an hour, as docs/how-to/limits-and-budgets.md has them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    least: int = 1


_RETRY = {"retry": {"max_attempts": 100}}
CASES = (
    Case("retry-in-1s", [LIMITED], IN_A_ROW, least=5),
    Case("no-date", [{**LIMITED, "events": [result("slow", api_error_status=429)]}], IN_A_ROW),
    Case(
        "a-reset-that-never-comes",
        [{"events": [rejected(resetsAt="@soon"), result("You've hit your limit")], "exit": 1}],
        IN_A_ROW,
        least=5,
    ),
    Case(
        "each-ten-minutes",
        [{"events": [rejected(resetsAt="@later"), result("You've hit your limit")], "exit": 1}],
        IN_A_ROW,
        least=4,
    ),
    Case("limited-with-retry", [LIMITED], IN_A_ROW, {"step_defaults": _RETRY}),
    Case(
        "bounded-in-a-row", [LIMITED], 3, {"limits": {"max_attempts": 3}, "step_defaults": _RETRY}
    ),
    Case(
        "another-services-limit",
        [{"stderr": "GitHub API rate limit exceeded", "exit": 1}],
        PUT_OFF + FAILURES,
    ),
    Case(
        "a-tools-limit",
        [{"events": [result("Tests failed: GitHub API rate limit exceeded")], "exit": 1}],
        FAILURES,
    ),
    Case("failure", [FAILED], FAILURES),
    Case("failure-with-retry", [FAILED], FAILURES, {"step_defaults": _RETRY}),
    Case("overloaded", [{"events": [result("busy", api_error_status=529)], "exit": 1}], IN_A_ROW),
    Case("limit-and-failure", [LIMITED, FAILED], 2 * FAILURES, least=4),
    Case("hang", [{"sleep_s": 30}], FAILURES, {"step_defaults": {"idle_timeout_s": 0.3}}),
    Case("refused-answer", [ANSWERED], FAILURES, _steps(output={"schema": SCHEMA})),
    Case(
        "a-judge-that-says-no",
        [NO],
        FAILURES * 2,
        _steps(validation={"max_attempts": 2}),
        least=6,
    ),
    Case(
        "a-router-at-its-limit",
        [LIMITED],
        IN_A_ROW,
        {"router": {"enabled": True, "prompt": "main.md"}},
    ),
)


def calls_of(folder: Path) -> int:
    """Return how often the agent was called.

    An attempt that failed was a call, even if it was ended before the agent could note it.
    """
    notes, journal = folder / "agent" / "calls.txt", folder / "sync" / "journal.jsonl"
    noted = len(notes.read_text().splitlines()) if notes.exists() else 0
    lines = journal.read_text().splitlines() if journal.exists() else ()
    failed = [line for line in lines if json.loads(line)["event"] == "failed"]
    return max(noted, len(failed))


def an_hour_of(folder: Path, case: Case, library: Path) -> int:
    """Let a timer tick for an hour of shifted time; return how often the agent was called."""
    agent = folder / "agent"
    agent.mkdir(parents=True)
    (agent / "plan.json").write_text(json.dumps(case.plan))
    program = agent / "client"
    program.write_text(AGENT)
    program.chmod(0o755)
    entry = {"kind": "claude", "program": str(program)}
    settings = {"agent": {"default": "paid"}, "agents": {"paid": entry}, **case.settings}
    project(folder, **settings)
    began, quiet = datetime.now(UTC), 0
    for offset_s in _offsets(folder, began):
        before = calls_of(folder)
        clock = variables(library, f"+{offset_s:.0f}s")
        ended = sequencer(folder, "tick", variables=clock)
        # Nothing due, a failed step, or a person is needed: nothing else may come of it.
        assert ended.wrong(0, 1, 3) == "", f"{case.name}: {ended}"
        due, shifted = _due(folder), datetime.now(UTC) + timedelta(seconds=offset_s)
        is_quiet = calls_of(folder) == before and (due is None or due <= shifted)
        quiet = quiet + 1 if is_quiet else 0
        if quiet == QUIET_TICKS:
            break
    return calls_of(folder)


def _offsets(folder: Path, began: datetime) -> Iterator[float]:
    """Yield by how much the clock is ahead at each tick, for an hour."""
    offset_s = 0.0
    while offset_s + (datetime.now(UTC) - began).total_seconds() < HOUR_S:
        yield offset_s
        due = _due(folder)
        ahead = 0.0 if due is None else (due - datetime.now(UTC)).total_seconds() + 1.0
        offset_s = max(offset_s + TIMER_S, ahead)


def _due(folder: Path) -> datetime | None:
    try:
        told = json.loads((folder / "sync" / "state.json").read_text())["not_before"]
    except FileNotFoundError:
        return None
    return datetime.fromisoformat(told) if told else None
