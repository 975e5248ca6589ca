"""One accepted, durable step that does nothing: combined mode, step log included.

What counts is the time from the end of one step to the begin of the next: commit and
claim, head, heartbeat, log, prompt, everything that the program does of its own.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.child import Absent, Child
from bench.disk import undisturbed
from bench.floor import Floor
from bench.measuring import Comparison, compare, rounds
from bench.peers.installing import interpreter, why_absent
from bench.project import Marks, make_project, no_op_run
from bench.result import Row, absent, compared
from bench.rows import Setting
from sequencer import InvocationLimits, Mode

CPU_BAR = 2.2
"""Of the floor's CPU. Wall time beside the floor says more of the disk than of us, so it has no
bar: where a flush is slow a step looks like 0.6 of the floor, where it is fast like 3."""
BARE_HUEY_BAR = 1.1
"""Level with it: its task leaves neither a log nor a file with the state."""
BLOCK = 8
"""Steps in a row on one side. The first flush of a block may pay for the other side; the
more steps, the more does each pay for what the file system keeps of the others' files."""
SKIP = 2
PEER_BLOCK = 6
WITH_FILES = "huey and files"
PEERS = {
    "langgraph": ("langgraph", "step"),
    "burr": ("burr", "step"),
    "dbos": ("dbos", "step"),
    "huey": ("huey", "step"),
    WITH_FILES: ("huey", "files"),
}
"""What a step is compared with: the peer, and what of it is run."""


FLOOR = "floor: flock, log, append 1 KiB, fdatasync, replace"


def measure(setting: Setting) -> list[Row]:
    """Return the step against the floor (wall and CPU) and against each peer."""
    with ExitStack() as stack:
        present, missing = {}, []
        for peer in PEERS if setting.with_peers else ():
            try:
                present[peer] = stack.enter_context(started(setting, *PEERS[peer]))
            except Absent as reason:
                missing.append(absent(f"step vs {peer}", peer, str(reason)))
        found = _rounds(setting, present)
    against: dict[str, tuple[str, float | None]] = {
        "step": (FLOOR, None),
        "step CPU": ("the floor's CPU", CPU_BAR),
        "step vs preallocated": (f"{FLOOR} of a preallocated file", None),
    }
    for peer, child in present.items():
        bar = BARE_HUEY_BAR if peer == "huey" else 1.0
        against[f"step vs {peer}"] = (str(child.greeting["what"]), bar)
    rows = [
        compared(name, found[name], against=other, unit="ms", scale=1e3, bar=bar)
        for name, (other, bar) in against.items()
    ]
    return rows + missing


@contextmanager
def started(setting: Setting, peer: str, what: str = "step") -> Iterator[Child]:
    """Yield the child process of *peer*.

    Raises:
        Absent: it is not installed, or does not start.
    """
    reason = why_absent(peer)
    if reason is not None:
        raise Absent(reason)
    folder = undisturbed(setting.folder, f"{peer}-{what}")
    log = setting.folder / f"{peer}-{what}.log"
    with Child(f"bench.peers.{peer}_{what}", [str(folder)], log, str(interpreter(peer))) as child:
        child.ask({"count": PEER_BLOCK})
        yield child


def _rounds(setting: Setting, present: dict[str, Child]) -> dict[str, Comparison]:
    """Return the comparison of each row, by the row's name."""
    marks = Marks()
    run = no_op_run(make_project(undisturbed(setting.folder, "project")), marks)
    floors = {
        "step": Floor(undisturbed(setting.folder, "floor")),
        "step vs preallocated": Floor(
            undisturbed(setting.folder, "preallocated"), preallocates=True
        ),
    }
    ours: list[float] = []
    ours_cpu: list[float] = []
    theirs: dict[str, list[float]] = defaultdict(list)
    for number in rounds(setting.effort.seconds):
        marks.clear()
        run.work(Mode.COMBINED, InvocationLimits(max_steps=BLOCK + SKIP))
        wall, cpu = marks.between_steps(SKIP)
        blocks = {name: floor.block(BLOCK + SKIP) for name, floor in floors.items()}
        answers = {peer: child.ask({"count": PEER_BLOCK}) for peer, child in present.items()}
        if number == 0:
            continue  # imports and first files
        ours.append(statistics.median(wall))
        ours_cpu.append(statistics.median(cpu))
        theirs["step CPU"].append(statistics.median(blocks["step"][1][SKIP:]))
        for name, (seconds, _) in blocks.items():
            theirs[name].append(statistics.median(seconds[SKIP:]))
        for peer, answer in answers.items():
            theirs[f"step vs {peer}"].append(statistics.median(answer["seconds"]))
    for floor in floors.values():
        floor.close()
    return {
        name: compare(ours_cpu if name == "step CPU" else ours, other)
        for name, other in theirs.items()
    }
