"""Runs on a Temporal server of this machine, beside bare workflows on the same one.

Both sides have the same number of processes and places, and their steps do nothing: what
differs is the head, the rules and the journal.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from bench.child import Absent, Child, cpu_seconds_of
from bench.measuring import compare, rounds
from bench.result import Row, absent, capped, compared
from bench.rows import Setting

BAR = 1.3
EVENTS, BYTES = 7.0, 1_700.0
"""Of history a step, with what `status` needs to answer without a worker."""
THROUGHPUT = 0.8
"""Of the bare workflow's: so many steps in the same time."""
MEMORY_BAR = 1.05
BLOCK, SKIP = 24, 4
FEW, MANY = 100, 300
"""Steps of two runs that differ in nothing else; both fit into one execution."""
GROWTH, QUICK_GROWTH = (1_000, 5_000), (250, 500)
"""Steps of one run after which memory is measured."""
QUICK_BELOW = 10_000
MANY_RUNS, QUICK_MANY_RUNS = (200, 50, 8, 5), (24, 20, 2, 3)
"""Runs, steps of each, worker processes, and turns that share out the runs."""
PLACES = 4
"""Of each worker."""
LOOK_S = 0.2
Side = Callable[..., Child]
"""Starts a process of a side, under a name, with more arguments."""
BARE = "a bare workflow with one activity a step"


def measure(setting: Setting) -> list[Row]:
    """Return what a step costs in time and history, alone and among many, and a worker's memory."""
    try:
        from sequencer.plugins.temporal.connection import FleetOptions  # noqa: PLC0415 - an extra
        from sequencer.plugins.temporal.server import TrialServer, program  # noqa: PLC0415 - the same

        program()
    except Exception as reason:  # noqa: BLE001 - whatever is missing is the reason
        return [absent("fleet step", BARE, str(reason))]
    ports = _free_ports(2)
    options = FleetOptions("bench", f"127.0.0.1:{ports[0]}")
    try:
        with TrialServer(options, setting.folder / "server", ports[1]), ExitStack() as stack:

            def side(what: str, name: str, *more: str) -> Child:
                folder = setting.folder / name
                arguments = [what, options.address, str(folder), *more]
                log = folder.with_suffix(".log")
                return stack.enter_context(Child("bench.rows.fleet_child", arguments, log))

            sides = {what: side(what, what) for what in ("ours", "bare")}
            found = [*_rows(setting, sides), _memory(setting, sides["ours"])]
            for one in sides.values():
                one.close()
            return [*found, *_throughput(setting, side)]
    except Absent as reason:
        return [absent("fleet step", BARE, str(reason))]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _rows(setting: Setting, sides: dict[str, Child]) -> list[Row]:
    found: dict[str, dict[str, list[float]]] = {what: {"wall": [], "cpu": []} for what in sides}
    for number in rounds(setting.effort.seconds):
        answers = {what: side.ask(_steps(BLOCK)) for what, side in sides.items()}
        if number == 0:
            continue  # imports, and a server that is new
        for what, answer in answers.items():
            for clock, values in found[what].items():
                values.append(statistics.median(answer[clock]))
    return [*_compared(found), *_history(sides["ours"])]


def _steps(count: int) -> dict[str, Any]:
    return {"call": "made", "count": count, "skip": SKIP}


def _compared(found: dict[str, dict[str, list[float]]]) -> list[Row]:
    rows = []
    for name, clock, bar in (("fleet step", "wall", BAR), ("fleet step CPU", "cpu", None)):
        comparison = compare(found["ours"][clock], found["bare"][clock])
        rows.append(compared(name, comparison, against=BARE, unit="ms", scale=1e3, bar=bar))
    return rows


def _history(ours: Child) -> list[Row]:
    few, many = (ours.ask(_steps(count)) for count in (FEW, MANY))

    def each(what: str) -> float:
        return float((many[what] - few[what]) / (MANY - FEW))

    note = f"between runs of {FEW} and of {MANY} steps"
    return [
        capped("fleet events a step", each("events"), EVENTS, "events", note),
        capped("fleet bytes a step", each("bytes"), BYTES, "bytes", note),
    ]


def _memory(setting: Setting, ours: Child) -> Row:
    early, late = QUICK_GROWTH if _is_quick(setting) else GROWTH
    found: dict[str, Any] = ours.ask({"call": "grown", "early": early, "late": late})
    before, after = found[str(early)], found[str(late)]
    return Row(
        name="fleet memory",
        value=after["own"],
        unit="MB",
        against=f"after {early:,}",
        against_value=before["own"],
        ratio=after["own"] / before["own"],
        bar=MEMORY_BAR,
        note=f"of its own, after {late:,} steps of one run; {after['all']:.0f} MB with what is "
        "shared",
    )


def _is_quick(setting: Setting) -> bool:
    return setting.effort.growth_steps < QUICK_BELOW


# --- many runs on few workers ------------------------------------------------------


class Crowd:
    """A client of one side, and its workers, each a process."""

    def __init__(self, side: Side, what: str, workers: int) -> None:
        """Start them with *side*, which is given names and arguments."""
        self._client = side(what, f"{what}-client")
        self._workers = [
            side(what, f"{what}-worker-{number}", str(PLACES)) for number in range(workers)
        ]
        self._read = [0] * workers

    def made(self, runs: int, count: int) -> tuple[float, float]:
        """Make so many runs of *count* steps; return wall and CPU seconds a step."""
        before = self._cpu()
        self._client.ask({"call": "started", "runs": runs, "count": count})
        begun: list[float] = []
        while len(begun) < runs * count:
            time.sleep(LOOK_S)
            for number, worker in enumerate(self._workers):
                new = worker.ask({"call": "begun", "after": self._read[number]})["begun"]
                self._read[number] += len(new)
                begun += new
        return (max(begun) - min(begun)) / len(begun), (self._cpu() - before) / len(begun)

    def _cpu(self) -> float:
        return sum(cpu_seconds_of(one.pid) for one in (self._client, *self._workers))


def _throughput(setting: Setting, side: Side) -> list[Row]:
    runs, count, workers, turns = QUICK_MANY_RUNS if _is_quick(setting) else MANY_RUNS
    crowds = {what: Crowd(side, what, workers) for what in ("ours", "bare")}
    for crowd in crowds.values():
        crowd.made(workers, 2 * SKIP)  # imports
    found: dict[str, list[tuple[float, float]]] = {what: [] for what in crowds}
    for _ in range(turns):
        for what, crowd in crowds.items():
            found[what].append(crowd.made(runs // turns, count))
    note = f"{runs} runs of {count} steps, {workers} workers of {PLACES} places on each side"
    return [
        compared(
            name,
            compare(*([one[clock] for one in found[what]] for what in ("ours", "bare"))),
            against=BARE,
            unit="ms",
            scale=1e3,
            bar=bar,
            note=note,
        )
        for clock, (name, bar) in enumerate(
            (("fleet many runs, step", 1 / THROUGHPUT), ("fleet many runs, CPU of a step", None))
        )
    ]
