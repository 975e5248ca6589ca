"""Holders that are killed, out of reach or asleep, and workers in sync mode that wait for them."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sequencer import Claim, InvocationLimits, Mode, Owner, Run, events
from sequencer.errors import StaleClaim
from tests.concurrency import children
from tests.contract import store_cases as cases
from tests.long.report import Report, Size
from tests.unit.engine.projects import OK, head_of, reopen, write_project

P99_S = 1.0
"""Bar of a take-over from a holder that is proven dead."""
LEASE_S = 1.2
WAITING = 3
"""Workers that wait, besides the one that is killed."""
AT_ONCE = 10


@dataclass
class Noting:
    """Writes down when a claim was begun, and when waiting was."""

    folder: Path

    def __call__(self, event: events.RunEvent) -> None:
        if isinstance(event, events.AttemptStarted):
            attempt = event.attempt
            children.append(
                self.folder / "begun", f"{attempt.token} {os.getpid()} {time.monotonic()}"
            )
        elif isinstance(event, events.Waiting):
            children.append(self.folder / "waiting", f"{os.getpid()} {time.monotonic()}")


def work(folder: Path) -> None:
    """Work in sync mode, as a terminal does."""
    limits = InvocationLimits(max_steps=None)
    reopen(folder).work(Mode.SYNC, limits, on_event=Noting(folder))


def lines(path: Path, least: int, seconds: float = 30.0) -> list[list[str]]:
    """Return the lines of *path* once there are *least* of them."""
    deadline = time.monotonic() + seconds
    while len(found := children.pairs(path)) < least:
        assert time.monotonic() < deadline, f"{least} lines are not in {path}"
        time.sleep(0.002)
    return found


# --- killed on this machine -------------------------------------------------------------


def killed_holders(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; from SIGKILL to the start of the new claim."""
    rounds = 15 if size is Size.SHORT else 1_000
    endless = {**OK, "delay_s": 600}
    write_project(folder, endless, limits={"max_attempts": rounds + 1})
    reopen(folder).commands.begin()
    errors, waits, wrong = folder / "errors", list[float](), list[str]()
    alive = {children.start(partial(work, folder), errors) for _ in range(WAITING + 1)}
    try:
        lines(folder / "waiting", WAITING)
        for number in range(1, rounds + 1):
            token, pid, _ = lines(folder / "begun", number)[-1]
            if int(token) != number:
                wrong.append(f"round {number}: token {token}")
            killed = time.monotonic()
            os.kill(int(pid), signal.SIGKILL)
            waits.append(float(lines(folder / "begun", number + 1)[-1][2]) - killed)
            children.end([int(pid)])
            alive.remove(int(pid))
            alive.add(children.start(partial(work, folder), errors))
    finally:
        children.end(alive)
    wrong += children.wrong(errors)
    p99 = statistics.quantiles(waits, n=100)[98]
    if p99 > P99_S:
        wrong.append(f"p99 of {rounds} take-overs is {p99:.3f} s")
    figures = {"take_over_p50_s": statistics.median(waits), "take_over_p99_s": p99}
    rounded = {name: round(value, 4) for name, value in figures.items()}
    return Report({"kills": rounds}, tuple(wrong), rounded)


# --- out of reach -----------------------------------------------------------------------


def of_another_machine(_here: Owner) -> Owner:
    return cases.STRANGER


def of_another_namespace(here: Owner) -> Owner:
    return here.replace(pid=1, pid_ns="pid:[1]")


HOLDERS: dict[str, Callable[[Owner], Owner]] = {
    "another machine": of_another_machine,
    "another pid namespace": of_another_namespace,
}
"""Who holds the step, for a process that is somebody here."""


def hold(run: Run, owner: Owner, lease_s: float) -> Claim:
    """Claim the next step in the name of *owner*, who never sends a beat."""
    change = cases.on_run(lambda head: cases.granting(head, owner, lease_s))
    return run.store.update(change).claims[0]


def out_of_reach(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; the lease decides: not before it, and soon after."""
    # Long beside the time that a busy machine takes to wake a process.
    rounds, lease_s = (2, 2.0) if size is Size.SHORT else (40, 6.0)
    wrong, waits = list[str](), dict[str, list[float]]()
    for kind, holder in HOLDERS.items():
        waits[kind] = []
        for first in range(0, rounds, AT_ONCE):
            batch = range(first, min(first + AT_ONCE, rounds))
            projects = [folder / f"{kind}-{number}" for number in batch]
            waits[kind] += _lease_times(projects, holder, lease_s, wrong)
        for seconds in waits[kind]:
            if not lease_s <= seconds <= 1.5 * lease_s:
                wrong.append(f"{kind}: taken over after {seconds / lease_s:.2f} leases")
    figures = {
        f"leases_until_{kind.replace(' ', '_')}_is_gone": round(max(times) / lease_s, 3)
        for kind, times in waits.items()
    }
    return Report({"rounds": rounds * len(HOLDERS)}, tuple(wrong), figures)


def _lease_times(
    projects: list[Path], holder: Callable[[Owner], Owner], lease_s: float, wrong: list[str]
) -> list[float]:
    """Return how long the claim was believed: since it was made, or by another machine seen."""
    pids, made, has_our_boot = [], [], False
    for project in projects:
        run = reopen(write_project(project, OK, limits={"max_steps": 1}))
        run.commands.begin()
        made.append(time.monotonic())
        here = run.store.owner()
        owner = hold(run, holder(here), lease_s).owner
        has_our_boot = owner.boot_id == here.boot_id
        pids.append(children.start(partial(work, project), project / "errors"))
    waits = []
    try:
        for project, since in zip(projects, made, strict=True):
            began = float(lines(project / "begun", 1)[0][2])
            seen = float(lines(project / "waiting", 1)[0][1])
            waits.append(began - (since if has_our_boot else seen))
            wrong += children.wrong(project / "errors")
    finally:
        children.end(pids)
    return waits


# --- asleep -----------------------------------------------------------------------------


def asleep(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; SIGSTOP past the lease, then SIGCONT."""
    rounds = AT_ONCE if size is Size.SHORT else 100
    wrong: list[str] = []
    for first in range(0, rounds, AT_ONCE):
        projects = [folder / str(number) for number in range(first, first + AT_ONCE)]
        _let_sleep(projects, wrong)
    return Report({"rounds": rounds}, tuple(wrong))


def _let_sleep(projects: list[Path], wrong: list[str]) -> None:
    """Stop a worker in each of *projects*, do its step instead, and let it go on."""
    said = ["sh", "-c", "echo too late; exec sleep 600"]
    agent: dict[str, Any] = {"late": {"kind": "command", "argv": said}}
    pids = []
    for project in projects:
        write_project(project, agents=agent, agent={"default": "late"}, store={"ttl_s": LEASE_S})
        pids.append(children.start(partial(_come_too_late, project), project / "errors"))
    try:
        for project in projects:
            # The agent has spoken: there is something to keep.
            _until(partial(_is_in_a_log, project, b"too late\n"))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(LEASE_S * 1.05)
        for project in projects:
            store = reopen(project).store
            cases.commit(store, cases.claim(store).token, note="in time")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        for project in projects:
            _until(partial(_has_said, project / "said"))
            wrong += _not_refused(project)
    finally:
        children.end(pids)


def _has_said(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def _come_too_late(project: Path) -> None:
    try:
        reopen(project).work(Mode.TICK)
    except StaleClaim:
        children.append(project / "said", "stale")
    else:
        children.append(project / "said", "accepted")


def _not_refused(project: Path) -> list[str]:
    run, name = reopen(project), project.name
    said, wrong = (project / "said").read_text().strip(), list(children.wrong(project / "errors"))
    accepted = [f["outcome"]["output"] for f in run.history() if f["event"] == "succeeded"]
    if said != "stale" or accepted != ["in time"] or head_of(run).step_index != 1:
        wrong.append(f"round {name}: {said}, accepted {accepted}")
    kept = [path.read_text() for path in project.glob("sync/results/*-1-*/output.txt")]
    if kept != ["too late"]:
        wrong.append(f"round {name}: kept is {kept}")
    return wrong


def _is_in_a_log(project: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in project.glob("logs/**/*.log"))


def _until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)
