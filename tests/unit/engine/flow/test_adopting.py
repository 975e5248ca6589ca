"""A run that goes on under a workflow that was changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import CorruptState, DefinitionChanged, TransitionRefused
from sequencer.model.commands import Adopt, RetryNow
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.command_rules import MAX_DIFFERENCES
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from tests.flows import workflow
from tests.unit.engine.flow.labs import Lab, lab

BEFORE = "a --> h{{H}} --> b --> c"


def waiting(folder: Path, text: str = BEFORE, **settings: Any) -> Lab:
    made = lab(folder, text, {"a": "of a"}, **settings)
    made.refused()
    return made


def adopted(made: Lab, text: str, **settings: Any) -> Lab:
    """Change the chart to *text*, adopt it, and return the run under it."""
    after = made.changed(workflow(text, **settings))
    with pytest.raises(DefinitionChanged):
        after.work()
    after.run().do(Adopt())
    return after


def note(made: Lab) -> str:
    (fact,) = made.facts("adopted")
    told: str = fact["outcome"]["note"]
    return told


def test_adopting_notes_what_changed(tmp_path: Path) -> None:
    after = adopted(waiting(tmp_path), "a --> h{{H}} --> d; h --> b", max_iterations=7)
    told = note(after).split("; ")
    assert "node 'c' is gone" in told
    assert "node 'd' is new" in told
    assert "edge 'b -> c' is gone" in told
    assert "edge 'h -> d' is new" in told
    assert any(line.startswith("max_iterations: ") and line.endswith(" -> 7") for line in told)


def test_the_note_on_a_large_change_is_shortened(tmp_path: Path) -> None:
    names = " --> ".join(f"n{number}" for number in range(MAX_DIFFERENCES + 10))
    after = adopted(waiting(tmp_path), f"a --> h{{{{H}}}} --> {names}")
    told = note(after).split("; ")
    assert len(told) == MAX_DIFFERENCES + 1
    assert told[-1].startswith("and ")
    assert len(note(after)) < 4_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a --> b --> c", "is at 'h', which are gone"),
        ("a --> h --> b --> c", "'h', which are of another kind"),
    ],
)
def test_adopting_is_refused_if_the_current_nodes_are_missing(
    tmp_path: Path, text: str, message: str
) -> None:
    made = waiting(tmp_path)
    before = (tmp_path / "sync" / "flow.json").read_bytes(), made.head
    after = made.changed(workflow(text))
    with pytest.raises(TransitionRefused, match=message) as refused:
        after.run().do(Adopt())
    assert refused.value.hint == "answer the open questions first"
    assert ((tmp_path / "sync" / "flow.json").read_bytes(), made.head) == before
    # And it goes on as it was.
    made.answer("h", "yes")
    assert made.work().usage.steps == 2


def test_a_token_that_waits_must_have_its_node(tmp_path: Path) -> None:
    made = lab(tmp_path, "s --> a & b; a & b --> j")
    made.work(limits={"max_steps": 1})
    with pytest.raises(TransitionRefused, match="is at 'b'"):
        made.changed(workflow("s --> a; a --> j")).run().do(Adopt())


def test_a_node_stopped_by_a_failure_must_exist(tmp_path: Path) -> None:
    """Else a retry would put a token on a node that nobody knows."""
    made = lab(tmp_path, "s --> a", {"a": ValueError()})
    made.refused()
    with pytest.raises(TransitionRefused, match="is at 'a'"):
        made.changed(workflow("s --> b")).run().do(Adopt())
    after = adopted(made, "s --> a --> b")
    assert after.status == "failed"
    after.actor.says.clear()
    after.run().do(RetryNow())
    after.work()
    assert after.accepted() == ["s", "a", "b"]


def test_a_graph_cannot_adopt_a_sequence_of_steps(tmp_path: Path) -> None:
    made = waiting(tmp_path)
    line = made.changed(Workflow("flow", (Step(name="a"),)))
    with pytest.raises(TransitionRefused, match="sequence of steps"):
        line.run().do(Adopt())


def test_the_workflow_the_run_started_with_must_be_readable(tmp_path: Path) -> None:
    made = waiting(tmp_path)
    after = made.changed(workflow("a --> h{{H}} --> d"))
    path = tmp_path / "sync" / "flow.json"
    kept = path.read_bytes()
    path.write_bytes(kept[:-10])
    with pytest.raises(CorruptState):
        after.run().do(Adopt())
    path.unlink()
    with pytest.raises(CorruptState, match="is missing"):
        after.run().do(Adopt())
    path.write_bytes(kept)
    after.run().do(Adopt())
    assert "node 'd' is new" in note(after)


def test_a_run_with_its_marking_in_documents_can_adopt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_record, "INLINE_ENTRIES", 0)
    monkeypatch.setattr(flow_record, "SINCE_BYTES", 60)
    made = waiting(tmp_path, "a --> b --> c --> d --> h{{H}} --> e")
    after = adopted(made, "a --> b --> c --> d --> h{{H}} --> f")
    flow = after.head.flow
    assert flow is not None
    assert flow.base is not None
    after.answer("h", "yes")
    after.work()
    assert after.accepted() == ["a", "b", "c", "d", "f"]


def test_nothing_is_adopted_while_an_agent_works(tmp_path: Path) -> None:

    made = lab(tmp_path, "a --> b")
    made.claimed()
    with pytest.raises(TransitionRefused):
        made.changed(workflow("a --> c")).run().do(Adopt())


def test_adopting_can_be_repeated_after_a_kill(tmp_path: Path) -> None:
    """flow.json is of the new workflow by then, and the head of the old one."""
    made = waiting(tmp_path)
    state = made.store().state_path
    files = [state, state.with_name("journal.jsonl")]
    before = [file.read_bytes() for file in files]
    changed = "a --> h{{H}} --> b --> d"
    after = adopted(made, changed)
    for file, data in zip(files, before, strict=True):
        file.write_bytes(data)
    assert note(adopted(made, changed)) == note(after)
    assert "node 'd' is new" in note(after)
    assert "node 'c' is gone" in note(after)
