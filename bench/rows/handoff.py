"""From one process's step to the other's, in sync mode, and what waiting costs.

Two readings of a handoff, each against a raw ping-pong that does the same. *handoff*: from
the acceptance of one step to the begin of the next, that is a wake-up and one durable
transition. *handoff whole*: from the end of one step to the begin of the next; accepting
and claiming are two durable transitions, since nobody can claim for somebody else.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

from bench.child import Absent, Child, idle_percent, idle_percents
from bench.disk import undisturbed
from bench.measuring import Comparison, compare, rounds
from bench.project import make_project
from bench.result import Row, absent, compared
from bench.rows import Setting
from bench.rows.step import started

BAR = 2.0
BLOCK = 16
"""Steps of each process in a row."""
SKIP = 4
PEER_BLOCK = 10
IDLE_BAR = 1.0
POSITIONS = ("supervisor", "main")
SETTLE_S = 0.5
HOIDN = "hoidn/orchestration: polls every 5 s, so 0 to 5 s, 2.5 s on average; stated, not run"


def measure(setting: Setting) -> list[Row]:
    """Return both readings, the cost of waiting, and huey's."""
    make_project(undisturbed(setting.folder, "project"))
    undisturbed(setting.folder, "raw")
    with ExitStack() as stack:
        pair = []
        for index, position in enumerate(POSITIONS):
            arguments = [str(setting.folder), position, str(index)]
            log = setting.folder / f"{position}.log"
            pair.append(stack.enter_context(Child("bench.rows.handoff_child", arguments, log)))
        huey, reason = None, "left out (--no-peers)"
        if setting.with_peers:
            try:
                huey = stack.enter_context(started(setting, "huey", "handoff"))
            except Absent as error:
                reason = str(error)
        rows = _compared(_rounds(setting, pair, huey), huey)
        rows += _idle(setting, pair, huey)
    if setting.with_peers and huey is None:
        rows.append(absent("handoff vs huey", "huey with 1 ms polling", reason))
    stated = Row(
        name="handoff vs hoidn", value=None, unit="ms", against=HOIDN, against_value=2500.0
    )
    return [*rows, stated]


def latencies(answers: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return the two readings from what both processes noted, without the first few."""
    entered, left, accepted = (
        {int(index): at for answer in answers for index, at in answer[what].items()}
        for what in ("entered", "left", "accepted")
    )
    following = sorted(index for index in entered if index - 1 in accepted)[SKIP:]
    return (
        [entered[index] - accepted[index - 1] for index in following],
        [entered[index] - left[index - 1] for index in following],
    )


def _both(pair: list[Child], request: dict[str, Any]) -> list[dict[str, Any]]:
    for child in pair:
        child.tell(request)
    return [child.hear() for child in pair]


def _rounds(setting: Setting, pair: list[Child], huey: Child | None) -> dict[str, Comparison]:
    found: dict[str, list[float]] = {
        key: [] for key in ("ours", "raw", "ours whole", "raw whole", "huey")
    }
    for number in rounds(setting.effort.seconds):
        ours, ours_whole = latencies(_both(pair, {"do": "ours", "count": BLOCK}))
        raw, _ = latencies(_both(pair, {"do": "raw", "count": BLOCK, "durable": 1}))
        _, raw_whole = latencies(_both(pair, {"do": "raw", "count": BLOCK, "durable": 2}))
        theirs = huey.ask({"count": PEER_BLOCK})["seconds"] if huey else [1.0]
        if number == 0:
            continue
        for key, values in (
            ("ours", ours),
            ("ours whole", ours_whole),
            ("raw", raw),
            ("raw whole", raw_whole),
            ("huey", theirs),
        ):
            found[key].append(statistics.median(values))
    return {
        "handoff": compare(found["ours"], found["raw"]),
        "handoff whole": compare(found["ours whole"], found["raw whole"]),
        "handoff whole vs one flush": compare(found["ours whole"], found["raw"]),
        "handoff vs huey": compare(found["ours whole"], found["huey"]),
    }


def _compared(found: dict[str, Comparison], huey: Child | None) -> list[Row]:
    raw = "raw ping-pong: inotify, append, fdatasync, replace"
    against = {
        "handoff": (raw, BAR, "acceptance to begin: wake-up and claim"),
        "handoff whole": (f"{raw}, the last three twice", BAR, "end to begin: commit and claim"),
        "handoff whole vs one flush": (raw, None, "two durable transitions against one"),
    }
    if huey is not None:
        what = str(huey.greeting["what"])
        against["handoff vs huey"] = (what, 1.0, "end to begin against enqueue to begin")
    return [
        compared(name, found[name], against=other, unit="ms", scale=1e3, bar=bar, note=note)
        for name, (other, bar, note) in against.items()
    ]


def _idle(setting: Setting, pair: list[Child], huey: Child | None) -> list[Row]:
    """Return what a process uses that waits for a turn that does not come."""
    seconds = setting.effort.idle_s
    for child, what in zip(pair, ("sleep", "wait"), strict=True):
        child.tell({"do": what, "seconds": seconds + 2 * SETTLE_S})
    time.sleep(SETTLE_S)
    # At the same time: what a wake-up costs depends on what else the machine does.
    slept, percent = idle_percents([child.pid for child in pair], seconds)
    for child in pair:
        child.hear()
    note = f"CPU of one core over {seconds:g} s"
    sleeper = "a process that only wakes five times a second"
    rows = [
        Row(
            name="handoff idle",
            value=percent,
            unit="%",
            against=sleeper,
            against_value=slept,
            ratio=percent / slept,
            bar=IDLE_BAR,
            note=note,
        )
    ]
    if huey is not None:
        other = idle_percent(huey.greeting["waiting_pid"], min(seconds, 5.0))
        row = Row(
            name="handoff idle vs huey",
            value=percent,
            unit="%",
            against=str(huey.greeting["what"]),
            against_value=other,
            ratio=percent / other,
            bar=1.0,
            note=note,
        )
        rows.append(row)
    return rows
