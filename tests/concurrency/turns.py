"""Many processes that may all take every step: who gets a claim, and whose turn it is.

Twice: all of them after the same claim at the same instant, straight on the store; and as
workers in sync mode that take turns, where each should have as many as the others.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psutil

from sequencer import FileStore, InvocationLimits, Mode, events
from sequencer.errors import ClaimHeld
from tests.concurrency import children
from tests.contract import store_cases as cases
from tests.long.report import Report, Size
from tests.unit.engine.projects import OK, head_of, reopen, write_project

FAIR = 5.0
"""How many times the turns of the one with the fewest anybody may have."""
LIMIT_S = 600.0


# --- one claim, many hands --------------------------------------------------------------


def race(folder: Path, rounds: int, barrier: Barrier) -> None:
    """Try to get each claim at the same instant as the others."""
    store = FileStore(folder / "sync" / "state.json")
    for number in range(rounds):
        barrier.wait(LIMIT_S)
        try:
            token = cases.claim(store).token
        except ClaimHeld:
            children.append(folder / "lost", str(number))
            barrier.wait(LIMIT_S)
            continue
        children.append(folder / "won", f"{number} {token}")
        barrier.wait(LIMIT_S)
        cases.commit(store, token)


def same_claim(folder: Path, claimants: int, rounds: int) -> list[str]:
    """Return what was wrong with *rounds* races between *claimants* for one claim each."""
    cases.begin(FileStore(folder / "sync" / "state.json"))
    barrier = multiprocessing.get_context("fork").Barrier(claimants)
    role, errors = partial(race, folder, rounds, barrier), folder / "errors"
    _collect([children.start(role, errors) for _ in range(claimants)], errors)
    won = [(int(number), int(token)) for number, token in children.pairs(folder / "won")]
    lost = Counter(int(number) for (number,) in children.pairs(folder / "lost"))
    wrong = list(children.wrong(errors))
    wrong += [
        f"round {number}: {count} winners"
        for number in range(rounds)
        if (count := sum(1 for winner, _ in won if winner == number)) != 1
    ]
    wrong += [f"round {n}: {lost[n]} losers" for n in range(rounds) if lost[n] != claimants - 1]
    if sorted(token for _, token in won) != list(range(1, rounds + 1)):
        wrong.append(f"tokens {sorted(token for _, token in won)}")
    if (accepted := cases.check_files(folder / "sync")) != rounds:
        wrong.append(f"{accepted} steps accepted in {rounds} rounds")
    return wrong


# --- taking turns -----------------------------------------------------------------------


@dataclass
class Noting:
    """Writes down whose turn it is, and who has begun to wait."""

    folder: Path
    name: str

    def __call__(self, event: events.RunEvent) -> None:
        if isinstance(event, events.AttemptStarted):
            attempt = event.attempt
            children.append(
                self.folder / "turns", f"{attempt.step_index} {attempt.token} {self.name}"
            )
        elif isinstance(event, events.Waiting):
            children.append(self.folder / "waiting", self.name)


@dataclass(frozen=True)
class Shares:
    """How many turns each of the workers had."""

    turns: dict[str, int]
    cpu_s: float
    """What all of them used after they had begun to wait."""
    seconds: float
    wrong: tuple[str, ...]

    @property
    def unevenness(self) -> float:
        """Return how many times the fewest turns the most are."""
        fewest = min(self.turns.values())
        return max(self.turns.values()) / fewest if fewest else float("inf")


def take_turns(folder: Path, workers: int, rounds: int) -> Shares:
    """Let *workers* that may take every step take *rounds* of them, all there from the first."""
    write_project(folder, OK, limits={"max_steps": rounds + 1})
    run = reopen(folder)
    run.commands.begin()
    errors, pids = folder / "errors", []
    with run.turn():
        for number in range(workers):
            role = partial(_work, folder, f"worker-{number}")
            pids.append(children.start(role, errors))
        _until_all_wait(folder / "waiting", workers)
        began = time.monotonic()
        before = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
    earlier = _cpu_s()
    _collect(pids, errors)
    seconds, cpu_s = time.monotonic() - began, _cpu_s() - earlier - before
    counted = Counter(name for _, _, name in children.pairs(folder / "turns"))
    turns = {f"worker-{number}": counted[f"worker-{number}"] for number in range(workers)}
    wrong = list(children.wrong(errors))
    if head_of(run).step_index != rounds + 1 or cases.check_files(folder / "sync") != rounds + 1:
        wrong.append(f"at step_index {head_of(run).step_index} after {rounds + 1} steps")
    return Shares(turns, cpu_s, seconds, tuple(wrong))


def _work(folder: Path, name: str) -> None:
    limits = InvocationLimits(max_steps=None)
    reopen(folder).work(Mode.SYNC, limits, on_event=Noting(folder, name))


def _until_all_wait(notes: Path, workers: int) -> None:
    deadline = time.monotonic() + 60
    while len({name for (name,) in children.pairs(notes)}) < workers:
        assert time.monotonic() < deadline, "not everybody has begun to wait"
        time.sleep(0.02)


def _collect(pids: list[int], errors: Path) -> None:
    """Wait until all have ended; who has not by then is killed and counts as an error."""
    deadline = time.monotonic() + LIMIT_S
    left = set(pids)
    while left and time.monotonic() < deadline and not errors.exists():
        left -= children.ended(left)
        time.sleep(0.01)
    children.end(left)
    if left and not errors.exists():
        children.append(errors, f"{len(left)} of {len(pids)} did not end")


def _cpu_s() -> float:
    """Return what the children that were waited for have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- the campaign -----------------------------------------------------------------------


def herd(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`."""
    claimants, races, turns = (64, 1_000, 1_000) if size is Size.LONG else (12, 2, 36)
    wrong = same_claim(folder / "race", claimants, races)
    shares = take_turns(folder / "turns", claimants, turns)
    wrong += shares.wrong
    if shares.unevenness > FAIR:
        wrong.append(f"turns {sorted(shares.turns.values())}")
    return Report(
        {"rounds": races + turns, "claimants": claimants},
        tuple(wrong),
        {
            "most_turns_by_fewest": round(shares.unevenness, 2),
            "cpu_ms_a_turn": round(shares.cpu_s * 1e3 / turns, 2),
            "ms_a_turn": round(shares.seconds * 1e3 / turns, 2),
        },
    )
