"""Graph runs whose processes are killed, whose head is deleted or cut, and that many share."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sequencer import Mode
from sequencer.errors import ClaimHeld
from sequencer.model.graph import record as flow_record
from tests.concurrency import children, flow_runs
from tests.concurrency.flow_runs import Flow
from tests.long.report import Report, Size

LIMIT_S = 60.0
GONE_S = 5.0
"""In which the agents of a killed process have to be gone."""


def campaign(folder: Path, size: Size) -> Report:
    """SIGKILL to a flow's processes, ten times a run; heads deleted or cut; several at one run."""
    runs, kills_a_run = (1, 4) if size is Size.SHORT else (60, 10)
    kills, wrong = 0, list[str]()
    for seed in range(runs):
        for spoil in (leave_alone, spoil_head):
            made, found = killed(folder / f"{seed}-{spoil.__name__}", seed, spoil, kills_a_run)
            kills += made
            wrong += [f"seed {seed}, {spoil.__name__}: {text}" for text in found]
    shared = 1 if size is Size.SHORT else 20
    for seed in range(shared):
        wrong += [f"shared, {seed}: {text}" for text in share(folder / f"shared-{seed}", 3, 12)]
    wrong += [f"two ticks: {text}" for text in two_ticks(folder / "ticks")]
    return Report({"kills": kills, "runs": 2 * runs + shared}, tuple(wrong))


# --- kills -----------------------------------------------------------------------------


def leave_alone(flow: Flow, dice: random.Random) -> None:
    del flow, dice


def spoil_head(flow: Flow, dice: random.Random) -> None:
    """Delete the head's file, or cut it anywhere."""
    path = flow.sync / "state.json"
    if not path.exists():
        return
    if dice.random() < 0.4:
        path.unlink()
    else:
        # It may be empty already: a process that was killed has not restored it.
        data = path.read_bytes()
        path.write_bytes(data[: dice.randrange(len(data) or 1)])


def killed(
    folder: Path, seed: int, spoil: Callable[[Flow, random.Random], None], kills: int
) -> tuple[int, list[str]]:
    """Kill process after process of one flow; return how many, and what was wrong at the end."""
    dice = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    # Half of the runs have a marking that is too large for the head, half one that is often
    # written anew.
    markers = 0 if (in_documents := (seed + (spoil is spoil_head)) % 2 == 1) else 120
    flow, errors = flow_runs.lanes(folder, 8, 0.04, markers), folder / "errors"
    made, wrong = 0, list[str]()
    while made < kills and not errors.exists():
        child = children.start(partial(_work_alone, flow, in_documents=in_documents), errors)
        # Only then is there a group to kill.
        while os.getpgid(child) != child:
            time.sleep(0.001)
        time.sleep(0.03 + dice.random() * 0.25)
        if children.ended([child]):
            break
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        made += 1
        wrong += _left_behind(flow)
        spoil(flow, dice)
    child = children.start(partial(_work_alone, flow, in_documents=in_documents), errors)
    deadline = time.monotonic() + LIMIT_S
    while not children.ended([child]):
        if time.monotonic() > deadline:
            children.end([child])
            wrong.append("it does not end")
            break
        time.sleep(0.01)
    return made, [*wrong, *children.wrong(errors), *flow_runs.violations(flow), *_left_behind(flow)]


def _work_alone(flow: Flow, *, in_documents: bool = False) -> None:
    if os.getpid() != os.getsid(0):
        os.setsid()
    if in_documents:
        flow_record.INLINE_ENTRIES = 3
        flow_record.SINCE_BYTES = 120
        flow_record.SHORTEST_CHAIN = 20
    flow.work()


def _left_behind(flow: Flow) -> list[str]:
    """Return the agents that outlive their process; they have a moment."""
    deadline = time.monotonic() + GONE_S
    while (agents := flow.agents()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [f"agents are left behind: {agents}"] if agents else []


# --- several processes -----------------------------------------------------------------


def share(folder: Path, processes: int, width: int) -> list[str]:
    """Let *processes* work on one fan-out at once; nobody is killed, so nothing is begun twice.

    No agent ends before one that the first process had no place for has begun.
    """
    flow, errors = flow_runs.fan(folder, width, 0.03), folder / "errors"
    flow.hold(*flow.nodes[1:-1])
    flow.run().commands.begin()
    pids = {children.start(partial(_work_noted, flow), errors) for _ in range(processes)}
    deadline = time.monotonic() + LIMIT_S
    left = set(pids)
    while left and time.monotonic() < deadline:
        if len(flow.began()) > 1 + flow_runs.PLACES:
            flow.let_go()
        left -= children.ended(left)
        time.sleep(0.005)
    children.end(left)
    wrong = [f"{len(left)} did not end"] if left else []
    shares = [int(steps) for (steps,) in children.pairs(folder / "shares")]
    if sum(shares) != len(flow.nodes) or sum(map(bool, shares)) < 2:
        wrong.append(f"the shares of {processes} processes are {shares}")
    return [*wrong, *children.wrong(errors), *flow_runs.violations(flow, may_be_again=False)]


def _work_noted(flow: Flow) -> None:
    steps = flow.work().steps
    children.append(flow.folder / "shares", str(steps))


def two_ticks(folder: Path) -> list[str]:
    """Let two ticks meet at one node; the second must leave no trace."""
    flow, errors = flow_runs.fan(folder, 2, 0.0), folder / "errors"
    flow.hold("s")
    flow.run().commands.begin()
    child = children.start(lambda: flow.work(Mode.TICK), errors)
    deadline = time.monotonic() + LIMIT_S
    while not flow.began() and time.monotonic() < deadline:
        time.sleep(0.01)
    before = (flow.sync / "state.json").read_bytes()
    wrong = []
    try:
        flow.work(Mode.TICK)
        wrong.append("the second tick has worked")
    except ClaimHeld:
        pass
    if (flow.sync / "state.json").read_bytes() != before:
        wrong.append("the second tick has changed the head")
    flow.let_go()
    os.waitpid(child, 0)
    head = flow.run().head
    if head is None or head.usage.steps != 1 or len(flow.began()) != 1:
        wrong.append(f"after one tick: {head}")
    return [*wrong, *children.wrong(errors)]
