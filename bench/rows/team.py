"""Teams: how far a run is from its critical path, and what a task costs beside the peers.

Runs that are compared with each other are made in turns. Only LangGraph keeps a run over
the death of its process, as we do; Dask keeps everything in memory.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

from bench.child import Absent, Child
from bench.disk import in_memory, undisturbed
from bench.flows import PLACES
from bench.layers import SLEEPERS_PLACES, earliest, sleepers
from bench.measuring import Comparison, compare, rounds
from bench.result import Row, absent, compared
from bench.rows import Setting
from bench.rows.flow import BYTES_A_NODE, QUICK_BELOW
from bench.rows.step import started

MAKESPAN_BAR = 1.05
LINEAR_BAR = 1.2
PROCESSES = 3
"""That share a run of sleepers, each with a part of the places."""
MANY, FEW = 2_000, 250
QUICK_MANY = 1_000
BESIDE = 1_000
"""Tasks of a run that is compared with the peers."""
LONGEST_S, QUICK_LONGEST_S = 12.0, 2.0
ALONE, SHARED = "alone", "shared"
THREADS = "dask threads"


def measure(setting: Setting) -> list[Row]:
    """Return the rows of the schedule, of growing graphs, and of the peers."""
    rows: list[Row] = []
    try:
        rows += _makespans(setting)
        rows += _linear(setting)
        if setting.with_peers:
            rows += _beside(setting)
    except Absent as reason:
        rows.append(absent("team", "its critical path", str(reason)))
    return rows


def _is_quick(setting: Setting) -> bool:
    return setting.effort.growth_steps < QUICK_BELOW


def _seconds(setting: Setting) -> float:
    return min(setting.effort.seconds, QUICK_LONGEST_S if _is_quick(setting) else LONGEST_S)


# --- the schedule ------------------------------------------------------------------------


def _makespans(setting: Setting) -> list[Row]:
    folder = undisturbed(setting.folder, "sleepers") / "project"
    wall: dict[str, list[float]] = {ALONE: [], SHARED: []}
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(
                    "bench.rows.team_child", [str(folder), "warm"], setting.folder / f"{number}.log"
                )
            )
            for number in range(PROCESSES)
        ]
        for number in rounds(_seconds(setting), minimum=1):
            wall[ALONE].append(_slept(children[:1], f"alone-{number}"))
            wall[SHARED].append(_slept(children, f"shared-{number}"))
    blockers, seconds = sleepers()
    path = max(end for _, end in earliest(blockers, seconds).values())
    size = f"{len(seconds)} tasks that sleep 50 to 400 ms, {SLEEPERS_PLACES} places"
    notes = {ALONE: f"wall; {size}", SHARED: f"wall; the same, {PROCESSES} processes"}
    names = {ALONE: "team makespan", SHARED: "team makespan shared"}
    return [
        compared(
            names[what],
            compare(found, [path] * len(found)),
            against="its critical path",
            unit="ms",
            scale=1e3,
            # Three processes on two cores say more about the cores than about the schedule.
            bar=MAKESPAN_BAR if what == ALONE else None,
            note=notes[what],
        )
        for what, found in wall.items()
    ]


def _slept(children: list[Child], name: str) -> float:
    """Let *children* share a run; return the time from its beginning to the last task's end."""
    request = {"do": "sleep", "name": name, "places": SLEEPERS_PLACES // len(children)}
    for child in children:
        child.tell(request)
    answers = [child.hear() for child in children]
    done = [entry for answer in answers for entry in answer["done"]]
    if sorted(task for task, _ in done) != sorted(sleepers()[1]):
        raise Absent("a task was done twice, or not at all")
    began = min(answer["began"] for answer in answers)
    if len(children) == 1:
        return float(answers[0]["ended"] - began)
    # The processes end when they have seen that nothing is left; nobody waits for that.
    return float(max(at for _, at in done) - began)


# --- what a task costs -------------------------------------------------------------------


def _linear(setting: Setting) -> list[Row]:
    many = QUICK_MANY if _is_quick(setting) else MANY
    large: list[float] = []
    small: list[float] = []
    log = setting.folder / "linear.log"
    with (
        in_memory(setting.folder, many * BYTES_A_NODE) as (folder, is_memory),
        Child("bench.rows.team_child", [str(folder / "project"), "warm"], log) as child,
    ):
        for _ in rounds(_seconds(setting), minimum=1):
            # Around each large run, because the machine may change while it goes on.
            around = [_cpu(child, FEW) for _ in range(2)]
            large.append(_cpu(child, many))
            around += [_cpu(child, FEW) for _ in range(2)]
            small.append(statistics.median(around))
    where = "in memory" if is_memory else "on disk"
    return [
        compared(
            "team linear",
            compare(large, small),
            against=f"a task of {FEW:,}",
            unit="ms",
            scale=1e3,
            bar=LINEAR_BAR,
            note=f"CPU; {many:,} tasks, {PLACES} at once, {where}",
        )
    ]


def _cpu(child: Child, tasks: int) -> float:
    return float(child.ask({"do": "run", "tasks": tasks})["cpu"])


def _beside(setting: Setting) -> list[Row]:
    """Return a task of runs on the disk beside those of the peers."""
    folder, log = undisturbed(setting.folder, "beside"), setting.folder / "beside.log"
    missing: list[Row] = []
    with ExitStack() as stack:
        arguments = [str(folder / "project"), "warm"]
        ours = stack.enter_context(Child("bench.rows.team_child", arguments, log))
        peers: dict[str, Child] = {}
        for peer in ("langgraph", "dask"):
            try:
                peers[peer] = stack.enter_context(started(setting, peer, "team"))
            except Absent as reason:
                missing.append(absent(f"team vs {peer}", peer, str(reason)))
        found = _turns(setting, ours, peers) if peers else {}
        what = {peer: str(child.greeting["what"]) for peer, child in peers.items()}
    rows = []
    if "langgraph" in what:
        rows += _against(found, "langgraph", what["langgraph"])
    if "dask" in what:
        rows += _against(found, "dask", f"{what['dask']}: distributed")
        rows += _against(found, THREADS, f"{what['dask']}: threaded.get")
    return rows + missing


def _turns(
    setting: Setting, ours: Child, peers: dict[str, Child]
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ("ours", *peers, THREADS)}
    for number in rounds(setting.effort.seconds, minimum=4):
        # Files that are removed here would make the next ones dearer, see `bench.disk`.
        answers = {"ours": ours.ask({"do": "run", "tasks": BESIDE, "is_kept": True})}
        answers |= {name: child.ask({"count": BESIDE}) for name, child in peers.items()}
        if "dask" in peers:
            answers[THREADS] = peers["dask"].ask({"count": BESIDE, "how": "threads"})
        if number == 0:
            continue  # graphs are made, and first files
        for name, answer in answers.items():
            found[name].append(answer)
    return found


def _against(found: dict[str, list[dict[str, Any]]], peer: str, what: str) -> list[Row]:
    note = f"a task of {BESIDE:,}, {PLACES} at once"
    return [
        compared(
            f"team vs {peer}{' wall' * (key == 'wall')}",
            _compared(found["ours"], found[peer], key),
            against=what,
            unit="ms",
            scale=1e3,
            bar=1.0 if (peer, key) == ("langgraph", "cpu") else None,
            note=f"{'CPU' if key == 'cpu' else 'wall time'}; {note}",
        )
        for key in ("cpu", "wall")
    ]


def _compared(ours: list[dict[str, Any]], other: list[dict[str, Any]], key: str) -> Comparison:
    return compare([one[key] for one in ours], [one[key] for one in other])
