"""The marking that is kept between transitions, and when it must not be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.graph_changes import MarkingCache
from sequencer.engine.run_commands import RunCommands
from sequencer.errors import CorruptState, StaleClaim, StorageFailed
from sequencer.model.commands import AnswerQuestion
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.marking import Marking
from sequencer.model.graph.record import Chain
from sequencer.model.head import Head
from sequencer.store.protocol import Store
from tests.unit.engine.flow.labs import Lab, lab


class Counting(MarkingCache):
    """Counts how often the marking is read from the run's files."""

    reads = 0

    def _read(self, head: Head, flow: Any) -> tuple[Marking, Chain]:
        self.reads += 1
        return super()._read(head, flow)


def keeper(made: Lab, store: Store | None = None) -> Counting:
    assert made.workflow.graph is not None
    return Counting(store or made.store(), made.workflow.graph)


@pytest.fixture
def in_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no marking stand in a head, and write a document every few operations."""
    monkeypatch.setattr(flow_record, "INLINE_ENTRIES", 0)
    monkeypatch.setattr(flow_record, "INLINE_BYTES", 0)
    monkeypatch.setattr(flow_record, "SINCE_BYTES", 150)
    monkeypatch.setattr(flow_record, "SHORTEST_CHAIN", 12)


@pytest.mark.usefixtures("in_documents")
def test_changes_by_others_on_the_same_base_are_applied(tmp_path: Path) -> None:
    made = lab(tmp_path, " --> ".join("abcdefgh"))
    made.work(limits={"max_steps": 1})
    kept, reads = keeper(made), 0
    for done in range(2, 8):
        before = made.head.flow
        marking = kept.read_marking(made.head)[1]
        made.work(limits={"max_steps": 1})
        after = made.head.flow
        assert before is not None
        assert after is not None
        now = kept.read_marking(made.head)[1]
        assert list(now.done) == list("abcdefgh"[:done])
        if before.base == after.base:
            assert now is marking
        else:
            reads += 1
    assert kept.reads == 1 + reads
    # Both happened.
    assert 0 < reads < 6


@pytest.mark.usefixtures("in_documents")
def test_documents_of_the_current_head_survive_a_refused_transition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash between the documents and the journal."""
    monkeypatch.setattr(flow_record, "SINCE_BYTES", 0)
    monkeypatch.setattr(flow_record, "SHORTEST_CHAIN", 0)
    made = lab(tmp_path, "h{{?}} -->|no| h; h -->|yes| a")
    made.refused()
    forgotten: list[str] = []

    def full(change: Any) -> Any:
        change(made.head)
        raise StorageFailed("no space left", where="here")

    for rounds in range(12):
        store = made.store()
        monkeypatch.setattr(store, "update", full)
        monkeypatch.setattr(store, "forget_documents", _counting(store, forgotten))
        with pytest.raises(StorageFailed):
            RunCommands(store, made.workflow).do(AnswerQuestion("h", "no"), by="ann")
        assert made.run().flow.marking(made.head)[1].iterations == rounds
        made.answer("h", "no")
    assert forgotten
    made.answer("h", "yes")
    assert made.work().usage.steps == 1


def _counting(store: Store, names: list[str]) -> Any:
    real = store.forget_documents

    def forget(prefix: str, keep: Any) -> None:
        names.append(prefix)
        real(prefix, keep)

    return forget


@pytest.mark.usefixtures("in_documents")
@pytest.mark.parametrize("spoil", ["gone", "torn", "other"])
def test_a_damaged_document_does_not_start_the_run_over(tmp_path: Path, spoil: str) -> None:
    made = lab(tmp_path, " --> ".join("abcdef"))
    made.work(limits={"max_steps": 3})
    flow = made.head.flow
    assert flow is not None
    assert flow.base is not None
    path = tmp_path / "sync" / flow.base
    if spoil == "gone":
        path.unlink()
    elif spoil == "torn":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.write_text(json.dumps({"marking": {"waiting": {"nobody": []}}}))
    error = made.refused()
    assert isinstance(error, CorruptState)
    assert error.exit_code == 3
    assert flow.base in error.message
    assert error.hint == "restore the file, or start over with 'sequencer reset'"
    assert made.actor.names == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["../flow.json", "flow.json", "marking-../x", "/etc/passwd"])
def test_only_documents_of_markings_are_read(tmp_path: Path, name: str) -> None:
    made = lab(tmp_path, "a")
    made.begun()
    head = made.head
    assert head.flow is not None
    crooked = head.replace(flow=head.flow.replace(base=name))
    with pytest.raises(CorruptState, match="is not a document of a marking"):
        keeper(made).read_marking(crooked)


def test_a_head_without_a_marking_is_refused(tmp_path: Path) -> None:
    made = lab(tmp_path, "a")
    head = made.begun().replace(flow=None)
    with pytest.raises(CorruptState, match="has no marking"):
        keeper(made).read_marking(head)


def test_a_stale_release_leaves_the_marking_unchanged(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> h{{H}} --> b")
    made.refused()
    flow = made.run().flow
    _, marking = flow.marking(made.head)
    done = dict(marking.done)
    with pytest.raises(StaleClaim):
        flow.update(lambda step: step.release(99, {}, step.head.usage), lambda _: None)
    assert flow.marking(made.head)[1].done == done
