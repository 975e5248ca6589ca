"""Workers, servers and cables of runs on Temporal break, and nothing is lost or doubled."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

from tests.fleet.fleet_projects import until
from tests.fleet.recorded import (
    TTL_S,
    Arena,
    RecordedProject,
    crew,
    end,
    gone_within,
    holder_of,
    percentile,
    violations,
)
from tests.long.report import Report, Size

TAKE_OVER_S = TTL_S + 3.0
"""From the kill of a worker to the start of the next agent at its step."""

LOOK_S = 40.0
"""A command that only looks takes no longer, whatever the server does."""


def detached(here: RecordedProject, steps: int) -> None:
    """Let workers make so many *steps*."""
    ended = here.cli("run", "--detach", "--max-steps", str(steps))
    assert ended.returncode == 0, ended.stderr


def done(here: RecordedProject, timeout_s: float = 90.0) -> None:
    """Wait until what was detached has ended."""
    here.let_out()
    until(lambda: "end" in here.facts("status")["detached"][0], timeout_s)


def workers(folder: Path, size: Size) -> Report:
    """SIGKILL to workers in the middle of a step, some of them twice in one step."""
    kills = 50 if size is Size.LONG else 3
    dice = random.Random(17)  # noqa: S311 - to be repeated
    wrong, took, guarded = list[str](), list[float](), list[float]()
    with Arena(folder) as arena:
        here = arena.project("killed")
        here.keep_in()
        steps = kills
        detached(here, steps)
        with crew(here, 2, "--max-parallel", "1") as serving:
            number = 1
            while len(took) < kills:
                agent = here.started(number)
                time.sleep(dice.random() * 1.5)
                holder = holder_of(agent.pid)
                victim = next(one for one in serving if one.pid == holder)
                victim.kill()
                began = time.monotonic()
                victim.wait()
                serving.append(here.launched("worker", "--max-parallel", "1"))
                number += 1
                after = here.started(number)
                took.append(after.at - began)
                ended = gone_within(agent.pid)
                guarded.append(ended or 0.0)
                if ended is None:
                    wrong.append(f"the agent of kill {len(took)} lives on")
                if dice.random() < 0.8:
                    here.go(after.token)
                    number += 1
            done(here)
        wrong += violations(here, least=steps)
    wrong += [f"a take-over took {one:.1f} s" for one in took if one > TAKE_OVER_S]
    figures = {"take_over_p50_s": percentile(took, 0.5), "take_over_max_s": round(max(took), 2)}
    return Report({"kills": len(took)}, tuple(wrong), figures)


def freezes(folder: Path, size: Size) -> Report:
    """SIGSTOP to workers past their timeout, then SIGCONT; half of their agents end meanwhile."""
    times = 20 if size is Size.LONG else 2
    wrong, took = list[str](), list[float]()
    with Arena(folder) as arena:
        here, there = arena.project("frozen"), arena.project("frozen", folder="there")
        here.clones = (there,)
        here.keep_in()
        detached(here, times)
        alone = "--max-parallel", "1"
        with crew(here, 1, *alone), crew(there, 1, *alone):
            number = 1
            for turn in range(times):
                agent = here.started(number)
                holder = holder_of(agent.pid)
                assert holder is not None
                end(holder, signal.SIGSTOP)
                began = time.monotonic()
                if turn % 2:
                    # Its report waits in the frozen process.
                    here.go(agent.token)
                    here.ended(agent.token)
                after = here.started(number + 1, 90.0)
                took.append(after.at - began)
                end(holder, signal.SIGCONT)
                if gone_within(agent.pid, 20.0) is None:
                    wrong.append(f"the agent of freeze {turn} lives on")
                time.sleep(0.5)
                here.go(after.token)
                number += 2
            done(here)
        wrong += violations(here, least=times)
        late = {one["token"] for one in here.facts("history") if one["event"] == "taken-over"}
        if len(late) != times:
            wrong.append(f"{len(late)} of {times} were taken over")
    figures = {"take_over_p50_s": percentile(took, 0.5), "take_over_max_s": round(max(took), 2)}
    return Report({"freezes": times}, tuple(wrong), figures)


def servers(folder: Path, size: Size) -> Report:
    """SIGKILL to the server in the middle of two runs, and commands meanwhile."""
    kills = 15 if size is Size.LONG else 2
    dice = random.Random(23)  # noqa: S311 - to be repeated
    codes, wrong, asked = Counter[int](), list[str](), 0
    with Arena(folder) as arena:
        here = arena.project("restarted")
        (here.folder / "busy_s").write_text("0.2")
        detached = here.cli("run", "--run", "other", "--detach", "--max-steps", "100000")
        assert detached.returncode == 0, detached.stderr
        with crew(here, 2), here.process("run", "--max-steps", "100000") as run:
            # Whoever finds no server at its start ends.
            _goes_on(here, wrong)
            for _ in range(kills):
                time.sleep(1.0 + dice.random() * 2)
                arena.server.kill()
                down_until = time.monotonic() + dice.choice((0.2, 1.0, 2.0 * TTL_S))
                asked += _look(here, codes, wrong, down_until)
                arena.server.start()
                asked += _look(here, codes, wrong, time.monotonic() + 2.0)
                _goes_on(here, wrong)
            run.send_signal(signal.SIGTERM)
            said = run.communicate(timeout=90)[0]
            if run.returncode != 130:
                wrong.append(f"run ended with {run.returncode}: {said[-2000:]}")
            assert here.cli("stop", "--run", "other").returncode == 0
            until(lambda: not here.facts("status", "--run", "other")["busy"], 60)
        wrong += violations(here, least=kills)
        wrong += violations(here, "other", least=kills)
    counts = {"kills": kills, "commands": asked}
    return Report(counts, tuple(wrong), {f"ended_with_{code}": codes[code] for code in codes})


def _look(here: RecordedProject, codes: Counter[int], wrong: list[str], until_s: float) -> int:
    """Look at a run again and again until then; it is shown, or refused in our words."""
    count = 0
    while count < 3 or time.monotonic() < until_s:
        verb = (["status"], ["status", "--all"], ["history"])[count % 3]
        began, ended = time.monotonic(), here.cli(*verb)
        codes[ended.returncode] += 1
        count += 1
        text, took = ended.stderr, time.monotonic() - began
        if ended.returncode not in (0, 3) or (ended.returncode == 3) != ("does not" in text):
            wrong.append(f"{verb} ended with {ended.returncode}: {text[-500:]}")
        if took > LOOK_S:
            wrong.append(f"{verb} took {took:.1f} s")
    return count


def _goes_on(here: RecordedProject, wrong: list[str]) -> None:
    """Wait until agents of both runs start again."""
    known = len(here.record)

    def both() -> bool:
        return len({one.run for one in here.record[known:] if one.what == "start"}) == 2

    try:
        until(both, 60)
    except AssertionError:
        wrong.append("no agents of both runs within a minute of the server's start")
