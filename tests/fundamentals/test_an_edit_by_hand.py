"""state.json may be edited; it may also be damaged. Neither is ever taken for a fresh start."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.fundamentals.scratch import Project, ended, running


@pytest.fixture
def begun(project: Project) -> Project:
    """Return a project with three accepted steps."""
    project.sequencer("run", "--max-steps", "3")
    return project


def edit(project: Project, **fields: Any) -> None:
    project.state.write_text(json.dumps({**project.head(), **fields}, indent=2))


def test_exit_ends_the_run(begun: Project) -> None:
    edit(begun, exit=True)
    ran = begun.sequencer("run")
    assert "edited by hand" in ran.err
    assert len(begun.done()) == 3
    begun.sequencer("resume")
    begun.sequencer("run", "--max-steps", "1")
    assert begun.events()[-4:] == ["edited", "resumed", "claimed", "succeeded"]


@pytest.mark.parametrize("content", [None, {"exit": True, "exit_reason": "enough"}])
def test_exit_ends_a_process_that_waits_in_a_pause(
    begun: Project, content: dict[str, Any] | None
) -> None:
    """*content*: an agent has written nothing else."""
    begun.sequencer("stop", "--pause")
    process = begun.start("run", "--mode", "sync")
    with running(process):
        assert process.stderr is not None
        # It says so, and sleeps.
        assert "paused" in process.stderr.readline()
        if content is None:
            edit(begun, exit=True)
        else:
            begun.state.write_text(json.dumps(content))
        assert ended(process).code == 0
    assert begun.head()["exit"] is True
    assert begun.events()[-1] == "edited"


def test_a_restored_state_is_reported_once(begun: Project) -> None:
    begun.sequencer("stop")
    edit(begun, exit=True, step_index=9)
    first, second = begun.sequencer("tick"), begun.sequencer("tick")
    assert "step_index can't be changed there" in first.err
    assert second.err == ""
    assert begun.head()["step_index"] == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"revision": "3"},
        {"revision": -1},
        {"revision": None},
        {"schema_version": "1"},
    ],
)
def test_an_exit_next_to_a_wrong_value_counts(begun: Project, fields: dict[str, Any]) -> None:
    edit(begun, exit=True, **fields)
    begun.sequencer("run")
    assert (len(begun.done()), begun.head()["exit"]) == (3, True)


def test_your_own_notes_are_preserved(begun: Project) -> None:
    edit(begun, ticket="ABC-12")
    begun.sequencer("run", "--max-steps", "2")
    assert begun.head()["ticket"] == "ABC-12"
    assert begun.head()["step_index"] == 5


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("step_index", 10, "use 'sequencer set step_index=N'"),
        ("step_index", True, "use 'sequencer set step_index=N'"),
        ("status", "paused", "use 'sequencer stop --pause'"),
        ("failures_in_row", 2, "use 'sequencer retry'"),
        ("not_before", "2030-01-01", "use 'sequencer set not_before=DATE'"),
        ("token", 0, "no command changes token"),
        ("usage", {}, "no command changes usage"),
    ],
)
def test_other_edits_are_undone_with_advice_and_the_file_is_saved(
    begun: Project, field: str, value: object, advice: str
) -> None:
    edit(begun, **{field: value})
    edited = begun.state.read_bytes()
    looked = begun.sequencer("status")
    assert f"{field} can't be changed there" in looked.err
    assert begun.state.read_bytes() == edited
    ran = begun.sequencer("run", "--max-steps", "1")
    assert f"state is restored; {advice}" in ran.err
    assert "was kept as state.json.edited" in ran.err
    assert begun.state.with_name("state.json.edited").read_bytes() == edited
    assert len(begun.done()) == 4
    assert begun.head()["step_index"] == 4


def test_an_exit_counts_even_next_to_other_changes(begun: Project) -> None:
    edit(begun, exit=True, step_index=10)
    begun.sequencer("run")
    assert len(begun.done()) == 3
    assert begun.status()["step_index"] == 3
    begun.sequencer("resume")
    assert (begun.head()["exit"], begun.head()["step_index"]) == (False, 3)
    assert begun.events()[-2:] == ["edited", "resumed"]


def test_an_edit_that_breaks_the_order_is_refused(begun: Project) -> None:
    whole = begun.state.read_bytes()
    for fields in ({"run_id": "another"}, {"schema_version": 2}, {"revision": 99}, {"token": 99}):
        edit(begun, **fields)
        before = begun.state.read_bytes()
        begun.sequencer("run", code=3)
        assert begun.state.read_bytes() == before, fields
        begun.state.write_bytes(whole)
    assert len(begun.done()) == 3


def test_an_unreadable_file_is_restored(begun: Project) -> None:
    spoilt = [
        b"",
        b'{"schema_version": 1, "step_in',
        b"<<<<<<< ours\n{}\n=======\n{}\n>>>>>>> theirs\n",
        b"\0" * 4096,
        b"[]",
        b'{"a": 1, "a": 2}',
    ]
    for step_index, content in enumerate(spoilt, 3):
        begun.state.write_bytes(content)
        ran = begun.sequencer("run", "--max-steps", "1")
        assert f"the state was read from the journal, at step_index {step_index}" in ran.err
        assert begun.head()["step_index"] == step_index + 1
        kept = begun.state.with_name("state.json.unreadable")
        assert kept.read_bytes() == content
        kept.unlink()


def test_a_missing_file_is_restored(begun: Project) -> None:
    begun.state.unlink()
    assert begun.status()["step_index"] == 3
    assert not begun.state.exists(), "looking changes nothing"
    begun.sequencer("run", "--max-steps", "1")
    assert begun.head()["step_index"] == 4


def test_a_folder_or_link_in_place_of_the_file_is_refused(begun: Project) -> None:
    elsewhere = begun.folder / "elsewhere.json"
    begun.state.rename(elsewhere)
    begun.state.mkdir()
    begun.sequencer("run", code=3)
    begun.state.rmdir()
    begun.state.symlink_to(elsewhere)
    begun.sequencer("run", code=3)
    begun.state.unlink()
    begun.sequencer("run", "--max-steps", "1")
    assert begun.head()["step_index"] == 4


def test_without_head_and_journal_nothing_is_guessed(begun: Project) -> None:
    begun.state.write_text("half a fi")
    journal = begun.state.with_name("journal.jsonl")
    journal.write_text("nothing of use\n")
    ran = begun.sequencer("run", code=3)
    assert "sequencer repair" in ran.err
    assert (begun.state.read_text(), journal.read_text()) == ("half a fi", "nothing of use\n")


def test_an_old_copy_is_rolled_forward(begun: Project) -> None:
    old = begun.folder / "old.json"
    shutil.copy(begun.state, old)
    begun.sequencer("run", "--max-steps", "2")
    shutil.copy(old, begun.state)
    ran = begun.sequencer("run", "--max-steps", "1")
    assert "rolled forward" in ran.err
    assert begun.head()["step_index"] == 6


def test_set_edits_the_state_without_an_editor(begun: Project) -> None:
    begun.sequencer("set", "step_index=8")
    begun.sequencer("set", "ticket=ABC-12")
    begun.sequencer("set", "token=1", code=3)
    assert (begun.head()["step_index"], begun.head()["ticket"]) == (8, "ABC-12")
    assert begun.events()[-2:] == ["edited", "edited"]
