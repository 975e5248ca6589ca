"""What comes next, retries, and what a transition leaves where it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.run_commands import RunCommands
from sequencer.errors import (
    CorruptState,
    DefinitionChanged,
    StaleClaim,
    UsageRefused,
)
from sequencer.model.commands import AnswerQuestion
from sequencer.model.graph.transition import OpenTransition
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Retry
from sequencer.model.step import Step as WorkflowStep
from sequencer.model.workflow import Workflow
from tests.flows import workflow
from tests.unit.engine.flow.labs import Hold, failed, lab, let_go, until

# --- what comes next -----------------------------------------------------------------------


# --- retry -------------------------------------------------------------------------------


# --- a transition that is refused ------------------------------------------------------------


@pytest.mark.parametrize("how", ["accept", "fail", "release"])
def test_a_stale_claim_changes_nothing(tmp_path: Path, how: str) -> None:
    made = lab(tmp_path, "a --> b")
    made.died()
    stale = made.head.claims[0].token
    made.claimed()
    before = made.head
    assert before.claims[0].token == stale + 1
    outcome = Outcome(status=OutcomeStatus.OK, output="late")

    def act(step: OpenTransition) -> None:
        if how == "accept":
            step.accept(stale, outcome, None, {})
        elif how == "fail":
            step.fail(stale, outcome, {}, due=None, kind="error")
        else:
            step.release(stale, {}, outcome.usage)

    with pytest.raises(StaleClaim):
        made.run().flow.update(act, lambda _: None)
    assert made.head == before


def test_another_definition_is_refused(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> h{{H}} --> b")
    made.refused()
    other = made.changed(workflow("a --> h{{H}} --> c"))
    control = RunCommands(other.store(), other.workflow)
    with pytest.raises(DefinitionChanged, match="sequencer adopt"):
        control.do(AnswerQuestion("h", "yes"), by="ann")
    with pytest.raises(DefinitionChanged):
        other.work()
    assert made.accepted() == ["a"]


def test_only_a_graph_has_nodes(tmp_path: Path) -> None:
    made = lab(tmp_path, "a")
    with pytest.raises(UsageRefused, match="is not a graph"):
        GraphChanges(made.store(), Workflow("w", (WorkflowStep(name="a"),)))


# --- what is read --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../secret", "1-../x", "-1", "1-", "x-y", "1-2-3", ""])
def test_a_reference_to_anything_but_an_attempt_is_refused(tmp_path: Path, name: str) -> None:
    made = lab(tmp_path, "a")
    with pytest.raises(CorruptState, match="is not an attempt at a step"):
        made.worker().changes.read_output(name)


def test_a_damaged_marking_does_not_start_the_run_over(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> h{{H}} --> b")
    made.refused()
    path = tmp_path / "sync" / "state.json"
    head = json.loads(path.read_text())
    head["flow"]["marking"] = {"waiting": {"nobody": []}}
    path.write_text(json.dumps(head))
    # The question still waits: the marking was restored from the journal.
    assert made.refused().exit_code == 4
    assert made.actor.names == ["a"]
    assert path.with_name("state.json.edited").exists()


def test_next_lists_the_startable_nodes(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "s --> c & a; c & a --> j", {"a": hold, "c": failed()},
               retry={"c": Retry(max_attempts=2, initial_delay_s=100)})  # fmt: skip
    flow = GraphChanges(made.store(), made.workflow)
    assert flow.graph_kind.list_startable(None) == ["s"]
    head = made.begun()
    assert flow.graph_kind.list_startable(head) == ["s"]
    with let_go(hold):
        working = made.works(limits={"max_steps": 2})
        until(lambda: made.facts("failed"))
        # One runs, one rests.
        assert flow.graph_kind.list_startable(made.head) == ["c"]
        assert [one.step for one in made.run().next()] == ["c"]
    working.summary()
    assert flow.graph_kind.list_startable(made.head) == ["c"]
