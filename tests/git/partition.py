"""A cable that is pulled: whose step counts is the remote's to say, and no work is lost.

Each scenario has one machine beside the repository and one behind the cable. Only leases
tell them about each other.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sequencer import Claim, Store
from sequencer.errors import ClaimHeld, RemoteUnreachable, StaleClaim
from tests.clones import SharedStore
from tests.concurrency import children
from tests.contract import store_cases as cases
from tests.git.machines import FAR, HUB, LIMIT_S, Network, impossible, network
from tests.git.turns import accepted_in, violations
from tests.long.report import Report, Size

TTL_S = 4.0
TIMEOUT_S = 2.5
"""Of git behind the cable: that it was pulled is noticed by it."""
OUTPUT_FILE, OUTPUT = "output.txt", "what hours of work have made"
HOOK = """#!/bin/sh
cd "{folder}"
# Only the push that the test waits for; a heartbeat goes through.
read old new ref
case "$ref" in refs/heads/sequencer/*) ;; *) exit 0;; esac
test -e note-hold && rm note-hold || exit 0
touch note-pushing
while ! test -e note-go; do sleep 0.02; done
"""


# --- what the machines do ---------------------------------------------------------------


def store_that_notices_a_cut(net: Network, machine: str, ttl_s: float) -> SharedStore:
    """Return a store on *machine*; behind the cable its git gives up soon, here it has time."""
    options: dict[str, Any] = {"timeout_s": TIMEOUT_S} if machine == FAR else {}
    return net.shared.store(machine, ttl_s=ttl_s, **options)


@contextlib.contextmanager
def beating(store: Store, claim: Claim) -> Iterator[None]:
    """Send a heartbeat a few times a lease, as a worker does."""
    stop = threading.Event()

    def beat() -> None:
        number = 0
        while not stop.wait(claim.ttl_s / 5):
            number += 1
            with contextlib.suppress(OSError):
                store.beat(claim, number)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def perform(net: Network, machine: str, ttl_s: float) -> None:
    """Claim the next step, work until it is to end, and commit; write down how that ended."""
    store: SharedStore = net.shared.store(machine, ttl_s=ttl_s)
    claim = cases.claim(store)
    store.close()
    store = store_that_notices_a_cut(net, machine, ttl_s)
    made = store.result_folder(claim.step_index, claim.token)
    made.mkdir(parents=True)
    (made / OUTPUT_FILE).write_text(f"{OUTPUT} on {machine}")
    with beating(store, claim):
        net.note(f"{machine}-holds")
        net.until("finish")
        change = cases.on_run(partial(cases.succeeding, token=claim.token, note=machine))
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                store.update(change)
                ended = "accepted"
            except StaleClaim:
                ended = "stale"
            except RemoteUnreachable:
                assert time.monotonic() < deadline, "the remote did not come back"
                time.sleep(0.1)
                continue
            break
    children.append(net.shared.folder / "ends", f"{machine} {claim.token} {ended}")
    if ended == "accepted":
        notify(net, machine, claim)
    store.close()


def take_over(net: Network, machine: str, ttl_s: float, seconds: float) -> None:
    """Try to get the next step for so long; if it is granted, commit it and say when that was."""
    store: SharedStore = net.shared.store(machine, ttl_s=ttl_s)
    store.pull()
    store.close()
    store = store_that_notices_a_cut(net, machine, ttl_s)
    began = time.monotonic()
    while time.monotonic() < began + seconds and not net.is_noted("enough"):
        try:
            claim = cases.claim(store)
        except (ClaimHeld, RemoteUnreachable) as refused:
            if isinstance(refused, ClaimHeld):
                # From now on it knows the run, and whose lease it has to wait for.
                net.note(f"{machine}-tries")
            time.sleep(0.1)
            continue
        took = time.monotonic() - began
        children.append(net.shared.folder / "taken", f"{machine} {claim.token} {took}")
        cases.commit(store, claim.token, note=machine)
        notify(net, machine, claim)
        break
    net.note(f"{machine}-gave-up")
    store.close()


def notify(net: Network, machine: str, claim: Claim) -> None:
    children.append(net.shared.folder / "told", f"{claim.step_index} {claim.token} {machine}")


# --- scenarios --------------------------------------------------------------------------


def back_after_the_lease(net: Network, ttl_s: float) -> Iterator[int]:
    """Yield the processes of a worker that is cut off, and of one that takes its step over."""
    yield net.start(FAR, partial(perform, net, FAR, ttl_s))
    net.until(f"{FAR}-holds")
    net.cut()
    yield net.start(HUB, partial(take_over, net, HUB, ttl_s, 10 * ttl_s))
    net.until(f"{HUB}-gave-up")
    net.note("finish")
    time.sleep(0.5)
    net.mend()


def back_before_the_lease(net: Network, ttl_s: float) -> Iterator[int]:
    """Yield the processes of a worker that is cut off for a moment, and of one that waits."""
    yield net.start(FAR, partial(perform, net, FAR, 3 * ttl_s))
    net.until(f"{FAR}-holds")
    yield net.start(HUB, partial(take_over, net, HUB, 3 * ttl_s, LIMIT_S))
    net.until(f"{HUB}-tries")
    net.cut()
    net.note("finish")
    time.sleep(ttl_s / 2)
    net.mend()


def cut_in_a_push_that_counts(net: Network, ttl_s: float) -> Iterator[int]:
    """Yield the processes where the ref moves, its answer is lost, and another one goes on."""
    yield from _pushing(net, ttl_s)
    net.note("go")
    time.sleep(0.5)
    yield net.start(HUB, partial(take_over, net, HUB, ttl_s, 10 * ttl_s))
    net.until(f"{HUB}-gave-up")
    net.mend()


def cut_in_a_push_that_does_not(net: Network, ttl_s: float) -> Iterator[int]:
    """Yield the processes where the push arrives when somebody has taken the step over."""
    yield from _pushing(net, ttl_s)
    yield net.start(HUB, partial(take_over, net, HUB, ttl_s, 10 * ttl_s))
    net.until(f"{HUB}-gave-up")
    net.note("go")
    time.sleep(0.5)
    net.mend()


def _pushing(net: Network, ttl_s: float) -> Iterator[int]:
    """Cut the cable while the server has a push, and before it has moved the ref."""
    yield net.start(FAR, partial(perform, net, FAR, ttl_s))
    net.until(f"{FAR}-holds")
    hook = net.shared.bare / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(HOOK.format(folder=net.shared.folder))
    hook.chmod(0o755)
    net.note("hold")
    net.note("finish")
    net.until("pushing")
    net.cut()


def an_observer_that_is_cut_off(net: Network, ttl_s: float) -> Iterator[int]:
    """Yield the processes of a worker that lives, and of one that can't see that."""
    yield net.start(HUB, partial(perform, net, HUB, ttl_s))
    net.until(f"{HUB}-holds")
    yield net.start(FAR, partial(take_over, net, FAR, ttl_s, 6 * ttl_s))
    net.until(f"{FAR}-tries")
    net.cut()
    time.sleep(2.5 * ttl_s)
    net.mend()
    time.sleep(1.5 * ttl_s)
    net.note("enough")
    net.until(f"{FAR}-gave-up")
    net.note("finish")


Scenario = Callable[[Network, float], Iterator[int]]
SCENARIOS: dict[Scenario, tuple[set[str], int]] = {
    back_after_the_lease: ({"far stale", "hub taken"}, 1),
    # The other one has the next step, once it is there.
    back_before_the_lease: ({"far accepted", "hub taken"}, 2),
    cut_in_a_push_that_counts: ({"far accepted", "hub taken"}, 2),
    cut_in_a_push_that_does_not: ({"far stale", "hub taken"}, 1),
    an_observer_that_is_cut_off: ({"hub accepted"}, 1),
}
"""What becomes of both, and how many steps are accepted."""


def partitioned(folder: Path, scenario: Scenario, ttl_s: float = TTL_S) -> list[str]:
    """Return what was wrong in *scenario*."""
    pids: list[int] = []
    with network(folder) as net:
        errors = net.shared.folder / "errors"
        cases.begin(_by_path(net))
        try:
            pids.extend(scenario(net, ttl_s))
            deadline = time.monotonic() + LIMIT_S
            left = set(pids)
            while left and time.monotonic() < deadline:
                left -= children.ended(left)
                time.sleep(0.02)
            wrong = list(children.wrong(errors))
            wrong += [f"{len(left)} did not end"] if left else []
        except AssertionError as error:
            wrong, left = [repr(error)], set(pids)
        children.end(left)
    ends, steps = SCENARIOS[scenario]
    wrong += _wrong_ends(net, ends, ttl_s, is_held=scenario in LEASED)
    wrong += violations(net.shared, [HUB, FAR, "first"], least=steps, all_told=True)
    net.shared.close()
    return [f"{scenario.__name__}: {text}" for text in wrong]


LEASED = (back_after_the_lease, cut_in_a_push_that_does_not)
"""Where nobody may take the step over before the lease is over."""


def _by_path(net: Network) -> SharedStore:
    """Return a store of a clone that reaches the repository without the network."""
    return net.shared.store("first")


def _wrong_ends(net: Network, expected: set[str], ttl_s: float, *, is_held: bool) -> list[str]:
    folder, wrong = net.shared.folder, list[str]()
    ends = children.pairs(folder / "ends")
    taken = children.pairs(folder / "taken")
    found = {f"{machine} {ended}" for machine, _, ended in ends}
    found |= {f"{machine} taken" for machine, _, _ in taken}
    if found != expected:
        wrong.append(f"{sorted(found)} instead of {sorted(expected)}")
    for _, _, took in taken:
        if is_held and not 0.95 * ttl_s <= float(took) <= 3 * ttl_s:
            wrong.append(f"taken over after {float(took) / ttl_s:.2f} leases")
    first = accepted_in(_by_path(net))[:1]
    for machine, token, _ in ends:
        kept = net.shared.clone(machine) / "sync" / "results"
        made = list(kept.glob(f"0-{token}-*/{OUTPUT_FILE}"))
        if len(made) != 1 or OUTPUT not in made[0].read_text():
            wrong.append(f"the work of {machine} is gone: {made} of token {token}, {first}")
    return wrong


def all_at_once(folder: Path, ttl_s: float) -> list[str]:
    """Return what was wrong in the scenarios, which are side by side: they wait for leases.

    Each is a process of its own. A thread that forks takes along the locks that others hold
    just then, and in the child nobody ever lets go of them.
    """
    found = {one: folder / f"{one.__name__}.json" for one in SCENARIOS}

    def look(one: Scenario) -> None:
        wrong = partitioned(folder / one.__name__, one, ttl_s)
        found[one].write_text(json.dumps(wrong))

    folder.mkdir(parents=True)
    errors = folder / "errors"
    left = {children.start(partial(look, one), errors) for one in SCENARIOS}
    while left:
        left -= children.ended(left)
        time.sleep(0.02)
    told = [
        text for path in found.values() if path.exists() for text in json.loads(path.read_text())
    ]
    return [*told, *children.wrong(errors)]


def campaign(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; the link between two machines goes down and comes back."""
    if (reason := impossible()) is not None:
        return Report({"partitions": 0}, notes=(reason,))
    rounds, ttl_s = (1, TTL_S) if size is Size.SHORT else (20, 6.0)
    wrong: list[str] = []
    for number in range(rounds):
        wrong += all_at_once(folder / f"{number}", ttl_s)
    return Report({"partitions": rounds * len(SCENARIOS)}, tuple(wrong))
