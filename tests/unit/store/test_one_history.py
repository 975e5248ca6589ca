"""`check` never says that the journal does not continue in a run that only the program has written.

`tests/conftest.py` asks the same about each change that any test makes.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.graph_worker import GraphWorker
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.protocol import StepRequest
from sequencer.history.facts import list_facts
from sequencer.model.commands import Resume, RetryNow, Stop, StopNow, TakeOver
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.store.journal import survey
from tests.continued import list_misfits
from tests.golden.stories import FAILS, NO, PRICED, YES, Story, flow
from tests.unit.cli.calling import call
from tests.unit.engine.flow.labs import Hold, Lab, failed, lab, let_go, until
from tests.unit.engine.flow.team_labs import AT_ONCE, JUDGE, adds, no, task, team
from tests.unit.engine.flow.team_labs import YES as PASS
from tests.unit.engine.projects import LIMIT_S
from tests.unit.store.test_migration import NEWER

Step = str | Callable[[Path], object]
GATED: dict[str, Any] = {"name": "two", "requires_approval": True}


def edit(**fields: Any) -> Callable[[Path], object]:
    """Return a change of state.json by hand."""

    def write(folder: Path) -> None:
        path = folder / "sync/state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return write


def configure(**settings: Any) -> Callable[[Path], object]:
    """Return a change of the configuration."""

    def write(folder: Path) -> None:
        path = folder / "orchestration.yaml"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))

    return write


def lose_head(folder: Path) -> None:
    (folder / "sync/state.json").unlink()


def lose_last_record(folder: Path) -> None:
    path = folder / "sync/journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def let_expire(folder: Path) -> None:
    del folder
    time.sleep(0.3)


def play(folder: Path, settings: dict[str, Any], *steps: Step, **more: Any) -> set[str]:
    """Do *steps* in a new project, check after each, and return the events that were recorded."""
    Story(settings, (), 0, **more).make(folder)
    for step in steps:
        if callable(step):
            step(folder)
            continue
        called = call(folder, *shlex.split(step))
        assert called.code in (0, 1, 3, 4), f"{step}: {called}"
        assert [*list_misfits(folder)] == [], step
        assert "two histories" not in call(folder, "check").out, step
    return {
        fact["event"]
        for path in folder.rglob("journal*.jsonl")
        for record in survey(path.read_bytes()).winners
        for fact in list_facts(record.data)
    }


def _workflow(*steps: Any, kind: str = "procedure", **more: Any) -> dict[str, Any]:
    return {"workflow": {"name": "w"}, "workflows": {"w": {"kind": kind, "steps": steps}}, **more}


def _gate(**approval: Any) -> dict[str, Any]:
    return {**GATED, "approval": approval}


JUDGED = {"name": "judge", "validation": {"fixer": {"name": "fix"}, "max_attempts": 3}}
EXPIRES = {"timeout_s": 0.2}


@dataclass(frozen=True)
class Case:
    """What is done in a run, and which events it has to lead to."""

    events: str
    settings: dict[str, Any]
    steps: tuple[Step, ...]
    answers: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


HOOKS = """\
from sequencer import Decision, Move, hookimpl

MOVES = {
    ("one", 1): Decision(Move.RETRY, reason="again"),
    ("one", 2): Decision(Move.GOTO, "three", "later"),
    ("three", 1): Decision(Move.FAIL, reason="no"),
    ("three", 2): Decision(Move.GOTO, "one", "back"),
    ("one", 3): Decision(Move.SKIP, reason="not two"),
    ("three", 3): Decision(Move.GATE, reason="a person"),
    ("main", 1): Decision(Move.COMPLETE, reason="enough"),
}
counts = {}

@hookimpl
def sequencer_transition(context, outcome):
    name = context.step.name
    counts[name] = counts.get(name, 0) + 1
    return MOVES.get((name, counts[name]), Decision(Move.NEXT))
"""
ASKS = "a --> q{{Fine?}}\nq -->|yes| b\nq -->|timeout| c\nq -->|again| a\nb & c --> z"
SECTIONS = "".join(f"### {name}\nx\n\n" for name in "abcz")
SETS = (
    "exit=true",
    "exit_reason=why",
    "failures_in_row=1",
    "last_prompt=one.md",
    "note=x",
    "not_before=2020-01-01T00:00:00Z",
    "status=paused",
)

CASES: dict[str, Case] = {
    "gate": Case(
        "feedback approved rejected completed invalid fixed rewound told reset skipped",
        _workflow("one", GATED, JUDGED, "three"),
        (
            *("run --quiet", "answer feedback better", "run --quiet", "tell three careful"),
            *("answer approve --note fine", "run --quiet", "rewind 1", "run --quiet"),
            *("answer reject", "rewind 0", "run --quiet", "answer approve", "run --quiet"),
            *("reset --yes", "run --start-at three --quiet"),
        ),
        answers={"judge.1": NO, "judge.2": NO, "judge": YES},
    ),
    "gate that expires as approved": Case(
        "approved completed",
        _workflow("one", _gate(on_timeout="approve", **EXPIRES), "three"),
        ("run --quiet", let_expire, "tick", "run --quiet"),
    ),
    "gate that expires as rejected": Case(
        "rejected completed",
        _workflow("one", _gate(**EXPIRES)),
        ("run --quiet", let_expire, "tick"),
    ),
    "fixer": Case(
        "invalid skipped stamped resumed",
        _workflow("one", JUDGED, "three", kind="cycle"),
        (
            *("run --max-steps 2 --quiet", "skip --note fix", "run --max-steps 1 --quiet"),
            *("skip --as-done", "run --max-steps 1 --quiet", "skip --as-failed", "retry"),
            *("skip --as-done", "run --max-steps 3 --quiet"),
        ),
        answers={"judge": NO, "fix": "echo fixed", "three": PRICED},
    ),
    "cycle": Case(
        "failed resumed stamped skipped edited paused rewound adopted reset succeeded",
        {"workflow": {"name": "review_cadence", "review_every_n": 2}},
        (
            *("run --max-steps 3 --quiet", "retry", "run --max-steps 2 --quiet"),
            *("stop --reason enough", "resume", "stop --pause", "resume"),
            *("skip --as-done --note x", "skip --as-failed", "retry", "skip"),
            *(step for one in SETS for step in (f"set {one}", "resume")),
            *("set step_index=3", "tick", "rewind 1", "run --max-steps 1 --quiet"),
            *(edit(exit=True, exit_reason="by hand"), "run --quiet", "resume"),
            *(edit(ticket="T-1"), "tick", edit(step_index=9), "tick"),
            *(configure(workflow={"name": "review_cadence", "review_every_n": 3}), "adopt"),
            *(lose_head, "run --max-steps 1 --quiet", lose_last_record, lose_head),
            *("repair --apply --accept-journal", "run --max-steps 2 --quiet"),
            *("reset --yes", "run --max-cycles 2 --quiet", "stop --now", "resume", "tick"),
        ),
        answers={"main.1": FAILS, "main": PRICED},
    ),
    "hooks": Case(
        "invalid failed succeeded",
        _workflow("one", "two", "three", "main", hooks=["hooks.py"]),
        (
            "run --quiet",
            "retry",
            "run --quiet",
            "retry",
            "run --quiet",
            "answer approve",
            "run --quiet",
        ),
        files={"hooks.py": HOOKS},
    ),
    "flow": Case(
        "asked answered told stamped rewound skipped failed resumed paused reset cancelled",
        {},
        (
            *("run flow --quiet --max-steps 1", "--run flow answer q again"),
            *(
                "--run flow stop --pause",
                "--run flow resume",
                "--run flow tell a careful",
                "--run flow skip a --as-done --output hello",
            ),
            *("--run flow rewind a", "--run flow skip a --note later"),
            *("--run flow answer q yes", "run flow --quiet --max-steps 1"),
            *("--run flow retry", "run flow --quiet", "--run flow rewind b"),
            *("--run flow skip b --as-failed", "--run flow retry", "run flow --quiet"),
            "--run flow reset --yes",
            *("run flow --quiet", "--run flow stop", "--run flow resume"),
            *("--run flow set note=x", "--run flow answer reject"),
        ),
        answers={"b.1": FAILS, "a": PRICED},
        files=flow(ASKS, sections=SECTIONS),
    ),
    "question that expires": Case(
        "asked answered completed",
        {},
        ("run flow --quiet --max-steps 1", let_expire, "run flow --quiet"),
        files=flow(ASKS, sections=SECTIONS + "### q\n---\ntimeout: 200\n---\nFine?\n"),
    ),
    "flow with an error node": Case(
        "diverted failed completed",
        {},
        ("run flow --quiet", "--run flow retry", "run flow --quiet"),
        answers={"b.1": FAILS},
        files=flow(
            "a --> b & c --> z\nundo", front="onError: undo\n", sections=SECTIONS + "### undo\nx\n"
        ),
    ),
}


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_only_the_program_wrote_is_one_history(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    recorded = play(tmp_path, case.settings, *case.steps, answers=case.answers, files=case.files)
    assert {*case.events.split()} <= recorded


def test_a_migrated_run_is_one_history(tmp_path: Path) -> None:
    settings = {"workflow": {"name": "review_cadence"}}
    steps = ("run --max-steps 2 --quiet", "skip", "run --max-steps 1 --quiet")
    assert {"initialised", "succeeded", "skipped"} <= play(
        tmp_path, settings, _write_old_state, *steps
    )


def _write_old_state(folder: Path) -> None:
    (folder / "sync").mkdir(mode=0o700)
    (folder / "sync/state.json").write_text(json.dumps(NEWER))


# --- agents that have cost something when their claims were dropped ------------------------

SPENT = Outcome(status=OutcomeStatus.INTERRUPTED, usage=Usage(cost_usd=0.5, seconds=1.5))


class Paid(Hold):
    """An agent that has cost something when it is stopped."""

    def __call__(self, request: StepRequest, cancellation: Cancellation) -> Outcome:
        outcome = super().__call__(request, cancellation)
        return SPENT if self.was_stopped else outcome


def take_away(made: Lab, *holds: Paid, by_stop: bool) -> None:
    """Let agents work, drop their claims, and wait until their use is counted."""
    with let_go(*holds):
        working = made.works()
        for hold in holds:
            hold.wait()
        made.run().do(Stop())
        made.run().do(StopNow() if by_stop else TakeOver())
        working.end()
    until(lambda: made.head.usage.cost_usd == pytest.approx(0.5 * len(holds)))
    assert [*list_misfits(made.folder)] == []
    made.run().do(Resume())


@pytest.mark.parametrize("by_stop", [True, False])
def test_the_use_of_a_stopped_flow_is_counted_in_one_history(by_stop: bool, tmp_path: Path) -> None:
    holds = Paid(), Paid()
    made = lab(tmp_path, "s --> a & b; a & b --> c", {"a": [holds[0], ""], "b": [holds[1], ""]})
    take_away(made, *holds, by_stop=by_stop)
    assert any(fact["outcome"].get("reason") == "claim-lost" for fact in made.facts("released"))
    made.work()
    assert made.status == "completed"
    assert [*list_misfits(tmp_path)] == []


def test_the_use_of_a_node_whose_claim_is_still_there_is_not_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record, is_recorded = GraphWorker.record, threading.Event()

    def record_and_say_so(*args: Any) -> Any:
        head = record(*args)
        is_recorded.set()
        return head

    def lose_it(_: StepRequest, cancellation: Cancellation) -> Outcome:
        # As if the files of the run had been away at a heartbeat.
        cancellation.set(StopReason.CLAIM_LOST)
        return SPENT

    monkeypatch.setattr(GraphWorker, "record", record_and_say_so)
    made = lab(tmp_path, "a --> b", {"a": [lose_it, ""]})
    working = made.works()
    assert is_recorded.wait(LIMIT_S)
    assert len(made.head.claims) == 1
    assert made.facts("released") == []
    made.run().do(Stop())
    made.run().do(TakeOver())
    working.end()


def test_a_team_with_added_tasks_and_judges_is_one_history(tmp_path: Path) -> None:
    hold = Paid()
    tasks = [
        task("plan", adds="tasks"),
        task("build", "plan", **AT_ONCE),
        task("check", "build", **JUDGE),
    ]
    says = {
        "plan": [hold, adds(("api",), ("try", "api"))],
        "build": [failed(), failed(), failed(), "built"],
        "check": [no(), PASS],
    }
    made = team(tmp_path, tasks, says)
    take_away(made, hold, by_stop=True)
    made.tell("build", "mind the gap")
    made.ended()
    assert [*list_misfits(tmp_path)] == []
    made.run().do(RetryNow())
    made.ended()
    assert made.status == "completed"
    assert {"grown", "told", "invalid", "released"} <= {fact["event"] for fact in made.facts()}
    assert [*list_misfits(tmp_path)] == []
