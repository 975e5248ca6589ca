"""What a person types next: one line for every state of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sequencer.cli.views.next_command import RunSituation, next_command
from sequencer.errors import (
    ConfigurationError,
    CorruptState,
    DefinitionChanged,
    PackageFailed,
)
from sequencer.model.head import Flow, Gate, Head, Status
from sequencer.model.kind import Readiness, ReadinessKind
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Usage
from sequencer.model.sequence.sequence_kind import SequenceKind
from sequencer.model.store_move import close_run
from sequencer.store.protocol import Liveness
from tests.contract.store_cases import WORKFLOW, make_claim, new_head

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = RunLimits(steps=10)
LATER = "2026-01-01T00:00:01Z"
GATE = Gate(step="main", step_index=1, token=1, opened_at="2026-01-01T00:00:00Z")
ANSWERED = GATE.replace(decision="feedback")
HELD = {"claims": (make_claim(),), "status": Status.RUNNING}
LOG = "'sequencer log' says what happened"


def check(head: Head) -> Readiness:
    return SequenceKind(WORKFLOW).check_readiness(head, LIMITS, at=NOW)


def situation(update: dict[str, Any] | None, **facts: Any) -> RunSituation:
    """Return what is known of a run whose head has *update*; None: it has not started."""
    if update is None:
        return RunSituation(None, None, **facts)
    head = new_head(**update)
    is_free = any(one.allows_take_over for one in facts.get("holders", ()))
    seen = head.replace(claims=()) if is_free else head
    here = None if "problem" in facts else check(seen)
    return RunSituation(None, head, here, **facts)


@pytest.mark.parametrize(
    ("update", "facts", "words"),
    [
        (None, {}, "run"),
        (None, {"is_trusted": False}, "trust (it shows what the project can do, and asks you)"),
        (None, {"next_start": "it starts at 02:00"}, "run (it starts at 02:00 by itself)"),
        ({}, {}, "run"),
        ({"status": Status.WAITING_NEXT}, {}, "run"),
        ({"status": Status.WAITING_NEXT}, {"is_trusted": False}, "trust (it shows"),
        ({"status": Status.FAILED, "failures_in_row": 1}, {}, "run"),
        (HELD, {"holders": [Liveness.ALIVE]}, "log -f"),
        (HELD, {"holders": [Liveness.ALIVE], "has_nodes": True}, "status --watch"),
        (HELD, {"holders": [Liveness.UNKNOWN]}, "status --watch ('sequencer takeover --force' if"),
        (HELD, {"holders": [Liveness.DEAD]}, "run (it takes the step over)"),
        (HELD, {"holders": [Liveness.EXPIRED]}, "run (it takes the step over)"),
        (HELD, {"holders": [Liveness.ALIVE, Liveness.DEAD]}, "run (it takes the step over)"),
        (
            HELD,
            {"holders": [Liveness.DEAD], "takes_over": "--mode sync --position main"},
            "run --mode sync --position main (it takes the step over)",
        ),
        ({**HELD, "exit": True}, {"holders": [Liveness.DEAD]}, "resume"),
        ({**HELD, "exit": True}, {"holders": [Liveness.ALIVE]}, "log -f"),
        (HELD, {"holders": [Liveness.ALIVE], "needs_worker": True}, "worker (no worker has"),
        ({"exit": True}, {}, "resume"),
        ({"status": Status.PAUSED}, {}, "resume"),
        ({"pause_requested": True}, {}, "resume"),
        ({"status": Status.PAUSED, "exit_reason": "it repeats itself"}, {}, "resume"),
        (
            {"status": Status.PAUSED, "exit_reason": "it repeats itself", "gate": ANSWERED},
            {},
            "resume",
        ),
        ({"status": Status.WAITING_APPROVAL, "gate": GATE}, {}, "inbox"),
        ({"status": Status.WAITING_APPROVAL}, {}, "inbox"),
        ({"gate": GATE.replace(expires_at="2025-12-31T00:00:00Z")}, {}, "run"),
        (
            {"status": Status.WAITING_APPROVAL, "flow": Flow(asks=("b",))},
            {"has_nodes": True},
            "inbox",
        ),
        (
            {**HELD, "flow": Flow(asks=("b",))},
            {"has_nodes": True, "holders": [Liveness.ALIVE]},
            "inbox",
        ),
        (
            {**HELD, "flow": Flow(asks=("b",))},
            {"has_nodes": True, "holders": [Liveness.DEAD]},
            "run (it takes the step over)",
        ),
        (
            {"status": Status.FAILED, "flow": Flow(status="failed", rest=Status.FAILED)},
            {"has_nodes": True},
            f"retry ({LOG})",
        ),
        ({"failures_in_row": 3}, {}, f"retry ({LOG})"),
        ({"attempt": 20}, {}, f"retry ({LOG})"),
        (
            {"usage": Usage(steps=10)},
            {},
            "trust (first raise limits.steps in orchestration.yaml)",
        ),
        ({"not_before": LATER}, {}, "run (it waits until "),
        ({"status": Status.COMPLETE}, {}, "report ('sequencer reset' starts it again)"),
        ({"status": Status.COMPLETE}, {"is_trusted": False}, "report ("),
        (
            {"status": Status.COMPLETE},
            {"next_start": "it starts at 02:00"},
            "report (it starts at 02:00 by itself)",
        ),
        (
            {"status": Status.COMPLETE},
            {"has_nodes": True, "restart_command": "'sequencer run a.md --new'"},
            "report ('sequencer run a.md --new' starts it again)",
        ),
        ({}, {"lost": CorruptState("older files")}, "repair (accepted steps may be missing)"),
        ({}, {"problem": DefinitionChanged("other steps")}, "adopt (the run then continues"),
        ({}, {"problem": ConfigurationError("no such workflow")}, "check (the run and"),
        (
            {},
            {"stopped_by": ["the team has used 6 of 5 USD (teams.budget)"]},
            "trust (first raise teams.budget in orchestration.yaml)",
        ),
        (
            {},
            {"stopped_by": ["task a has used 6 of 5 USD (the task's budget)"]},
            "trust (first raise the limit where it is set)",
        ),
        (
            {},
            {"stopped_by": ["3 attempts in a row failed (teams.max_failures: 3)"]},
            f"retry ({LOG})",
        ),
    ],
)
def test_every_state_has_a_next_command(
    update: dict[str, Any] | None, facts: dict[str, Any], words: str
) -> None:
    found = next_command(situation(update, **facts)).words
    assert found.startswith(f"sequencer {words}")
    assert not words.endswith(")") or found == f"sequencer {words}"


def test_a_broken_package_is_named_and_not_the_configuration() -> None:
    problem = PackageFailed("the package 'acme' failed: KeyError: 'x'")
    found = next_command(RunSituation(None, new_head(), None, problem=problem))
    assert (found.line, found.note) == ("sequencer check", problem.message)


def test_the_next_command_of_a_complete_run_merges_its_work() -> None:
    head = new_head(status=Status.COMPLETE)
    here = check(head)
    found = next_command(RunSituation(None, head, here, merge="git merge topic"))
    assert found.words == "git merge topic (its work is not merged)"


def test_a_closed_copy_names_the_place_of_the_run() -> None:
    head = close_run(new_head(), "temporal", at="2026-01-01T00:00:00Z").head
    here = check(head)
    assert "store:" in next_command(RunSituation(None, head, here)).words


def test_every_kind_of_readiness_has_a_command() -> None:
    head = new_head()
    here = check(head)
    for kind in ReadinessKind:
        found = next_command(RunSituation(None, head, here.__class__(kind, "x", here.place)))
        assert found.line.startswith("sequencer ")


@pytest.mark.parametrize("name", ["nightly", "a b", "--odd", "a\nb"])
def test_the_command_names_the_run_and_is_one_line(name: str) -> None:
    head: Head = new_head(run_name=name, failures_in_row=3)
    here = check(head)
    found = next_command(RunSituation(name, head, here)).words
    assert found.startswith("sequencer --run")
    assert found.count("--run") == found.replace("--odd", "").count("--run") == 2
    assert "\n" not in found
