"""Processes whose wall clocks disagree, jump, or stand still with the process.

While heartbeats flow nobody takes a step over, and nobody waits for ever, whatever a wall
clock says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.clocks.faketime import following, forget, library, variables
from tests.long.report import Report, Size
from tests.storage.commands import accepted, argv_of, environment, facts, project, sequencer

TTL_S = 3.0
"""Beats come every second: a loaded machine may keep a process from its turn for that long."""
LIMIT_S = 60.0
LATEST_S = 90.0
"""A sleeping process looks at the wall clock every minute."""
OFFSETS = ("+1h", "-1h", "+10y")
SLOW = {"status": "ok", "output": "done", "delay_s": 2.1 * TTL_S}
"""More than two leases."""


@contextmanager
def working(
    folder: Path, clock: Mapping[str, str], *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """Start ``sequencer ARGUMENTS`` under *clock*; at the end it is killed if it still runs."""
    process = subprocess.Popen(
        argv_of(*arguments),
        cwd=folder,
        env=environment(**clock),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        forget(process.pid)


def ended(process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> int | None:
    """Return the exit code; None if the process is still at it after *limit_s*."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def state_of(folder: Path) -> str:
    try:
        return (folder / "sync/state.json").read_text()
    except OSError:
        return ""


def is_claimed(folder: Path) -> bool:
    return '"status": "running"' in state_of(folder)


def shared(folder: Path, clocks: Sequence[Mapping[str, str]], steps: int) -> Iterator[str]:
    """Let a process a clock work on one run, each step longer than the lease."""
    project(folder, SLOW, store={"ttl_s": TTL_S})
    waiting = ("run", "--mode", "sync", "--max-steps", str(steps))
    with ExitStack() as stack:
        workers = [stack.enter_context(working(folder, clock, *waiting)) for clock in clocks]
        until(lambda: accepted_so_far(folder) >= steps)
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        codes = [ended(worker, 20) for worker in workers]
    yield from _told(folder, steps, codes)


def accepted_so_far(folder: Path) -> int:
    try:
        return (folder / "sync/journal.jsonl").read_bytes().count(b'"succeeded"')
    except OSError:
        return 0


def _told(folder: Path, steps: int, codes: list[int | None]) -> Iterator[str]:
    told = facts(folder)
    if any(fact["event"] == "taken-over" for fact in told):
        yield f"a step was taken over: {[fact['event'] for fact in told]}"
    if accepted(told)[:steps] != [*range(steps)]:
        yield f"stalled after {accepted(told)}, exit codes {codes}"


def looked_at(folder: Path, clocks: Sequence[Mapping[str, str]], pause_s: float) -> Iterator[str]:
    """Let ticks under every clock come while a step runs for several leases."""
    project(folder, SLOW, store={"ttl_s": TTL_S})
    with working(folder, {}, "tick") as holder:
        until(lambda: is_claimed(folder))
        while ended(holder, pause_s) is None:
            for clock in clocks:
                code = sequencer(folder, "tick", variables=clock).code
                if code != 75 and ended(holder, 0.1) is None:
                    yield f"a tick under {clock.get('FAKETIME')} ended with {code}"
    yield from _told(folder, 1, [])


def jumping(folder: Path, path: Path) -> tuple[Mapping[str, str], Path]:
    """Return the clock of the project *folder*, by library *path*, and the file that sets it."""
    file = folder.with_suffix(".offset")
    file.write_text("+0")
    return following(path, file), file


def in_another_namespace(folder: Path) -> Iterator[str]:
    """Let ticks come from containers whose clock since boot is a day ahead, or was set back."""
    project(folder, {**SLOW, "delay_s": 4.0}, store={"ttl_s": 60})
    with working(folder, {}, "tick") as holder:
        until(lambda: is_claimed(folder))
        for before in (ahead_by(86_400), ahead_by(-600)):
            code = sequencer(folder, "tick", before=before).code
            if code != 75 and ended(holder, 0.1) is None:
                yield f"a tick by way of {before} ended with {code}"
        ended(holder)
    yield from _told(folder, 1, [])


def ahead_by(seconds: int) -> tuple[str, ...]:
    user = () if os.geteuid() == 0 else ("--map-root-user",)
    return ("unshare", *user, "--time", "--boottime", str(seconds), "--fork")


def has_time_namespaces() -> bool:
    try:
        asked = subprocess.run([*ahead_by(1), "true"], capture_output=True, check=False)
    except OSError:
        return False
    return asked.returncode == 0


def set_back(folder: Path, path: Path, jump: str) -> Iterator[str]:
    """Set the clock of a working and of a waiting process back while the step runs."""
    project(folder, SLOW, store={"ttl_s": TTL_S})
    clock, file = jumping(folder, path)
    with working(folder, clock, "tick") as holder:
        until(lambda: is_claimed(folder))
        with working(folder, clock, "run", "--max-wait", "50", "--max-steps", "1") as waiter:
            time.sleep(1.5)
            file.write_text(jump)
            codes = [ended(holder), ended(waiter)]
    yield from _told(folder, 2, codes)


def set_back_in_a_pause(folder: Path, path: Path, jump: str, kind: str) -> Iterator[str]:
    """Set the clock back while a process waits for a date; the next tick waits for it too."""
    first = {"retry": {"status": "failed", "error": "no"}, "limit": {"status": "limited"}}[kind]
    defaults = {"retry": {"max_attempts": 3, "backoff": "fixed", "initial_delay_s": 4}}
    project(folder, {**first, "attempt": 1}, SLOW, step_defaults=defaults)
    clock, file = jumping(folder, path)
    with working(folder, clock, "run", "--max-steps", "1") as waiter:
        until(lambda: '"not_before": "' in state_of(folder))
        file.write_text(jump)
        code = ended(waiter, LATEST_S) if kind == "retry" else 0
    if code != 0:
        yield f"the {kind} is waited for for ever, exit code {code}"
    if kind == "limit":
        # A pause of five minutes was begun by a clock that is wrong, or is now.
        code = sequencer(folder, "tick", variables=clock).code
        # An attempt that met a limit does not count, so it meets the limit again.
        if [fact["event"] for fact in facts(folder)].count("claimed") < 2:
            yield f"a tick waits for a limit of another time, exit code {code}"


def set_back_beside_the_run(folder: Path, path: Path, jump: str) -> Iterator[str]:
    """Set the clock back while mode async, which has no state, waits for its next attempt."""
    defaults = {"retry": {"max_attempts": 3, "backoff": "fixed", "initial_delay_s": 4}}
    failing = {"status": "failed", "error": "no", "attempt": 1}
    project(folder, failing, {"status": "ok"}, step_defaults=defaults)
    clock, file = jumping(folder, path)
    with working(folder, clock, "run", "--mode", "async", "--max-steps", "1") as waiter:
        until(lambda: any((folder / "logs").rglob("iter-*.log")))
        time.sleep(1)
        file.write_text(jump)
        code = ended(waiter, LATEST_S)
    if code != 0:
        yield f"mode async waits for ever, exit code {code}"


def from_the_future(folder: Path, clock: Mapping[str, str]) -> Iterator[str]:
    """Let a process whose clock is ahead begin a pause; the others must not wait for years."""
    defaults = {"retry": {"max_attempts": 3, "backoff": "fixed", "initial_delay_s": 600}}
    failing = {"status": "failed", "error": "no", "attempt": 1}
    project(folder, failing, {"status": "ok"}, step_defaults=defaults)
    codes = [sequencer(folder, "tick", variables=clock).code]
    # The second one is told what the first one has remembered.
    codes += [sequencer(folder, "tick", variables=clock).code, sequencer(folder, "tick").code]
    if accepted(facts(folder)) != [0]:
        yield f"a tick waits for a date of {clock.get('FAKETIME')}: {codes}"


def stopped(folder: Path, leases: float, steps: int) -> Iterator[str]:
    """Stop every process for some leases and let them go on; the run comes to its end."""
    project(folder, SLOW, store={"ttl_s": TTL_S})
    arguments = ("run", "--mode", "sync", "--max-steps", str(steps), "--max-wait", "40")
    with ExitStack() as stack:
        workers = [stack.enter_context(working(folder, {}, *arguments)) for _ in range(3)]
        until(lambda: is_claimed(folder))
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for worker in workers:
                os.kill(worker.pid, number)
            time.sleep(leases * TTL_S if number is signal.SIGSTOP else 0)
        until(lambda: accepted_so_far(folder) >= steps)
    told = facts(folder)
    found = accepted(told)
    if found[:steps] != [*range(steps)] or found != [*range(len(found))]:
        yield f"accepted {found}: {[fact['event'] for fact in told]}"
    tokens = [fact["token"] for fact in told if fact["event"] in ("succeeded", "taken-over")]
    if len(tokens) != len(set(tokens)):
        yield f"a claim that was taken over was accepted: {told}"


def cases(place: Path, path: Path, size: Size, steps: int) -> Iterator[tuple[str, Iterator[str]]]:
    clocks = [variables(path, offset) for offset in OFFSETS]
    jumps = ("-2h",) if size is Size.SHORT else ("-2h", "-11y", "+3h", "-20")
    yield (
        "three clocks",
        shared(place / "shared", clocks[1:] if size is Size.SHORT else clocks, steps),
    )
    yield (
        "ticks of other clocks",
        looked_at(place / "ticks", clocks, 1.5 if size is Size.SHORT else 0.1),
    )
    for jump in jumps:
        yield f"set to {jump}", set_back(place / f"back{jump}", path, jump)
        if jump[0] == "-":
            folder = place / f"async{jump}"
            name = f"set to {jump} in a pause, mode async"
            yield name, set_back_beside_the_run(folder, path, jump)
        for kind in ("retry", "limit"):
            if jump[0] == "-" and (kind, jump) != ("limit", "-20"):
                folder = place / f"{kind}{jump}"
                name = f"set to {jump} in a pause, {kind}"
                yield name, set_back_in_a_pause(folder, path, jump, kind)
    for offset in ("+10y",) if size is Size.SHORT else ("+1h", "+10y"):
        yield f"from {offset}", from_the_future(place / f"f{offset}", variables(path, offset))


def campaign(folder: Path, size: Size) -> Report:
    """Let clocks be wrong, jump, and every process stand still for three leases."""
    path, wrong, inputs = library(), [], 0
    steps = 2 if size is Size.SHORT else 4
    for number in range(1 if size is Size.SHORT else 4):
        place = folder / str(number)
        place.mkdir()
        tried = [("all stopped", stopped(place / "stopped", 3.0, steps - 1))]
        if has_time_namespaces():
            tried.append(("another namespace", in_another_namespace(place / "namespace")))
        tried += [] if path is None else cases(place, path, size, steps)
        # They sleep most of the time.
        with ThreadPoolExecutor(8) as pool:
            told = pool.map(lambda case: [f"{case[0]}: {text}" for text in case[1]], tried)
            wrong += [text for texts in told for text in texts]
        inputs += len(tried)
    figures = {} if path else {"skipped_because_libfaketime_does_not_work_here": 1.0}
    return Report({"inputs": inputs}, tuple(wrong), figures)
