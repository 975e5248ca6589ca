"""Turns of a run that clones share, straight on a git store, and what has to hold afterwards."""

from __future__ import annotations

import os
import random
import subprocess
import time
from functools import partial
from itertools import count
from pathlib import Path

from sequencer import Change, Claim, Head, SequencerError, Store, Transition
from sequencer.errors import ClaimHeld, RemoteUnreachable, StaleClaim
from tests.clones import Shared, SharedStore
from tests.concurrency import children
from tests.contract import store_cases as cases

TRIES = 60
"""How often a change is tried while the remote is out of reach."""


class Over(Exception):
    """All steps are done."""


KEEP = 10_000
"""Closed journals: what is counted must not go by age, however fast a machine is."""


def insist(store: Store, change: Change) -> Head:
    """Accept *change*, asking again with the same one as a worker does."""
    for attempt in count(1):
        try:
            return store.update(change)
        except RemoteUnreachable:
            if attempt == TRIES:
                raise
            time.sleep(random.uniform(0.01, 0.05))  # noqa: S311 - chance, no secret
    raise AssertionError("unreachable")


def claiming(store: Store, steps: int, head: Head) -> Transition:
    """Claim the next step, if there is one."""
    if head.step_index >= steps:
        raise Over
    return cases.claiming(store, head)


def ending(store: Store, steps: int, token: int, kind: float, head: Head) -> Transition:
    """End the step of *token* as *kind*, a share of 1, says: mostly well, often fused."""
    if kind < 0.1:
        return cases.failing(head, token)
    accepted = cases.succeeding(head, token, str(os.getpid()))
    if kind < 0.55 or accepted.head.step_index >= steps:
        return accepted
    return accepted.combine(cases.claiming(store, accepted.head))


def play(shared: Shared, name: str, steps: int, timeout_s: float = 20.0) -> None:
    """Take turns in the clone *name* until *steps* are done; write down what was told."""
    store = shared.store(name, timeout_s=timeout_s, keep=KEEP)
    chance = random.Random(os.getpid())  # noqa: S311 - chance, no secret
    held: Claim | None = None
    while True:
        try:
            if held is None:
                granted = insist(store, cases.on_run(partial(claiming, store, steps)))
                held = note_granted(shared, granted)
            kind = chance.random()
            ends = cases.on_run(partial(ending, store, steps, held.token, kind))
            head = insist(store, ends)
        except Over:
            return
        except (ClaimHeld, StaleClaim):
            held = None
            time.sleep(chance.uniform(0.01, 0.1))
            continue
        if kind >= 0.1:
            children.append(shared.folder / "told", f"{held.step_index} {held.token} {name}")
        held = note_granted(shared, head) if head.claims else None


def note_granted(shared: Shared, head: Head) -> Claim:
    """Write down that this process has the claim of *head*."""
    claim = head.claims[0]
    children.append(shared.folder / "granted", f"{claim.token}")
    return claim


def turns(ours: SharedStore, theirs: SharedStore) -> None:
    """Begin a run, and let both sides do all that moves a state branch."""
    cases.begin(ours)
    token = cases.claim(theirs).token
    cases.fail(theirs, token)
    token = cases.commit_and_claim(ours, cases.claim(ours).token).token
    cases.commit(ours, token)
    cases.release(ours, cases.claim(ours).token)
    held = cases.claim(theirs)
    theirs.beat(held, 1)
    ours.pull()
    ours.liveness(held)
    cases.commit(theirs, held.token)
    ours.pull()


# --- what has to hold -------------------------------------------------------------------


def accepted_in(store: Store) -> list[tuple[int, int]]:
    """Return (step_index, token) of each accepted step, in order."""
    facts = store.history()
    return [(f["step_index"], f["token"]) for f in facts if f["event"] == "succeeded"]


def run_files(folder: Path) -> dict[str, bytes]:
    """Return the files of the run in *folder* that all clones share."""
    found = [folder / "state.json", *sorted(folder.glob("journal*.jsonl"))]
    return {path.name: path.read_bytes() for path in found}


def violations(
    shared: Shared,
    names: list[str],
    *,
    least: int | None,
    all_told: bool = False,
    may_hold_halves: bool = False,
) -> list[str]:
    """Return what does not hold at rest; each clone of *names* looks once more.

    *least*: so many steps must have been accepted; *all_told*: nobody was killed, so each
    has been told of its steps. *may_hold_halves*: git was killed in the clones, so that
    there are objects which no ref holds and which lack others.
    """
    wrong: list[str] = []
    told = [(int(step), int(token)) for step, token, _ in children.pairs(shared.folder / "told")]
    granted = [int(token) for (token,) in children.pairs(shared.folder / "granted")]
    if len(set(granted)) != len(granted):
        wrong.append(f"tokens were granted twice: {sorted(granted)}")
    if len(set(told)) != len(told):
        wrong.append(f"steps were told of twice: {sorted(told)}")
    files: dict[str, dict[str, bytes]] = {}
    for name in names:
        try:
            wrong += _violations_in(shared, name, told, least, all_told=all_told)
        except (AssertionError, SequencerError) as error:
            wrong.append(f"{name}: {error!r}")
        files[name] = run_files(shared.clone(name) / "sync")
    first = files[names[0]]
    wrong += [
        f"{name} and {names[0]} differ in {sorted(files[name].items() ^ first.items())[:1]}"
        for name in names[1:]
        if files[name] != first
    ]
    if not may_hold_halves:
        return wrong + unsound(shared, names)
    clones = [shared.clone(name) for name in names]
    return wrong + unsound(shared, []) + [text for clone in clones for text in incomplete(clone)]


def _violations_in(
    shared: Shared, name: str, told: list[tuple[int, int]], least: int | None, *, all_told: bool
) -> list[str]:
    store = shared.store(name, keep=KEEP)
    store.pull()
    # What a process has left behind is swept by the next one that takes the lock.
    store.update(lambda _: None)
    accepted = accepted_in(store)
    store.close()
    wrong = []
    if lost := sorted(set(told) - set(accepted)):
        wrong.append(f"{name} has lost {lost}")
    if all_told and sorted(told) != accepted:
        wrong.append(f"{name}: told of {sorted(told)}, accepted {accepted}")
    steps = cases.check_files(shared.clone(name) / "sync")
    if least is not None and steps < least:
        wrong.append(f"{name}: {steps} steps instead of {least}")
    return wrong


def unsound(shared: Shared, names: list[str]) -> list[str]:
    """Return what `git fsck` says against the repositories."""
    wrong = []
    for folder in (shared.bare, *(shared.clone(name) for name in names)):
        argv = ("git", "fsck", "--strict", "--full", "--no-dangling", "--no-progress")
        said = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        if said.returncode or said.stdout:
            wrong.append(f"fsck of {folder.name}: {said.returncode}: {said.stdout}{said.stderr}")
    return wrong


def incomplete(folder: Path) -> list[str]:
    """Return what refs of the repository in *folder* hold and is not there."""
    argv = ("git", "rev-list", "--objects", "--all", "--quiet")
    said = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    return [f"{folder.name}: {said.stderr}"] if said.returncode else []
