"""Two histories in one journal, as git makes them of two branches."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.invocation_budget import Mode
from sequencer.executors.cancellation import StopReason
from sequencer.model.commands import Accept, Pause, Reset, Resume, Rewind, SetField, Skip, Stop
from sequencer.model.limits import InvocationLimits
from sequencer.project.checks import check_state
from sequencer.project.diagnostics import Level
from sequencer.store.continuity import find_misfit
from sequencer.store.diagnosis import diagnose
from tests.acceptance.flow_projects import make_project, write_flow
from tests.unit.cli.calling import call
from tests.unit.engine.projects import FAILED, OK, head_of, open_scripted, reopen

MARKED = (b"<<<<<<< ours\n", b"=======\n", b">>>>>>> theirs\n")


SAID = {name: f"Say {name}" for name in ("s", "a", "b", "j", "k")}


def work(folder: Path, steps: int) -> None:
    reopen(folder).work(Mode.COMBINED, InvocationLimits(max_steps=steps))


def branches(tmp_path: Path, ours: int, theirs: int) -> tuple[Path, list[bytes], list[bytes]]:
    """Return a project, and the lines of its journal on two branches that have gone on alone."""
    folder, other = tmp_path / "ours", tmp_path / "theirs"
    open_scripted(folder, {**OK, "delay_s": 0.01})
    work(folder, 2)
    shutil.copytree(folder, other)
    work(folder, ours)
    work(other, theirs)
    lines = [
        (place / "sync/journal.jsonl").read_bytes().splitlines(keepends=True)
        for place in (folder, other)
    ]
    return folder, lines[0], lines[1]


def union(ours: list[bytes], theirs: list[bytes]) -> list[bytes]:
    return [*ours, *(line for line in theirs if line not in ours)]


def with_marks(ours: list[bytes], theirs: list[bytes]) -> list[bytes]:
    common = [line for line in ours if line in theirs]
    mine = [line for line in ours if line not in common]
    other = [line for line in theirs if line not in common]
    return [*common, MARKED[0], *mine, MARKED[1], *other, MARKED[2]]


@pytest.mark.parametrize("merge", [union, with_marks])
@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (1, 4), (2, 5)])
def test_a_merged_journal_is_an_error_with_its_place(
    tmp_path: Path,
    ours: int,
    theirs: int,
    merge: Callable[[list[bytes], list[bytes]], list[bytes]],
) -> None:
    folder, mine, other = branches(tmp_path, ours, theirs)
    merged = merge(mine, other)
    (folder / "sync/journal.jsonl").write_bytes(b"".join(merged))
    (folder / "sync/state.json").unlink()
    state = folder / "sync/state.json"
    report = diagnose(state).journals[0]
    assert report.misfits
    wrong = [finding for finding in check_state(state) if finding.level is Level.ERROR]
    assert any("the journal does not continue at byte" in finding.message for finding in wrong)
    assert call(folder, "check").code == 3
    assert "the journal does not continue" in call(folder, "repair").out


def test_a_run_in_which_everything_happens_is_one_history(tmp_path: Path) -> None:
    retry = {"max_attempts": 3, "backoff": "fixed", "initial_delay_s": 0.05}
    run = open_scripted(
        tmp_path,
        {**FAILED, "attempt": 1, "step_index": 1},
        {"status": "ok", "output": "x" * 9_000, "usage": {"cost_usd": 0.1, "input_tokens": 3}},
        step_defaults={"retry": retry},
    )
    work(tmp_path, 3)
    changes: tuple[Callable[[], object], ...] = (
        lambda: run.do(Accept("by hand")),
        lambda: run.do(Skip("no use")),
        lambda: run.do(Pause()),
        lambda: run.do(Resume()),
        lambda: run.do(Rewind("2")),
        lambda: run.do(SetField("note", 1)),
        lambda: run.do(Stop("enough")),
        lambda: run.do(Resume()),
        lambda: run.do(Reset()),
    )
    for change in changes:
        change()
        if head_of(run).status in ("idle", "waiting-next"):
            work(tmp_path, 1)
    found = diagnose(tmp_path / "sync/state.json").journals[0]
    assert len(found.scan.winners) > 15
    assert found.misfits == ()


def test_a_record_has_to_match_the_head_before_it() -> None:
    head = {
        "step_index": 3,
        "token": 7,
        "claims": [{"token": 7}],
        "usage": {"seconds": 1.0, "cost_usd": 0.5},
    }
    fact = {"revision": 2, "at": "", "event": "claimed", "step_index": 3, "token": 8}
    same = {"head": {"usage": head["usage"]}}
    assert find_misfit(head, {**fact, **same}) is None
    assert "step_index 4" in str(find_misfit(head, {**fact, **same, "step_index": 4}))
    assert "token 9" in str(find_misfit(head, {**fact, **same, "token": 9}))
    grown = {"head": {"usage": {"seconds": 2.5, "cost_usd": 0.5}}}
    assert "usage.seconds" in str(find_misfit(head, {**fact, **grown}))
    done = {**fact, **grown, "event": "failed", "token": 7, "outcome": {"usage": {"seconds": 1.5}}}
    assert find_misfit(head, done) is None
    assert "ends token 6" in str(find_misfit(head, {**done, "token": 6}))
    fused = {**fact, **same, "also": [{"event": "released", "token": 8, "outcome": None}]}
    assert find_misfit(head, fused) is None
    assert find_misfit(head, {**done, "outcome": {"usage": {"seconds": 0.5}}}) is not None
    assert find_misfit(head, {**fact, **grown, "event": "edited", "step_index": 9}) is None


def test_a_record_of_a_graph_has_to_match_the_head_before_it() -> None:
    held = [{"token": 7, "step_index": 1}, {"token": 8, "step_index": 1}]
    head = {"run_id": "r", "step_index": 2, "token": 8, "claims": held, "flow": {}}
    after = {"head": {"run_id": "r"}}
    ended = {
        "revision": 2,
        "at": "",
        "event": "succeeded",
        "step_index": 1,
        "token": 8,
        **after,
        "attempt": 1,
    }
    # Granted side by side, so each ends where it was granted.
    assert find_misfit(head, ended) is None
    assert "step_index 1" in str(find_misfit({**head, "flow": None}, ended))
    assert "step_index 2" in str(find_misfit(head, {**ended, "step_index": 2}))
    assert "ends token 6" in str(find_misfit(head, {**ended, "token": 6}))
    granted = {**ended, "event": "claimed", "token": 9, "step_index": 2}
    assert find_misfit(head, granted) is None
    assert "step_index 1" in str(find_misfit(head, {**granted, "step_index": 1}))
    assert "token 10" in str(find_misfit(head, {**granted, "token": 10}))
    by_person = {**ended, "event": "answered", "token": 0, "step_index": 2}
    assert find_misfit(head, by_person) is None
    # Who is asked gets a token as well, but no claim.
    asks = {"event": "asked", "step": "h", "token": 9, "step_index": 3}
    assert find_misfit(head, {**ended, "also": [asks]}) is None
    assert "grants token 10" in str(find_misfit(head, {**ended, "also": [{**asks, "token": 10}]}))
    assert (
        find_misfit(head, {**by_person, "also": [{**asks, "event": "failed", "token": 6}]}) is None
    )
    assert "it is from run q" in str(find_misfit(head, {**ended, "head": {"run_id": "q"}}))


def test_a_decision_at_a_gate_continues_the_record_in_which_the_gate_waits() -> None:
    gate = {"step_index": 2, "token": 7, "decision": None}
    head = {"step_index": 3, "token": 7, "claims": [], "gate": gate}
    fact = {"revision": 2, "at": "", "step": "ask", "step_index": 2, "token": 7, "head": {}}
    for event in ("approved", "rejected", "feedback"):
        decided = {**fact, "event": event}
        assert find_misfit(head, decided) is None
        assert "the gate of step_index 1, token 7" in str(
            find_misfit(head, {**decided, "step_index": 1})
        )
        assert "the gate of step_index 2, token 5" in str(
            find_misfit(head, {**decided, "token": 5})
        )
        for gone in (None, {**gate, "decision": "feedback"}):
            assert "no gate waits" in str(find_misfit({**head, "gate": gone}, decided))
    # Only a decision is about the step before the gate.
    assert "step_index 2" in str(find_misfit(head, {**fact, "event": "paused"}))


@pytest.mark.parametrize("flow", [None, {}])
def test_the_late_use_of_an_attempt_continues_a_record_without_its_claim(flow: Any) -> None:
    spent = {"seconds": 1.5, "cost_usd": 0.2}
    after = {"seconds": 2.5, "cost_usd": 0.7}
    head = {
        "step_index": 3,
        "token": 7,
        "claims": [],
        "flow": flow,
        "usage": {"seconds": 1.0, "cost_usd": 0.5},
    }
    late = {
        "revision": 2,
        "at": "",
        "event": "released",
        "step_index": 5,
        "token": 6,
        "attempt": 1,
        "outcome": {"reason": StopReason.CLAIM_LOST, "usage": spent},
        "head": {"usage": after},
    }
    assert find_misfit(head, late) is None
    assert "the newest token is 7" in str(find_misfit(head, {**late, "token": 8}))
    free = {**late, "head": {"usage": head["usage"]}}
    assert "its events used 0.2" in str(find_misfit(head, free))
    for more in ({"step_index": 4}, {"token": 6}, {"claims": [{"token": 7}]}):
        moved = {**late, "head": {"usage": after, **more}}
        assert "only counts what an attempt has used" in str(find_misfit(head, moved))
    other = {**late, "step_index": 3, "outcome": {"reason": "interrupted", "usage": spent}}
    assert "ends token 6" in str(find_misfit(head, other))


def test_a_text_of_a_person_takes_a_token_in_a_graph_only() -> None:
    head = {"step_index": 2, "token": 7, "claims": [], "flow": {}}
    asked = {"event": "asked", "step": "q", "token": 9, "step_index": 3}
    done = {
        "revision": 2,
        "at": "",
        "event": "stamped",
        "step": "a",
        "step_index": 2,
        "token": 0,
        "outcome": {"note": "ok"},
        "head": {},
        "also": [asked],
    }
    assert find_misfit(head, done) is None
    for token in (8, 10):
        found = find_misfit(head, {**done, "also": [{**asked, "token": token}]})
        assert f"grants token {token}, but the next token is 9" in str(found)
    assert "next token is 8" in str(find_misfit({**head, "flow": None}, done))
    # Nothing is stored for a node that a person lets fail.
    assert "next token is 8" in str(find_misfit(head, {**done, "outcome": {"note": "fail: no"}}))
    assert find_misfit(head, {**done, "event": "told", "token": 8}) is None


# Two more steps: the ends of a and b can be one record, and theirs has to be the longer one.
@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(("ours", "theirs"), [(1, 3), (2, 4)])
def test_two_merged_histories_of_a_graph_are_detected(
    tmp_path: Path, ours: int, theirs: int
) -> None:
    folder, other = tmp_path / "ours", tmp_path / "theirs"
    folder.mkdir()
    write_flow(make_project(folder), "par", "  s --> a & b --> j --> k", **SAID)
    assert call(folder, "run", "par", "--max-steps", "1").code == 0
    shutil.copytree(folder, other)
    for place, steps in ((folder, ours), (other, theirs)):
        call(place, "run", "par", "--max-steps", str(steps))
    path = Path("sync/runs/par/journal.jsonl")
    mine, its = ((p / path).read_bytes().splitlines(keepends=True) for p in (folder, other))
    (folder / path).write_bytes(b"".join(union(mine, its)))
    (folder / path).with_name("state.json").unlink()
    assert "the journal does not continue" in call(folder, "--run", "par", "check").out
