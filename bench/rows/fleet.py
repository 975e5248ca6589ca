"""Runs on a Temporal server of this machine, beside bare workflows on the same one.

Both sides have one worker in a process of its own, and their steps do nothing: what differs
is the head, the rules and the journal.
"""

from __future__ import annotations

import socket
import statistics
from contextlib import ExitStack
from typing import Any

from bench.child import Absent, Child
from bench.measuring import compare, rounds
from bench.result import Row, absent, capped, compared
from bench.rows import Setting

BAR = 1.3
EVENTS, BYTES = 7.0, 1_700.0
"""Of history a step, with what `status` needs to answer without a worker."""
MEMORY_BAR = 1.1
BLOCK, SKIP = 24, 4
FEW, MANY = 100, 300
"""Steps of two runs that differ in nothing else; both fit into one execution."""
LONG, QUICK_LONG = 5_000, 200
QUICK_BELOW = 10_000
BARE = "a bare workflow with one activity a step"


def measure(setting: Setting) -> list[Row]:
    """Return what a step costs in time and in history, and how the memory of a worker grows."""
    try:
        from sequencer.fleet.connection import FleetOptions  # noqa: PLC0415 - an extra
        from sequencer.fleet.server import TrialServer, program  # noqa: PLC0415 - the same

        program()
    except Exception as reason:  # noqa: BLE001 - whatever is missing is the reason
        return [absent("fleet step", BARE, str(reason))]
    ports = _free_ports(2)
    options = FleetOptions("bench", f"127.0.0.1:{ports[0]}")
    try:
        with TrialServer(options, setting.folder / "server", ports[1]), ExitStack() as stack:
            sides = {
                what: stack.enter_context(_side(setting, what, options.address))
                for what in ("ours", "bare")
            }
            return _rows(setting, sides)
    except Absent as reason:
        return [absent("fleet step", BARE, str(reason))]


def _side(setting: Setting, what: str, address: str) -> Child:
    arguments = [what, address, str(setting.folder / what)]
    return Child("bench.rows.fleet_child", arguments, setting.folder / f"{what}.log")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _rows(setting: Setting, sides: dict[str, Child]) -> list[Row]:
    found: dict[str, dict[str, list[float]]] = {what: {"wall": [], "cpu": []} for what in sides}
    for number in rounds(setting.effort.seconds):
        request = {"count": BLOCK, "skip": SKIP}
        answers = {what: side.ask(request) for what, side in sides.items()}
        if number == 0:
            continue  # imports, and a server that is new
        for what, answer in answers.items():
            for clock, values in found[what].items():
                values.append(statistics.median(answer[clock]))
    return [*_compared(found), *_history(sides["ours"]), _memory(setting, sides["ours"])]


def _compared(found: dict[str, dict[str, list[float]]]) -> list[Row]:
    rows = []
    for name, clock, bar in (("fleet step", "wall", BAR), ("fleet step CPU", "cpu", None)):
        comparison = compare(found["ours"][clock], found["bare"][clock])
        rows.append(compared(name, comparison, against=BARE, unit="ms", scale=1e3, bar=bar))
    return rows


def _history(ours: Child) -> list[Row]:
    few, many = (ours.ask({"count": count, "skip": SKIP}) for count in (FEW, MANY))

    def each(what: str) -> float:
        return float((many[what] - few[what]) / (MANY - FEW))

    note = f"between runs of {FEW} and of {MANY} steps"
    return [
        capped("fleet events a step", each("events"), EVENTS, "events", note),
        capped("fleet bytes a step", each("bytes"), BYTES, "bytes", note),
    ]


def _memory(setting: Setting, ours: Child) -> Row:
    is_quick = setting.effort.growth_steps < QUICK_BELOW
    steps = QUICK_LONG if is_quick else LONG
    before: dict[str, Any] = ours.ask({"count": FEW, "skip": SKIP})
    after: dict[str, Any] = ours.ask({"count": steps, "skip": SKIP})
    return Row(
        name="fleet memory",
        value=after["memory_mb"],
        unit="MB",
        against="before them",
        against_value=before["memory_mb"],
        ratio=after["memory_mb"] / before["memory_mb"],
        bar=MEMORY_BAR,
        note=f"highest of the worker, after {steps:,} steps of one run",
    )
