"""Clones that race for every step of one run, on servers that answer and on some that do not."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from tests.clones import Shared
from tests.concurrency import children
from tests.contract import store_cases as cases
from tests.git.transports import Deed, Server
from tests.git.turns import play, violations
from tests.long.report import Report, Size

LIMIT_S = 900.0
RATES = {Deed.CUT_AFTER: 0.1, Deed.CUT_BEFORE: 0.1}
LATE_RATES = {**RATES, Deed.LATER: 0.05, Deed.HANG: 0.03}
HANG_TIMEOUT_S = 2.0
CUTS = (Deed.SERVE, Deed.CUT_AFTER, Deed.SERVE, Deed.CUT_BEFORE)
"""What happens first; in a few pushes chance alone need not bring each of them about."""


def race(
    folder: Path, clones: int, steps: int, server: Server | None = None, *, timeout_s: float = 20.0
) -> list[str]:
    """Return what was wrong after *clones* have raced for *steps*."""
    shared = Shared(folder)
    names = [f"clone-{number}" for number in range(clones)]
    if server is not None:
        server.install(*(shared.clone(name) for name in names))
    for name in names:
        shared.clone(name)
    cases.begin(shared.store("first"))
    errors = folder / "errors"
    role = partial(play, shared, steps=steps, timeout_s=timeout_s)
    left = {children.start(partial(role, name), errors) for name in names}
    deadline = time.monotonic() + LIMIT_S
    while left and time.monotonic() < deadline and not errors.exists():
        left -= children.ended(left)
        time.sleep(0.02)
    children.end(left)
    wrong = list(children.wrong(errors))
    if left:
        wrong.append(f"{len(left)} of {clones} clones did not come to the end")
    settle(server)
    return wrong + violations(shared, [*names, "first"], least=steps, all_told=True)


def settle(server: Server | None) -> None:
    """Wait until no push is under way that nobody waits for."""
    while server is not None and server.under_way():
        time.sleep(0.05)


def clones(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; 2 to 8 clones of one repository race for each step."""
    rounds = [(3, 5)] if size is Size.SHORT else [(2, 500), (4, 500), (8, 500)]
    wrong, began = list[str](), time.monotonic()
    for number, steps in rounds:
        found = race(folder / f"{number}", number, steps)
        wrong += [f"{number} clones: {text}" for text in found]
    steps = sum(steps for _, steps in rounds)
    took_ms = (time.monotonic() - began) * 1e3 / steps
    return Report({"steps": steps}, tuple(wrong), {"ms_a_step": round(took_ms, 1)})


def cut_lines(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; the same, and a tenth of the answers is lost."""
    count, steps = (2, 4) if size is Size.SHORT else (8, 500)
    server = Server(folder / "server", CUTS, rates=RATES)
    wrong = race(folder / "cut", count, steps, server)
    late, late_steps = (2, 2) if size is Size.SHORT else (4, 300)
    plan = (Deed.LATER, Deed.SERVE, Deed.HANG) if size is Size.SHORT else ()
    slow = Server(folder / "slow-server", plan, LATE_RATES, later_s=2.5)
    wrong += race(folder / "late", late, late_steps, slow, timeout_s=HANG_TIMEOUT_S)
    deeds = server.deeds() + slow.deeds()
    if not deeds[Deed.CUT_AFTER] or not deeds[Deed.HANG]:
        wrong.append(f"no line was cut: {deeds}")
    counts = {f"pushes {deed}": deeds[deed] for deed in Deed if deed is not Deed.SERVE}
    return Report({"steps": steps + late_steps, **counts}, tuple(wrong))
