"""What people and agents may write into state.json, and what follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import EditRefused, StaleClaim, StateRefused, TransitionRefused
from sequencer.model.transitions import Place
from sequencer.store.file import FileStore
from tests.contract import store_cases as cases


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    cases.begin(FileStore(path))
    return path


def test_an_agent_may_write_exit_while_its_step_runs(state: Path) -> None:
    store = FileStore(state)
    granted = cases.claim(store)
    cases.edit(state, exit=True, exit_reason="nothing left to do")
    head = cases.commit(store, granted.token)
    assert (head.step_index, head.exit, head.exit_reason) == (1, True, "nothing left to do")
    assert "edited by hand" in store.take_notices()[0]
    events = [f["event"] for f in store.history()]
    assert events == ["initialised", "claimed", "edited", "succeeded"]
    assert "by hand: exit, exit_reason" in str(list(store.history())[2]["outcome"])
    with pytest.raises(TransitionRefused, match="stopped: nothing left"):
        cases.claim(store)


def test_an_edited_step_index_makes_who_runs_the_step_stale(state: Path) -> None:
    store, other = FileStore(state), FileStore(state)
    granted = cases.claim(store)
    cases.edit(state, step_index=6)
    with pytest.raises(StaleClaim):
        cases.commit(store, granted.token)
    taken = cases.claim(other)
    assert (taken.token, taken.step_index) == (granted.token + 1, 6)
    assert not (state.parent / "beats" / str(granted.token)).exists()


@pytest.mark.parametrize(
    "update",
    [
        {"run_id": "another"},
        {"token": 0},
        {"revision": 1},
        {"revision": 3},
        {"revision": "2"},
        {"revision": None},
        {"schema_version": 0},
        {"schema_version": "1"},
        {"step_index": -1},
        {"step_index": 1.5},
        {"step_index": "1"},
        {"step_index": True},
        {"step_index": 2**63},
        {"step_index": 2**63 - 1},
        {"token": 2**63 - 1},
        {"failures_in_row": -1},
        {"claims": []},
        {"status": "working"},
        {"exit": "yes"},
        {"exit": 1},
        {"usage": {"steps": -1}},
        {"usage": {"steps": 1}},
        {"usage": {}},
        {"usage": None},
        {"last_update": None},
        {"workflow_name": 7},
    ],
    ids=str,
)
def test_edits_that_are_refused_and_leave_everything(state: Path, update: dict[str, Any]) -> None:
    cases.claim(FileStore(state))
    own = state.read_bytes()
    cases.edit(state, **update)
    before = {path.name: path.read_bytes() for path in state.parent.glob("*.json*")}
    store = FileStore(state)
    for verb in (store.view, lambda: cases.commit(store, 1), lambda: cases.begin(store)):
        with pytest.raises(StateRefused) as caught:
            verb()
        assert str(state) in str(caught.value)
        assert caught.value.hint
    assert {path.name: path.read_bytes() for path in state.parent.glob("*.json*")} == before
    state.write_bytes(own)
    cases.commit(FileStore(state), 1)
    assert cases.check_files(state.parent) == 1


@pytest.mark.parametrize("field", ["step_index", "token", "claims", "status", "usage", "exit"])
def test_an_edit_that_lost_a_field_is_refused(state: Path, field: str) -> None:
    """A flipped bit in a key, or a bad merge, would put step_index back to its default."""
    store = FileStore(state)
    cases.commit(store, cases.claim(store).token)
    content = json.loads(state.read_text())
    del content[field]
    state.write_text(json.dumps(content))
    with pytest.raises(EditRefused, match=f"{field} is missing"):
        FileStore(state).view()


def test_a_second_edit_while_the_first_is_not_recorded(state: Path) -> None:
    cases.edit(state, step_index=1)
    FileStore(state).view()
    cases.edit(state, step_index=2)
    store = FileStore(state)
    assert cases.claim(store).step_index == 2


def test_an_edit_that_a_stopped_writer_had_accepted_is_no_second_edit(state: Path) -> None:
    cases.edit(state, step_index=3, note="x")
    content = state.read_bytes()
    store = FileStore(state, placed=lambda head: Place(head.step_index, "main", "main.md"))
    assert store.update(lambda _: None).expected_step == "main"
    # As if the writer had been killed between its append and its rename.
    state.write_bytes(content)
    fresh = FileStore(state)
    assert fresh.view().head == store.view().head
    fresh.update(lambda _: None)
    assert [f["event"] for f in fresh.history()] == ["initialised", "edited"]
    # One that differs from what was accepted is still refused.
    state.write_bytes(content.replace(b'"x"', b'"y"'))
    with pytest.raises(EditRefused, match="the run has gone on"):
        FileStore(state).view()
