"""A cable between a worker and the server of Temporal is pulled, and put back.

The campaign's process moves to the machine that has the server; one of the workers is on
another one. Both are network namespaces with one cable between them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.fleet.campaigns import detached, done
from tests.fleet.recorded import (
    TTL_S,
    Arena,
    Noted,
    RecordedProject,
    gone_within,
    holder_of,
    percentile,
    violations,
)
from tests.git.machines import impossible
from tests.long.report import Report, Size

ADDRESS, FAR_ADDRESS = "10.78.0.1", "10.78.0.2"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - of a machine that nobody else reaches
_NEW_NETWORK = 0x40000000


class Cable(NamedTuple):
    """What is between this process's machine and the far one."""

    far: str
    device: str

    @property
    def there(self) -> tuple[str, ...]:
        """Return the command within which another one runs on the far machine."""
        return ("ip", "netns", "exec", self.far)

    def cut(self) -> None:
        """Pull it."""
        _ip("link", "set", self.device, "down")

    def mend(self) -> None:
        """Put it back."""
        _ip("link", "set", self.device, "up")


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    """Move this process to a machine of its own, with a cable to another one."""
    prefix = f"sf{os.getpid() % 10**5}"
    made = Cable(f"{prefix}far", f"{prefix}0")
    with contextlib.ExitStack() as cleaning:
        for name in (f"{prefix}hub", made.far):
            _ip("netns", "add", name)
            cleaning.callback(_ip, "netns", "delete", name)
        _move_to(f"{prefix}hub")
        _ip("link", "add", made.device, "type", "veth", "peer", "name", f"{prefix}1")
        _ip("link", "set", f"{prefix}1", "netns", made.far)
        ends = ((ADDRESS, made.device, ()), (FAR_ADDRESS, f"{prefix}1", ("-n", made.far)))
        for address, device, where in ends:
            _ip(*where, "address", "add", f"{address}/24", "dev", device)
            for name in (device, "lo"):
                _ip(*where, "link", "set", name, "up")
        yield made


def _move_to(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/var/run/netns/{namespace}").open() as file:
        if libc.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")


def _ip(*argv: str) -> None:
    subprocess.run(("ip", *argv), check=True, capture_output=True)


def campaign(folder: Path, size: Size) -> Report:
    """The cable between a worker and the server is pulled in a step, for a moment or for long."""
    if (why := impossible()) is not None:
        return Report({"cuts": 0}, notes=(why,))
    cuts = 20 if size is Size.LONG else 2
    with cable() as line, Arena(folder, ("--ip", EVERYWHERE), ADDRESS) as arena:
        here = arena.project("cut")
        here.keep_in()
        detached(here, 10 * cuts)
        near = here.launched("worker", "--max-parallel", "1")
        far = here.launched("worker", "--max-parallel", "1", within=line.there)
        try:
            return _cut_often(here, line, far.pid, cuts)
        finally:
            for one in (near, far):
                one.kill()
                one.communicate()


def _cut_often(here: RecordedProject, line: Cable, far: int, cuts: int) -> Report:
    dice = random.Random(29)  # noqa: S311 - to be repeated
    wrong, took, alone = list[str](), list[float](), list[float]()
    made, number, taken = 0, 0, set[int]()
    while made < cuts:
        number += 1
        agent = here.started(number)
        if holder_of(agent.pid) != far:
            here.go(agent.token)
            continue
        time.sleep(dice.random())
        if made % 2:
            _for_a_moment(here, line, agent, is_over=dice.random() < 0.5)
        else:
            number += 1
            taken.add(agent.token)
            took.append(_for_long(here, line, agent, number))
            if (seconds := gone_within(agent.pid, 20.0)) is None:
                wrong.append(f"the agent of cut {made} lives on")
            alone.append(seconds or 0.0)
        made += 1
    assert here.cli("stop", "--pause").returncode == 0
    done(here)
    gone = {one["token"] for one in here.facts("history") if one["event"] == "taken-over"}
    if gone != taken:
        wrong.append(f"taken over were {sorted(gone)}, and should have been {sorted(taken)}")
    wrong += violations(here, least=number - len(taken))
    figures = {"take_over_p50_s": percentile(took, 0.5), "take_over_max_s": round(max(took), 2)}
    figures["agent_ended_max_s"] = round(max(alone), 2)
    return Report({"cuts": made}, tuple(wrong), figures)


def _for_a_moment(here: RecordedProject, line: Cable, agent: Noted, *, is_over: bool) -> None:
    """Cut for less than the timeout; the agent may be over meanwhile."""
    line.cut()
    if is_over:
        here.go(agent.token)
    time.sleep(TTL_S / 3)
    line.mend()
    here.go(agent.token)


def _for_long(here: RecordedProject, line: Cable, agent: Noted, number: int) -> float:
    """Cut until the step is taken over by the start *number*; return how long that took."""
    line.cut()
    began = time.monotonic()
    after = here.started(number, 90.0)
    if number % 2:
        # Its report has to wait for the cable.
        here.go(agent.token)
    line.mend()
    here.go(after.token)
    return after.at - began
