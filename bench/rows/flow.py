"""Flowcharts: reading one, scheduling its nodes, and whole runs of fans, small and large.

A fan has one node, then many that run at eight a time, then one that joins them all.
Runs that are compared with each other are made in turns, by one child process.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

from bench.child import Absent, Child
from bench.disk import in_memory, undisturbed
from bench.flows import PLACES, chart, document
from bench.measuring import Comparison, compare, quartiles, rounds
from bench.result import Row, absent, capped, compared
from bench.rows import Setting
from bench.rows.step import started
from sequencer.workflows.flowfile.reader import load_flow
from sequencer.workflows.mermaid.parser import read_chart

PARSE_CAP_MS = 1.0
SCHEDULING_CAP_US = 25.0
LINEAR_BAR = 1.2
HEAD_BAR = 1.05
HEAD_CAP = 4096
"""Bytes of the head without its claims."""
MANY, FEW = 10_000, 1_000
QUICK_MANY, QUICK_FEW = 1_000, 100
QUICK_BELOW = 10_000
"""Steps of the long run; with fewer the large fan is smaller as well."""
BESIDE = 200
"""Nodes of a run that is compared with a cycle's steps and with the peer."""
LONGEST_S = 3.0
BYTES_A_NODE = 40_000
"""What a node of a run takes in memory: its log, and its share of the journal."""
RUN, CYCLE = "run", "cycle"


def measure(setting: Setting) -> list[Row]:
    """Return the rows of reading, scheduling and running flowcharts."""
    rows = _reading(setting)
    log = setting.folder / "child.log"
    is_quick = setting.effort.growth_steps < QUICK_BELOW
    many, few = (QUICK_MANY, QUICK_FEW) if is_quick else (MANY, FEW)
    try:
        with (
            in_memory(setting.folder, many * BYTES_A_NODE) as (folder, is_memory),
            Child("bench.rows.flow_child", [str(folder / "project")], log) as child,
        ):
            rows += _scheduling(setting, child, many)
            rows += _large(setting, child, (many, few), "in memory" if is_memory else "on disk")
        rows += _beside(setting)
    except Absent as reason:
        rows.append(absent("flow", "a cycle's step", str(reason)))
    return rows


def _reading(setting: Setting) -> list[Row]:
    text, seconds = chart(), min(setting.effort.seconds, LONGEST_S)
    file = setting.folder / "bench.md"
    file.write_text(document(), encoding="utf-8")
    scanned = read_chart(text)
    size = f"{len(scanned.nodes)} nodes, {len(scanned.edges)} edges"
    alone, whole = [], []
    for _ in rounds(seconds):
        alone.append(_cpu_of(lambda: read_chart(text)))
        whole.append(_cpu_of(lambda: load_flow(file)))
    return [
        capped(
            "flow parse",
            min(alone) * 1e3,
            PARSE_CAP_MS,
            "ms",
            f"{_best_of(alone, 1e3, 'ms')}; {size}",
        ),
        compared(
            "flow file",
            compare(whole, alone),
            against="the chart in it alone",
            unit="ms",
            scale=1e3,
            bar=None,
            note="CPU of a whole Markdown file, sections and rules included",
        ),
    ]


def _cpu_of(call: Any, count: int = 5) -> float:
    used = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - used) / count


def _best_of(seconds: list[float], scale: float, unit: str) -> str:
    """Say what a capped row has: the work is always the same, what is slower is the machine."""
    median = statistics.median(seconds) * scale
    return f"CPU, the best of {len(seconds)}, median {median:.3g} {unit}"


def _scheduling(setting: Setting, child: Child, nodes: int) -> list[Row]:
    whole: list[float] = []
    alone: list[float] = []
    for _ in rounds(min(setting.effort.seconds, 2 * LONGEST_S)):
        for found, is_written in ((whole, True), (alone, False)):
            request = {"do": "schedule", "nodes": nodes, "is_written": is_written}
            found.append(child.ask(request)["cpu"])
    note = f"{_best_of(whole, 1e6, 'µs')}; a node of {nodes:,}, {PLACES} at once"
    return [
        capped("flow scheduling", min(whole) * 1e6, SCHEDULING_CAP_US, "µs", note),
        compared(
            "flow tokens",
            compare(alone, whole),
            against="the same with the record of the marking",
            unit="µs",
            scale=1e6,
            bar=None,
            note="CPU; tokens, joins and the choice of what starts, alone",
        ),
    ]


def _large(setting: Setting, child: Child, sizes: tuple[int, int], where: str) -> list[Row]:
    """Return how a node and the head grow with the number of nodes."""
    many, few = sizes
    large: list[dict[str, Any]] = []
    small: list[dict[str, Any]] = []
    for _ in rounds(setting.effort.seconds, minimum=1):
        # Around each large run, because the machine may change while it goes on.
        around = [child.ask({"do": RUN, "nodes": few}) for _ in range(3)]
        large.append(child.ask({"do": RUN, "nodes": many}))
        around += [child.ask({"do": RUN, "nodes": few}) for _ in range(3)]
        small.append({key: statistics.median(one[key] for one in around) for key in around[0]})
    heads = max(run["head_bytes"] for run in large), max(run["head_bytes"] for run in small)
    claims = max(run["claims_bytes"] for run in large)
    note = f"{many:,} nodes, {PLACES} at once, {where}"
    return [
        compared(
            "flow linear",
            _compared(large, small, "cpu"),
            against=f"a node of {few:,}",
            unit="ms",
            scale=1e3,
            bar=LINEAR_BAR,
            note=f"CPU; {note}",
        ),
        capped(
            "flow head",
            heads[0],
            HEAD_CAP + claims,
            "bytes",
            f"{HEAD_CAP} and its claims, {claims}; the largest of {note}",
        ),
        Row(
            name="flow head growth",
            value=heads[0],
            unit="bytes",
            against=f"the largest of {few:,} nodes",
            against_value=heads[1],
            ratio=heads[0] / heads[1],
            bar=HEAD_BAR,
            note=note,
        ),
    ]


def _beside(setting: Setting) -> list[Row]:
    """Return a node of small runs on the disk beside a cycle's step and beside the peer."""
    folder, log = undisturbed(setting.folder, "beside"), setting.folder / "beside.log"
    is_quick = setting.effort.growth_steps < QUICK_BELOW
    sizes = [BESIDE, FEW] if setting.with_peers and not is_quick else [BESIDE]
    missing: list[Row] = []
    with ExitStack() as stack:
        ours = stack.enter_context(Child("bench.rows.flow_child", [str(folder / "project")], log))
        peer: Child | None = None
        if setting.with_peers:
            try:
                peer = stack.enter_context(started(setting, "langgraph", "flow"))
            except Absent as reason:
                missing = [absent("flow vs langgraph", "langgraph", str(reason))]
        rows: list[Row] = []
        for size in sizes:
            found = _turns(setting, ours, peer, size)
            if size == BESIDE:
                rows += _against_a_cycle(found)
            if peer is not None:
                rows += _against_peer(found, str(peer.greeting["what"]), size)
    return rows + missing


def _turns(
    setting: Setting, ours: Child, peer: Child | None, size: int
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {RUN: [], CYCLE: [], "peer": []}
    for number in rounds(setting.effort.seconds, minimum=3):
        # Files that are removed here would make the next ones dearer, see `bench.disk`.
        request = {"nodes": size, "is_kept": True}
        answers = {what: ours.ask({**request, "do": what}) for what in (RUN, CYCLE)}
        if peer is not None:
            answers["peer"] = peer.ask({"count": size, "places": PLACES})
        if number == 0:
            continue  # graphs are made, and first files
        for what, answer in answers.items():
            found[what].append(answer)
    return found


def _compared(ours: list[dict[str, Any]], other: list[dict[str, Any]], key: str) -> Comparison:
    return compare([one[key] for one in ours], [one[key] for one in other])


def _against_a_cycle(found: dict[str, list[dict[str, Any]]]) -> list[Row]:
    comparison = _compared(found[RUN], found[CYCLE], "cpu")
    beyond = [
        node["cpu"] - step["cpu"] for node, step in zip(found[RUN], found[CYCLE], strict=True)
    ]
    against = "a step of a cycle"
    note = f"CPU of whole runs with files, logs and no-op agents; {BESIDE} nodes"
    shares = [more / step["cpu"] for more, step in zip(beyond, found[CYCLE], strict=True)]
    return [
        compared(
            "flow node", comparison, against=against, unit="ms", scale=1e3, bar=None, note=note
        ),
        Row(
            name="flow node beyond a step",
            value=statistics.median(beyond) * 1e3,
            unit="ms",
            against=against,
            against_value=comparison.other * 1e3,
            ratio=statistics.median(shares),
            spread=quartiles(shares),
            rounds=len(shares),
            note=f"the difference: threads, {PLACES} claims instead of one, and the scheduling",
        ),
        compared(
            "flow node wall",
            _compared(found[RUN], found[CYCLE], "wall"),
            against=against,
            unit="ms",
            scale=1e3,
            bar=None,
            note="wall time of the same",
        ),
    ]


def _against_peer(found: dict[str, list[dict[str, Any]]], what: str, size: int) -> list[Row]:
    name = "flow vs langgraph" if size == BESIDE else f"flow vs langgraph {size:,}"
    note = f"a node of {size:,}, {PLACES} at once"
    return [
        compared(
            name,
            _compared(found[RUN], found["peer"], "cpu"),
            against=what,
            unit="ms",
            scale=1e3,
            bar=1.0,
            note=f"CPU; {note}",
        ),
        compared(
            f"{name} wall",
            _compared(found[RUN], found["peer"], "wall"),
            against=what,
            unit="ms",
            scale=1e3,
            bar=None,
            note=f"wall time; {note}",
        ),
    ]
