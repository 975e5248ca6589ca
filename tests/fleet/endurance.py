"""Runs that are long, and agents that hang while they go on talking."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.fleet.campaigns import detached, done
from tests.fleet.fleet_projects import until
from tests.fleet.recorded import Arena, RecordedProject, crew, gone_within
from tests.fleet.server import ask, executions
from tests.long.report import Report, Size

COUNTING = """\
agent: {default: counts}
agents:
  counts: {kind: command, argv: [/bin/sh, -c, '{echo}']}
workflow: {name: standard}
""".replace("{echo}", "echo $SEQUENCER_STEP_INDEX $SEQUENCER_TOKEN >> made")
IDLE_S = 2.0
HANGING = """\
agent: {{default: client}}
agents:
  client: {{kind: claude, program: {program}}}
workflow: {{name: hung}}
workflows:
  hung: {{steps: [{{name: main, idle_timeout_s: {idle_s}, retry: {retry}}}]}}
"""
RETRY = "{max_attempts: 3, initial_delay_s: 0.1}"
CLIENT = """\
#!{python}
import json, os, sys, time
def event(**fields):
    print(json.dumps(fields), flush=True)
with open("started", "a") as file:
    file.write(f"{{os.getpid()}} {{time.monotonic()}} {{os.environ['SEQUENCER_ATTEMPT']}}\\n")
event(type="system", subtype="init", session_id="s")
while os.environ["SEQUENCER_ATTEMPT"] == "1":
    event(type="system", subtype="status", status="still here", filler="x" * 2000)
    time.sleep(0.05)
event(type="assistant", message={{"id": "m", "content": [{{"type": "text", "text": "did it"}}]}})
event(type="result", is_error=False, result="did it")
"""


def long_run(folder: Path, size: Size) -> Report:
    """A run of two thousand steps, over executions that follow each other."""
    steps, least = (2_000, 3) if size is Size.LONG else (60, 2)
    events = () if size is Size.LONG else _short(120)
    with Arena(folder, events) as arena:
        here = arena.project("long", COUNTING)
        detached(here, steps)
        with crew(here, 1):
            began = time.monotonic()
            done(here, 900.0)
            took = time.monotonic() - began
        facts = here.facts("history")
        listed = ask(arena.address, lambda client: executions(client, "seq/long/default"))
        made = [line.split() for line in (here.folder / "made").read_text().splitlines()]
    accepted = [one for one in facts if one["event"] == "succeeded"]
    wrong = list[str]()
    if [one["step_index"] for one in accepted] != list(range(steps)):
        wrong.append(f"{len(accepted)} accepted steps, or not in their order")
    if [[str(one["step_index"]), str(one["token"])] for one in accepted] != made:
        wrong.append(f"{len(made)} agents for {len(accepted)} accepted steps, or others")
    revisions = sorted({one["revision"] for one in facts})
    if revisions != list(range(1, revisions[-1] + 1)):
        wrong.append("revisions are missing")
    if len(listed) < least:
        wrong.append(f"{len(listed)} executions")
    counts = {"steps": len(accepted), "executions": len(listed)}
    return Report(counts, tuple(wrong), {"step_ms": round(1000 * took / steps, 1)})


def _short(events: int) -> tuple[str, str]:
    return "--dynamic-config-value", f"limit.historyCount.suggestContinueAsNew={events}"


def hung_agents(folder: Path, size: Size) -> Report:
    """Agents that send bytes and make no progress: each is found, ended, and tried again."""
    rounds = 10 if size is Size.LONG else 1
    wrong, took = list[str](), list[float]()
    with Arena(folder) as arena:
        here = arena.project("hung", _hanging(folder))
        program = folder / "client"
        program.write_text(CLIENT.format(python=sys.executable))
        program.chmod(0o700)
        with crew(here, 1):
            for number in range(rounds):
                detached(here, 1)
                hung = _started(here, 2 * number + 1)
                if gone_within(int(hung[0]), 30.0) is None:
                    wrong.append(f"the agent of round {number} hangs on")
                    os.kill(int(hung[0]), 9)
                after = _started(here, 2 * number + 2)
                took.append(float(after[1]) - float(hung[1]))
                done(here)
        facts = here.facts("history")
    failed = [one for one in facts if one["event"] == "failed"]
    accepted = [one["step_index"] for one in facts if one["event"] == "succeeded"]
    if len(failed) != rounds or accepted != list(range(rounds)):
        wrong.append(f"{len(failed)} failed, accepted {accepted}")
    told = [one["outcome"]["error"] for one in failed]
    wrong += [f"told as {text!r}" for text in told if f"no progress for {IDLE_S:g} s" not in text]
    figures = {"found_and_tried_again_max_s": round(max(took), 2)}
    return Report({"hung agents": rounds}, tuple(wrong), figures)


def _hanging(folder: Path) -> str:
    return HANGING.format(program=json.dumps(str(folder / "client")), idle_s=IDLE_S, retry=RETRY)


def _started(here: RecordedProject, count: int) -> list[str]:
    """Wait for the start number *count*; return its process, time and attempt."""
    path = here.folder / "started"

    def rows() -> list[list[str]]:
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    until(lambda: len(rows()) >= count, 40)
    return rows()[count - 1]
