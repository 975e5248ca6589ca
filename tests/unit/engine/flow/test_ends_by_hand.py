"""How a person ends a graph's run, and what decisions it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.engine.by_hand import Control
from sequencer.engine.markings import FlowControl
from sequencer.errors import TransitionRefused
from sequencer.model.head import Head, Status
from sequencer.model.workflow import Workflow
from sequencer.store.file import FileStore
from tests.flows import workflow


def asking(tmp_path: Path) -> tuple[FileStore, Workflow, Head]:
    store, made = FileStore(tmp_path / "state.json"), workflow("h{{Sure?}} --> m((m))")
    Control(store, made).begin()
    head, _ = FlowControl(store, made).update(None, lambda _: None)
    assert head.status is Status.WAITING_APPROVAL
    return store, made, head


def test_a_rejected_run_is_cancelled(tmp_path: Path) -> None:
    store, made, _ = asking(tmp_path)
    head = Control(store, made).reject("no need", by="ann")
    assert (head.status, head.exit_reason) == (Status.COMPLETE, "cancelled")
    facts = list(store.history())[-2:]
    assert [fact["event"] for fact in facts] == ["cancelled", "completed"]
    assert facts[0]["outcome"] == {"by": "ann", "note": "no need", "cancelled": ["h"]}
    with pytest.raises(TransitionRefused, match="has ended as cancelled"):
        Control(store, made).reject(by="bob")


def test_a_cancelled_run_can_be_brought_back(tmp_path: Path) -> None:
    store, made, before = asking(tmp_path)
    Control(store, made).reject(by="ann")
    head = Control(store, made).retry()
    assert head.status is Status.WAITING_APPROVAL
    assert head.token > before.token, "the question is asked anew"


@pytest.mark.parametrize("verb", ["approve", "feedback"])
def test_a_question_is_answered_and_not_approved(tmp_path: Path, verb: str) -> None:
    store, made, before = asking(tmp_path)
    control = Control(store, made)
    with pytest.raises(TransitionRefused, match="questions are answered") as refused:
        control.approve(by="ann") if verb == "approve" else control.feedback("x", by="ann")
    assert "sequencer answer" in (refused.value.hint or "")
    assert store.view().head == before
