"""The verbs of a turn, straight on a store, and what has to hold of every run's files."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from sequencer import (
    Claim,
    Head,
    Outcome,
    OutcomeStatus,
    Owner,
    Step,
    StepRef,
    Store,
    Transition,
    Usage,
    Workflow,
    find_step_ref,
)
from sequencer.model import transitions
from sequencer.store.identity import boottime
from sequencer.store.journal import JournalFile

WORKFLOW = Workflow("standard", (Step(name="supervisor"), Step(name="main")))
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


def begin(store: Store) -> Head:
    return store.update(lambda head: transitions.initialize(new_head()) if head is None else None)


def claiming(store: Store, head: Head) -> Transition:
    held = head.claims[0] if head.claims else None
    return transitions.claim(
        head,
        place_at(head.step_index),
        store.owner(),
        at=now(),
        ttl_s=store.ttl_s,
        at_boottime=boottime(),
        may_take_over=held is not None and store.liveness(held).allows_take_over,
    )


def claim(store: Store) -> Claim:
    """Claim the next step; raises what the transition raises."""
    return store.update(on_run(lambda head: claiming(store, head))).claims[0]


def succeeding(head: Head, token: int, note: str = "") -> Transition:
    outcome = Outcome(status=OutcomeStatus.OK, usage=Usage(seconds=0.1))
    held = transitions.require_claim(head, token)
    following = place_at(held.step_index + 1)
    record = {"status": "ok", "output": note}
    return transitions.succeed(head, token, outcome, following, at=now(), record=record)


def commit(store: Store, token: int, note: str = "") -> Head:
    return store.update(on_run(lambda head: succeeding(head, token, note)))


def commit_and_claim(store: Store, token: int) -> Claim:
    def change(head: Head) -> Transition:
        accepted = succeeding(head, token)
        return accepted.combine(claiming(store, accepted.head))

    return store.update(on_run(change)).claims[0]


def fail(store: Store, token: int) -> Head:
    outcome = Outcome(status=OutcomeStatus.FAILED, error="no")
    record = {"status": "failed"}
    return store.update(
        on_run(lambda head: transitions.fail(head, token, outcome, at=now(), record=record))
    )


def release(store: Store, token: int) -> Head:
    return store.update(on_run(lambda head: transitions.release(head, token, at=now())))


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
    journal = JournalFile(folder, 2**40, 100)
    records = list(journal.read_records())
    revisions = [record.revision for record in records]
    assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))
    state = folder / name
    assert state.stat().st_size < HEAD_LIMIT
    assert json.loads(state.read_text()) == records[-1].data["head"]
    assert left_overs(folder) == []
    facts = [fact for record in records for fact in [record.data, *record.data.get("also", ())]]
    return check_facts(facts) if revisions[0] == 1 else len(revisions)


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
