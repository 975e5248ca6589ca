"""CPU of a whole `sequencer tick` with nothing due, as cron starts it.

User and system time of the process, told by the kernel at its end; wall time on a shared
machine says nothing about 50 ms. The run is paused, so that there is nothing to do.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.child import Absent, cpu_of_command
from bench.measuring import compare, rounds
from bench.peers.installing import interpreter, why_absent
from bench.project import Marks, make_project, no_op_run
from bench.result import Row, absent, compared
from bench.rows import Setting
from sequencer import InvocationLimits, Mode
from sequencer.model.commands import Pause

BARS = {"doit": 0.6, "python": 4.0}
OTHERS = {"luigi": ("luigi", "--help"), "prefect": ("prefect", "--version")}
"""Start-up of schedulers that cron would start as well; for information."""
WARM_UP = 2
"""The first runs of a program compile it and fill the page cache."""


def measure(setting: Setting) -> list[Row]:
    """Return `tick` against `doit --version`, a bare interpreter, and others that start."""
    folder = setting.folder / "project"
    _make_paused(folder)
    tick = tick_command()
    commands: dict[str, list[str]] = {"python": [sys.executable, "-I", "-c", "pass"]}
    missing = []
    doit = find_doit()
    if doit is None:
        reason = why_absent("doit") or "not on PATH"
        missing.append(absent("tick", "doit --version", reason))
    else:
        commands["doit"] = [doit, "--version"]
    for peer, (program, option) in OTHERS.items() if setting.with_peers else ():
        if (why := why_absent(peer)) is None:
            commands[peer] = [str(interpreter(peer).with_name(program)), option]
        else:
            missing.append(absent(f"tick vs {peer}", f"{program} {option}", why))
    return _rows(setting, folder, tick, commands) + missing


def _rows(
    setting: Setting, folder: Path, tick: list[str], commands: dict[str, list[str]]
) -> list[Row]:
    rows, living = [], dict(commands)
    try:
        for _ in range(WARM_UP):
            cpu_of_command(tick, folder)
    except Absent as reason:
        return [absent("tick", "doit --version", str(reason))]
    for name, argv in commands.items():
        try:
            for _ in range(WARM_UP):
                cpu_of_command(argv, folder)
        except Absent as reason:
            del living[name]
            rows.append(absent(f"tick vs {name}", f"{name} {argv[-1]}", str(reason)))
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in living}
    for _ in rounds(setting.effort.seconds):
        ours.append(cpu_of_command(tick, folder))
        for name, argv in living.items():
            theirs[name].append(cpu_of_command(argv, folder))
    for name, seconds in theirs.items():
        row = compared(
            "tick" if name == "doit" else f"tick vs {name}",
            compare(ours, seconds),
            against="a bare interpreter" if name == "python" else f"{name} {commands[name][-1]}",
            unit="ms",
            scale=1e3,
            bar=BARS.get(name),
            note="CPU of the whole process, the run is paused",
        )
        rows.append(row)
    return sorted(rows, key=lambda row: row.name)


def _make_paused(folder: Path) -> None:
    run = no_op_run(make_project(folder), Marks())
    run.work(Mode.COMBINED, InvocationLimits(max_steps=3))
    run.do(Pause())


def tick_command() -> list[str]:
    """Return how cron would start it: the script that the installation made, and its log."""
    script = Path(sys.executable).with_name("sequencer")
    program = [str(script)] if script.exists() else [sys.executable, "-m", "sequencer"]
    return [*program, "tick", "--log=logs/tick.log"]


def find_doit() -> str | None:
    """Return a `doit` from its own environment, else from beside this interpreter."""
    own = interpreter("doit").with_name("doit")
    if why_absent("doit") is None:
        return str(own)
    beside = Path(sys.executable).with_name("doit")
    return str(beside) if beside.exists() else None
