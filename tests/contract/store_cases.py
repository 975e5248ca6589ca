"""The verbs of a turn, straight on a store, and what has to hold of every run's files.

How an attempt ends is decided as in a run, by `SequenceKind`. Claims are made here, as
docs/protocol.md says: a store relies on no rule about who may claim.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from sequencer import (
    AttemptResult,
    Claim,
    Continuation,
    ContinuationKind,
    Event,
    Fact,
    FileStore,
    Head,
    Outcome,
    OutcomeStatus,
    Owner,
    SequenceKind,
    Status,
    Step,
    StepRef,
    Store,
    Transition,
    Usage,
    Workflow,
    find_step_ref,
)
from sequencer.errors import ClaimHeld, TransitionRefused

WORKFLOW = Workflow("standard", (Step(name="supervisor"), Step(name="main")))
RULES = SequenceKind(WORKFLOW)
HEAD_LIMIT = 4096
# Of another boot on no machine that this one could be: its lease has to run out.
STRANGER = Owner(host="far", machine="m", boot_id="b", pid_ns="n", pid=1, pid_start=1, nonce="x")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_head(**update: Any) -> Head:
    fields: dict[str, Any] = {
        "run_id": "run",
        "workflow_name": WORKFLOW.name,
        "workflow_digest": WORKFLOW.digest(),
        "expected_step": "supervisor",
        "last_update": now(),
    }
    return Head(**{**fields, **update})


def make_claim(token: int = 1, **update: Any) -> Claim:
    fields: dict[str, Any] = {
        "token": token,
        "step": "supervisor",
        "step_index": 0,
        "attempt": 1,
        "owner": STRANGER,
        "claimed_at": now(),
        "ttl_s": 60.0,
    }
    return Claim(**{**fields, **update})


def place_at(step_index: int) -> StepRef:
    return find_step_ref(WORKFLOW, step_index)


def on_run(change: Callable[[Head], Transition]) -> Callable[[Head | None], Transition]:
    def apply(head: Head | None) -> Transition:
        assert head is not None
        return change(head)

    return apply


def boot_clock() -> float | None:
    """Return the seconds since this machine booted; None if its system does not tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return None if clock is None else time.clock_gettime(clock)


def initializing(head: Head | None = None) -> Transition:
    """Return the first transition of a run, to *head*."""
    first = head or new_head()
    return Transition(first, (Fact(Event.INITIALISED, first.expected_step, first.step_index),))


def begin(store: Store) -> Head:
    return store.update(lambda head: initializing() if head is None else None)


def claiming(store: Store, head: Head) -> Transition:
    """Claim the next step for *store*, if nobody who may be alive holds it."""
    held = head.claims[0] if head.claims else None
    if head.exit or head.status in (Status.COMPLETE, Status.PAUSED, Status.WAITING_APPROVAL):
        raise TransitionRefused(f"the run is {head.status}: {head.exit_reason}")
    if held is not None and not store.liveness(held).allows_take_over:
        raise ClaimHeld(f"token {held.token} is held")
    return granting(head, store.owner(), store.ttl_s)


def granting(head: Head, owner: Owner, ttl_s: float) -> Transition:
    """Give *owner* a claim on the current step, even if another process holds it."""
    ref, token, attempt = place_at(head.step_index), head.token + 1, head.attempt + 1
    granted = make_claim(
        token,
        step=ref.step,
        step_index=ref.step_index,
        attempt=attempt,
        owner=owner,
        ttl_s=ttl_s,
        claimed_boottime=boot_clock(),
    )
    facts = [
        Fact(Event.TAKEN_OVER, held.step, held.step_index, held.token, held.attempt)
        for held in head.claims
    ]
    facts.append(Fact(Event.CLAIMED, ref.step, ref.step_index, token, attempt))
    following = head.replace(
        token=token,
        attempt=attempt,
        claims=(granted,),
        status=Status.RUNNING,
        expected_step=ref.step,
        last_update=now(),
    )
    return Transition(following, tuple(facts))


def claim(store: Store) -> Claim:
    """Claim the next step; raises what `claiming` raises."""
    return store.update(on_run(lambda head: claiming(store, head))).claims[0]


def ending(head: Head, token: int, kind: ContinuationKind, outcome: Outcome) -> Transition:
    """End the attempt with *token* as *kind* says; StaleClaim: its claim is gone."""
    held = head.find_claim(token)
    ref = place_at(head.step_index if held is None else held.step_index)
    result = AttemptResult(
        outcome=outcome,
        step=WORKFLOW.steps[ref.step_index % len(WORKFLOW.steps)],
        place=ref,
        agent="tester",
        token=token,
        ending=Continuation(kind, following=place_at(ref.step_index + 1)),
        record={"status": str(outcome.status), "output": outcome.output},
    )
    change = RULES.open(head, at=datetime.now(UTC))
    RULES.apply_result(change, result)
    return RULES.close(change)


def succeeding(head: Head, token: int, note: str = "") -> Transition:
    outcome = Outcome(status=OutcomeStatus.OK, output=note, usage=Usage(seconds=0.1))
    return ending(head, token, ContinuationKind.ACCEPT, outcome)


def failing(head: Head, token: int) -> Transition:
    outcome = Outcome(status=OutcomeStatus.FAILED, error="no")
    return ending(head, token, ContinuationKind.FAIL, outcome)


def releasing(head: Head, token: int) -> Transition:
    outcome = Outcome(status=OutcomeStatus.INTERRUPTED)
    return ending(head, token, ContinuationKind.BACK, outcome)


def commit(store: Store, token: int, note: str = "") -> Head:
    return store.update(on_run(lambda head: succeeding(head, token, note)))


def commit_and_claim(store: Store, token: int) -> Claim:
    def change(head: Head) -> Transition:
        accepted = succeeding(head, token)
        return accepted.combine(claiming(store, accepted.head))

    return store.update(on_run(change)).claims[0]


def fail(store: Store, token: int) -> Head:
    return store.update(on_run(lambda head: failing(head, token)))


def release(store: Store, token: int) -> Head:
    return store.update(on_run(lambda head: releasing(head, token)))


def edit(state_path: Path, **update: Any) -> None:
    """Write into state.json as a person does."""
    content = json.loads(state_path.read_text())
    state_path.write_text(json.dumps({**content, **update}))


def check_facts(facts: list[dict[str, Any]]) -> int:
    """Return how many steps were accepted; every one once and in order, every token once."""
    accepted = [f["step_index"] for f in facts if f["event"] == "succeeded"]
    assert accepted == list(range(len(accepted))), accepted
    tokens = [f["token"] for f in facts if f["event"] == "claimed"]
    assert all(earlier < later for earlier, later in pairwise(tokens)), tokens
    used = [f["token"] for f in facts if f["event"] in ("succeeded", "failed", "released")]
    assert len(used) == len(set(used)), used
    return len(accepted)


def check_files(folder: Path, name: str = "state.json") -> int:
    """Check a run's files at rest, and return how many steps were accepted."""
    lines = journal_lines(folder)
    revisions = list(lines)
    assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))
    state = folder / name
    assert state.stat().st_size < HEAD_LIMIT
    assert json.loads(state.read_text()) == lines[revisions[-1]]["head"]
    assert left_overs(folder) == []
    # Reading them checks that no line is damaged.
    store = FileStore(state)
    facts = list(store.history())
    store.close()
    assert list(dict.fromkeys(fact["revision"] for fact in facts)) == revisions
    return check_facts(facts) if revisions[0] == 1 else len(revisions)


def journal_lines(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the records of a run by revision; the first whole line with a revision counts."""
    found: dict[int, dict[str, Any]] = {}
    for path in [*sorted(folder.glob("journal-*.jsonl")), folder / "journal.jsonl"]:
        # A last line without an end is torn, even if it is complete otherwise.
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn by a crash and closed, or empty
            found.setdefault(record["revision"], record)
    return found


def left_overs(folder: Path) -> list[str]:
    """Return the temporary files and the beats of claims that are gone."""
    head = json.loads((folder / "state.json").read_text())
    standing = {str(held["token"]) for held in head["claims"]}
    beats = folder / "beats"
    stray = [
        entry.name
        for entry in (beats.iterdir() if beats.is_dir() else ())
        if entry.name.partition(".")[0] not in standing
    ]
    return stray + [str(path) for path in folder.rglob("*.tmp")]
