"""Everything at random: workers, servers and holders of work orders die while people decide.

A round has a seed, and is made again by `again`. At its end the run has to be in order by its
agents' record, and to go on.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fleet.fleet_projects import AGENTS, CYCLE, FLOW, PROCEDURE
from tests.fleet.recorded import TTL_S, Arena, RecordedProject, wrong_attempts
from tests.long.report import Report, Size

CODES = frozenset({0, 1, 2, 3, 4, 75, 130})
"""What a command may end with; 70 is a bug."""
LIMIT_S = 120.0
KINDS = ("cycle", "procedure", "flow")
DECISIONS = {
    "cycle": ("stop --pause", "resume", "rewind 1", "stop", "tell hello", "retry", "takeover"),
    "procedure": (
        "stop --pause",
        "resume",
        "answer approve",
        "answer feedback more",
        "answer reject",
        "rewind 1",
    ),
    "flow": (
        "stop --pause",
        "resume",
        "answer fine approve",
        "answer fine send_back",
        "tell hello",
    ),
}


class Round:
    """One run, and what happens to it."""

    def __init__(self, arena: Arena, seed: int) -> None:
        """Make a project whose kind the *seed* decides."""
        self.arena, self.seed = arena, seed
        self.dice = random.Random(seed)  # noqa: S311 - to be repeated
        self.kind = KINDS[seed % len(KINDS)]
        configuration = {"cycle": CYCLE, "procedure": PROCEDURE, "flow": AGENTS}[self.kind]
        self.here: RecordedProject = arena.project(f"chance{seed}", configuration)
        (self.here.folder / "busy_s").write_text("0.15")
        self.chosen: tuple[str, ...] = ()
        self.what: tuple[str, ...] = ()
        if self.kind == "flow":
            (self.here.folder / "flows").mkdir()
            (self.here.folder / "flows" / "review.md").write_text(FLOW)
            self.chosen, self.what = ("--run", "review"), ("flows/review.md",)
        self.workers: list[subprocess.Popen[str]] = []
        self.runs: list[subprocess.Popen[str]] = []
        self.counts = Counter[str]()
        self.wrong: list[str] = []
        self.log: list[str] = []

    def play(self, moves: int) -> None:
        """Make so many moves, and look at what is left."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (5, self.start_run), (2, self.kill_run), (2, self.kill_worker), (1, self.kill_server),
            (5, self.decide), (1, self.let_run_end),
        ]  # fmt: skip
        self.start_worker()
        try:
            for _ in range(moves):
                weights = [weight for weight, _ in acts]
                self.dice.choices([act for _, act in acts], weights)[0]()
                time.sleep(self.dice.random() * 0.8)
            self.look()
        finally:
            for one in [*self.workers, *self.runs]:
                one.kill()
                one.communicate()

    def start_worker(self) -> None:
        """Let one more worker serve."""
        self.workers.append(self.here.launched("worker", "--max-parallel", "2"))

    def start_run(self) -> None:
        """Let the run go on, by a process that waits or by none."""
        steps = ("--max-steps", str(self.dice.randint(1, 6)))
        if self.dice.random() < 0.3:
            self.command("run", *self.what, "--detach", *steps)
            return
        self.log.append(f"run {steps}")
        arguments = ["run", *self.what, *steps, *(() if self.what else self.chosen)]
        self.runs.append(self.here.launched(*arguments))

    def kill_run(self) -> None:
        """Kill a permit's process, or ask it to end."""
        living = [one for one in self.runs if one.poll() is None]
        if living:
            number = self.dice.choice((signal.SIGKILL, signal.SIGTERM))
            self.log.append(f"run ends by {number.name}")
            self.dice.choice(living).send_signal(number)
            self.counts["kills"] += 1

    def kill_worker(self) -> None:
        """Kill a worker; another one comes."""
        self.log.append("worker")
        self.workers[-1].kill()
        self.counts["kills"] += 1
        self.start_worker()

    def kill_server(self) -> None:
        """Kill the server, and start it again."""
        self.log.append("server")
        self.arena.server.kill()
        time.sleep(self.dice.choice((0.1, 1.0, TTL_S + 1.0)))
        self.arena.server.start()
        self.counts["kills"] += 1

    def decide(self) -> None:
        """Change the run by hand."""
        words = self.dice.choice(DECISIONS[self.kind]).split()
        self.command(*[word.replace("_", " ") for word in words], *self.chosen)

    def let_run_end(self) -> None:
        """Wait for a process that lets the run go on."""
        for one in self.runs[-1:]:
            self._ensure(one.args, one)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command; how it may end is known."""
        ended = self.here.cli(*arguments, timeout_s=LIMIT_S)
        self.log.append(f"{' '.join(arguments)}: {ended.returncode}")
        self.counts["commands"] += 1
        if ended.returncode not in CODES:
            self.wrong.append(f"{arguments} ended with {ended.returncode}: {ended.stderr[-900:]}")
        return ended

    def _ensure(self, what: Any, process: subprocess.Popen[str]) -> None:
        try:
            said = process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            self.wrong.append(f"{what} does not end")
            return
        # It may not have been listening yet when it was asked to end.
        if process.returncode not in CODES | {-signal.SIGKILL, -signal.SIGTERM}:
            self.wrong.append(f"{what} ended with {process.returncode}: {said[-900:]}")

    # --- what is left -----------------------------------------------------------------

    def look(self) -> None:
        """Bring the run to rest, let it go on, and look at its history."""
        self.command("stop", "--pause", *self.chosen)
        for one in self.runs:
            if one.poll() is None:
                self._ensure(one.args, one)
        self.runs.clear()
        status = self._at_rest()
        if status is None:
            return
        facts = self.here.facts(*self.chosen, "history")
        record = [one for one in self.here.record if one.run == status["run_id"]]
        self.wrong += wrong_attempts(record, facts)
        if self.kind != "flow":
            self._ensure_order(facts, status)
        if status["status"] != "complete":
            self._goes_on()

    def _at_rest(self) -> dict[str, Any] | None:
        until, status = time.monotonic() + LIMIT_S, dict[str, Any]()
        while time.monotonic() < until:
            ended = self.here.cli("status", "--json", *self.chosen, timeout_s=LIMIT_S)
            if ended.returncode == 3 and "no run" in ended.stderr:
                return None
            status = self._json(ended)
            if status.get("run_id") is None:
                return None
            # The claim of an attempt that has vanished stays until somebody goes on.
            if not status["busy"]:
                return status
            time.sleep(0.5)
        self.wrong.append(f"it does not come to rest: {status.get('claims')}")
        return status

    def _json(self, ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ended.stdout or "{}")
        return found

    def _ensure_order(self, facts: list[dict[str, Any]], status: dict[str, Any]) -> None:
        expected: int | None = 0
        for one in facts:
            if one["event"] == "succeeded":
                if expected not in (None, one["step_index"]):
                    self.wrong.append(f"step {one['step_index']} instead of {expected}")
                expected = one["step_index"] + 1
            elif one["event"] in ("rewound", "approved", "rejected", "feedback", "completed"):
                expected = None
        if expected not in (None, status["step_index"]):
            self.wrong.append(f"status is at {status['step_index']}, history at {expected}")

    def _goes_on(self) -> None:
        """Let it make a step more, unless a person has to decide."""
        self.command("resume", *self.chosen)
        known = len(self.here.record)
        chosen = () if self.what else self.chosen
        ended = self.command("run", *self.what, "--max-steps", "1", *chosen)
        if ended.returncode == 75 or (ended.returncode == 0 and len(self.here.record) == known):
            status = self._json(self.here.cli("status", "--json", *self.chosen))
            if status["status"] not in ("complete", "waiting-approval"):
                self.wrong.append(f"it does not go on: {ended.stderr[-500:]} {status['status']}")


def again(folder: Path, seed: int, moves: int) -> Round:
    """Play one round on a server of its own."""
    with Arena(folder) as arena:
        made = Round(arena, seed)
        made.play(moves)
    return made


def campaign(folder: Path, size: Size) -> Report:
    """Workers, servers and work orders end at random while people decide over three kinds."""
    rounds, moves = (16, 14) if size is Size.LONG else (3, 8)
    counts, wrong = Counter[str]({"rounds": rounds}), list[str]()
    with Arena(folder) as arena:
        for seed in range(rounds):
            made = Round(arena, seed)
            made.play(moves)
            counts.update(made.counts)
            if made.wrong:
                wrong += [f"seed {seed} ({made.kind}): {text}" for text in made.wrong]
                wrong.append(f"seed {seed}: {'; '.join(made.log)}")
                print(*wrong[-2:], sep="\n", file=sys.stderr, flush=True)
    return Report(dict(counts), tuple(wrong))
