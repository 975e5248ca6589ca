"""Two attempts at one step: no process of the first is alive when one of the second is.

Each process of an agent writes a line every few milliseconds with its attempt's token and
the clock, so what is compared is what the processes did, not what anybody says about them.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.acceptance.cli_process import launched
from tests.concurrency.children import pairs
from tests.concurrency.stubborn_agents import end_all, is_alive, marked, seconds_until
from tests.long.report import Report, Size

LEASE_S = 1.2
GRACE_S = 5.0
LONGEST_S = 12.0
"""From the kill to the end of the step's next attempt."""
AT_ONCE = 5

_AGENT = """
import os, signal, sys, time
lines, mark, form = sys.argv[1:4]
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
token = os.environ.get("SEQUENCER_TOKEN") or sys.argv[4]
file = os.open(lines, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
def tick():
    os.write(file, f"{token} {os.getpid()} {time.monotonic()}\\n".encode())
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tick()
        time.sleep(0.003)
def grandchild():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            argv = [sys.executable, "-IS", __file__, lines, mark, "leaf", token]
            os.execve(sys.executable, argv, {} if form == "nameless" else dict(os.environ))
        os._exit(0)
    os.wait()
if form == "leaf":
    work(300)
if int(token) > 1:
    work(0.2)
    sys.exit(0)
if form != "alone":
    grandchild()
work(300)
"""


_FLOW = "---\nid: flow\n---\n\n```mermaid\nflowchart TD\na --> b\n```\n\n### a\nx\n\n### b\nx\n"
_WAITS = re.compile(rb"is run by|runs in another process")


class Round:
    """One project with an agent at its first attempt, and a process that waits for the step."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder = folder
        self.mark = f"overlap-{uuid.uuid4()}"
        self.lines = folder / "lines"
        (folder / "prompts").mkdir(parents=True)
        (folder / "prompts" / "main.md").write_text("Do not end.\n")
        (folder / "agent.py").write_text(_AGENT)
        argv = ["{python}", "-IS", str(folder / "agent.py"), str(self.lines), self.mark, form]
        document = {
            "workflow": {"name": "w"},
            "workflows": {"w": {"steps": [{"name": "main", "agent": "agent"}]}},
            "agents": {"agent": {"kind": "command", "argv": argv, "grace_s": GRACE_S}},
            "store": {"ttl_s": LEASE_S},
            "agent": {"default": "agent"},
        }
        (folder / "orchestration.yaml").write_text(json.dumps(document))
        (folder / "flows").mkdir()
        (folder / "flows" / "flow.md").write_text(_FLOW)
        self.flow = ["flow"] if form == "node" else []
        self.holder = self.run("run", *self.flow, "--max-steps=1", "--quiet")
        self.processes = 1 if form == "alone" else 2
        seconds_until(lambda: len(self.pids(1)) == self.processes, 30)
        (guard,) = psutil.Process(self.holder.pid).children()
        self.guard = guard
        self.others: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "said").open("ab") as said:
            return launched(self.folder, *arguments, stdout=said, stderr=said)

    def wait(self) -> None:
        """Start the process that takes the step over, and let it come to its waiting."""
        self.others.append(self.run("run", *self.flow, "--max-steps=1", "--max-wait=60"))
        seconds_until(lambda: _WAITS.search((self.folder / "said").read_bytes()), 30)

    def pids(self, token: int) -> set[int]:
        return {int(pid) for of, pid, _ in pairs(self.lines) if int(of) == token}

    def kill(self, number: signal.Signals, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    def close(self) -> None:
        for process in (self.holder, *self.others):
            process.kill()
            process.wait()
        if is_alive(self.guard):
            self.guard.kill()
        end_all(self.mark, [])


# --- what happens to the first attempt ---------------------------------------------------


def deaf(it: Round) -> None:
    it.wait()
    it.holder.kill()


def stopped_guard(it: Round) -> None:
    it.wait()
    it.guard.suspend()
    it.holder.kill()


def stopped_agent(it: Round) -> None:
    it.wait()
    it.kill(signal.SIGSTOP, *it.pids(1))
    it.holder.kill()


def stopped_all(it: Round) -> None:
    it.wait()
    it.kill(signal.SIGSTOP, it.guard.pid, *it.pids(1))
    it.holder.kill()


def both_killed(it: Round) -> None:
    it.wait()
    it.kill(signal.SIGKILL, it.guard.pid, it.holder.pid)


def both_killed_sequencer_first(it: Round) -> None:
    it.wait()
    it.kill(signal.SIGKILL, it.holder.pid, it.guard.pid)


def both_killed_before_anybody_came(it: Round) -> None:
    it.kill(signal.SIGKILL, it.holder.pid, it.guard.pid)
    it.holder.wait()
    it.others.append(it.run("tick", "--quiet"))


def guard_killed(it: Round) -> None:
    """Its sequencer records a failure, and who comes then tries again."""
    it.guard.kill()
    it.holder.wait()
    it.others.append(it.run("run", "--max-steps=1", "--quiet"))


def sleeping_sequencer(it: Round) -> None:
    """Its lease runs out, its guard and its agent know nothing of that."""
    it.wait()
    it.kill(signal.SIGSTOP, it.holder.pid)


def forced(it: Round) -> None:
    it.run("takeover", "--force").wait()
    it.others.append(it.run("run", "--max-steps=1", "--quiet"))


CASES: dict[str, tuple[str, Callable[[Round], None]]] = {
    "deaf": ("alone", deaf),
    "deaf with a grandchild": ("family", deaf),
    "deaf in a flowchart": ("node", deaf),
    "stopped guard in a flowchart": ("node", stopped_guard),
    "stopped guard": ("family", stopped_guard),
    "stopped guard, grandchild without a mark": ("nameless", stopped_guard),
    "stopped agent": ("family", stopped_agent),
    "stopped guard and agent": ("family", stopped_all),
    "guard and sequencer killed": ("family", both_killed),
    "sequencer and guard killed": ("family", both_killed_sequencer_first),
    "both killed, a tick later": ("family", both_killed_before_anybody_came),
    "guard killed": ("family", guard_killed),
    "sequencer asleep": ("family", sleeping_sequencer),
    "taken over by force": ("family", forced),
}


ON_EVERY_PUSH = (
    "stopped guard in a flowchart",
    "stopped guard, grandchild without a mark",
    "stopped agent",
    "sequencer and guard killed",
    "sequencer asleep",
    "taken over by force",
)
"""One of each: a guard, an agent or a sequencer that stands still or is killed, and a command."""


def overlap_s(lines: list[list[str]]) -> float | None:
    """Return how long processes of two attempts lived together; None without a second one."""
    times: dict[int, list[float]] = {}
    for token, _, at in lines:
        times.setdefault(int(token), []).append(float(at))
    tokens = sorted(times)
    if len(tokens) < 2:
        return None
    pauses = [min(times[b]) - max(times[a]) for a, b in itertools.pairwise(tokens)]
    return max(0.0, -min(pauses))


def one(folder: Path, name: str) -> tuple[list[str], float, float]:
    """Play *name*; return violations, the overlap, and the seconds until the next agent."""
    form, act = CASES[name]
    it = Round(folder, form)
    try:
        if len(it.pids(1)) != it.processes:
            return [f"{name}: its agent never started"], 0.0, 0.0
        began = time.monotonic()
        act(it)
        second = seconds_until(lambda: it.pids(2), LONGEST_S)
        first = [pid for pid in it.pids(1) if psutil.pid_exists(pid)]
        survivors = [pid for pid in first if is_alive(psutil.Process(pid))]
        if name == "sequencer asleep":
            it.kill(signal.SIGCONT, it.holder.pid)
        ended = seconds_until(lambda: not marked(it.mark), LONGEST_S)
        together = overlap_s(pairs(it.lines))
        checks = {
            "nobody took the step over": second is not None,
            f"overlap {together} s": together == 0.0,
            f"{len(survivors)} processes of the first attempt left": not survivors,
            "the second attempt does not end": ended is not None,
        }
        took = _first_of(it, 2) - began if second is not None else 0.0
        return (
            [f"{name}: {what}" for what, holds in checks.items() if not holds],
            together or 0,
            took,
        )
    finally:
        it.close()


def _first_of(it: Round, token: int) -> float:
    return min(float(at) for of, _, at in pairs(it.lines) if int(of) == token)


def campaign(folder: Path, size: Size) -> Report:
    """Take a step over from agents that do not end: two attempts never run at once."""
    rounds, names = (1, ON_EVERY_PUSH) if size is Size.SHORT else (25, tuple(CASES))
    plan = [(number, name) for number in range(rounds) for name in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = [
            pool.submit(one, folder / f"{n}-{place}", name) for place, (n, name) in enumerate(plan)
        ]
        ended = [future.result() for future in tried]
    violations = [line for broken, _, _ in ended for line in broken]
    figures = {
        "overlap_s_max": round(max(together for _, together, _ in ended), 3),
        "next_agent_s_max": round(max(took for _, _, took in ended), 3),
    }
    return Report({"rounds": len(plan)}, tuple(violations), figures)
