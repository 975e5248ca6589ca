"""Agents that do not want to end, and sequencers that end without a word.

Every process of an agent has the round's mark on its command line or is a descendant that
was seen before, so that a survivor is found whatever it did to its parents and sessions.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.acceptance.cli_process import launched
from tests.long.report import Report, Size

TIMEOUT_S, GRACE_S, GONE_S = 1.5, 5.0, 8.0
ORPHAN_S = 2.0
LOOK_EVERY_S = 0.02
"""A look at all processes of a machine, or at all that agents have written, takes a while."""
SEED = 20_261_122

_DEAF = """
import os, signal, sys, time
mark, ready = sys.argv[1:3]
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
def up():
    open(ready, "a").close()
"""
AGENTS = {
    # Ignores what it can; a grandchild in another session holds its stdout.
    "deaf": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import signal, time\\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
            "open(%r, 'a').close()\\ntime.sleep(300)" % ready, mark])
    os._exit(0)
print("started", flush=True)
time.sleep(300)
""",
    # Each process lives a moment, forks its successor in a session of its own, and exits.
    "hopping": """
for hop in range(100_000):
    if os.fork():
        if hop == 0:
            time.sleep(300)
        os._exit(0)
    os.setsid()
    if hop == 5:
        up()
    time.sleep(0.002)
""",
    # A stopped process takes no TERM, and its child waits for it.
    "stopped": """
if os.fork() == 0:
    os.setpgid(0, 0)
    up()
    os.kill(os.getpid(), signal.SIGSTOP)
os.wait()
time.sleep(300)
""",
    # Keeps its own orphans, and each TERM makes one more.
    "keeping": """
import ctypes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
def more(*_):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            time.sleep(300)
signal.signal(signal.SIGTERM, more)
more()
up()
while True:
    time.sleep(300)
""",
    # Closes everything, so that nothing is to be read from it.
    "mute": """
os.closerange(0, 1024)
up()
if os.fork() == 0:
    os.setsid()
time.sleep(300)
""",
}


def script(form: str) -> str:
    """Return the program of the agent *form*; its arguments are a mark and a file to make."""
    return _DEAF + AGENTS[form]


def project(folder: Path, form: str, mark: str, **step: float) -> Path:
    """Write a project whose only step runs the agent *form*; return the agent's ready file."""
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "main.md").write_text("Do not end.\n")
    (folder / "agent.py").write_text(script(form))
    ready = folder / "ready"
    argv = ["{python}", "agent.py", mark, str(ready)]
    document = {
        "workflow": {"name": "w"},
        "workflows": {"w": {"steps": [{"name": "main", "agent": "agent", **step}]}},
        "agents": {"agent": {"kind": "command", "argv": argv, "grace_s": GRACE_S}},
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    return ready


def start(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "said").open("wb") as said:
        return launched(folder, "run", "--max-steps=1", "--quiet", stderr=said)


def marked(mark: str) -> set[int]:
    """Return the processes with *mark* on their command line, zombies aside."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "cmdline").read_bytes():
                found.add(int(process.name))
        except OSError:
            continue
    return found


def below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def seconds_until(condition: Callable[[], object], limit_s: float) -> float | None:
    """Return how long it took for *condition* to hold, or None after *limit_s*."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > limit_s:
            return None
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - started


def end_all(mark: str, seen: list[psutil.Process]) -> None:
    """End what a round left behind, so that it disturbs no other round."""
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)
    for process in filter(is_alive, seen):
        process.kill()


# --- the agent does not end --------------------------------------------------------


def outlast(folder: Path, form: str) -> tuple[list[str], float]:
    """Let the agent *form* run into its time limit; return violations and seconds."""
    mark = f"stubborn-{uuid.uuid4()}"
    ready = project(folder, form, mark, timeout_s=TIMEOUT_S)
    with start(folder) as sequencer:
        if seconds_until(ready.exists, 30) is None:
            sequencer.kill()
            end_all(mark, [])
            return [f"{form}: its agent never started"], 0.0
        started, seen = time.monotonic(), below(sequencer.pid)
        code = sequencer.wait(60)
        gone = seconds_until(lambda: not marked(mark) and not any(map(is_alive, seen)), 5)
    seconds = time.monotonic() - started
    head = json.loads((folder / "sync" / "state.json").read_text())
    checks = {
        "survivors": gone is not None,
        f"took {seconds:.1f} s": seconds < GONE_S,
        f"exit code {code}": code == 1,
        f"status {head['status']}": (head["status"], head["step_index"]) == ("failed", 0),
    }
    end_all(mark, seen)
    return [f"{form}: {what}" for what, holds in checks.items() if not holds], seconds


def stubborn(folder: Path, size: Size) -> Report:
    """Run each agent into its time limit, five at a time: they mostly sleep."""
    rounds = 8 if size is Size.LONG else 1
    violations: list[str] = []
    slowest = 0.0
    with ThreadPoolExecutor(len(AGENTS)) as pool:
        for number in range(rounds):
            tried = {f: pool.submit(outlast, folder / f"{number}-{f}", f) for f in AGENTS}
            for found in tried.values():
                broken, seconds = found.result()
                violations += broken
                slowest = max(slowest, seconds)
    return Report({"rounds": rounds * len(AGENTS)}, tuple(violations), {"gone_s_max": slowest})


# --- the sequencer is gone ---------------------------------------------------------


def orphan(folder: Path, form: str, delay_s: float | None) -> tuple[list[str], float]:
    """SIGKILL a sequencer *delay_s* after its start, or (None) when its agent is at work."""
    mark = f"orphan-{uuid.uuid4()}"
    ready = project(folder, form, mark)
    with start(folder) as sequencer:
        if delay_s is None:
            seconds_until(ready.exists, 30)
        else:
            time.sleep(delay_s)
        # Two looks: a guard that is just being started is a child without a command line.
        seen = below(sequencer.pid)
        sequencer.kill()
        killed = time.monotonic()
        sequencer.wait()
    where = "at work" if delay_s is None else f"after {delay_s:.3f} s"
    if delay_s is None and len(seen) < 2:
        return [f"{form} {where}: its agent never started"], 0.0
    gone = seconds_until(
        lambda: not any(map(is_alive, seen)) and not marked(mark), max(ORPHAN_S * 2, 5)
    )
    seconds = time.monotonic() - killed
    left = [p.name() for p in seen if is_alive(p)]
    end_all(mark, seen)
    if gone is None or seconds > ORPHAN_S:
        return [f"{form} {where}: {left or 'all'} gone after {seconds:.2f} s"], seconds
    return [], seconds


def orphans(folder: Path, size: Size) -> Report:
    """Kill sequencers with agents at work, and at any moment of their start."""
    chance = random.Random(SEED)  # noqa: S311 - no secret
    rounds = 50 if size is Size.LONG else 1
    plan: list[tuple[str, float | None]] = []
    for number in range(rounds):
        plan += [(form, None) for form in AGENTS] if number % 2 == 0 else []
        plan += [("deaf", chance.uniform(0.1, 0.7)), ("hopping", chance.uniform(0.1, 0.7))]
    with ThreadPoolExecutor(3) as pool:
        tried = [pool.submit(orphan, folder / str(number), *one) for number, one in enumerate(plan)]
        ended = [one.result() for one in tried]
    violations = [line for broken, _ in ended for line in broken]
    took = sorted(seconds for _, seconds in ended)
    figures = {"gone_s_p99": took[int(len(took) * 0.99)], "gone_s_max": took[-1]}
    return Report({"kills": len(plan)}, tuple(violations), figures)
