"""state.json may be edited; it may also be damaged. Neither is ever taken for a fresh start."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.fundamentals.scratch import Project


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


def test_notes_of_yours_are_kept(begun: Project) -> None:
    edit(begun, ticket="ABC-12")
    begun.sequencer("run", "--max-steps", "2")
    assert begun.head()["ticket"] == "ABC-12"
    assert begun.head()["step_index"] == 5


def test_the_step_index_may_be_moved(begun: Project) -> None:
    edit(begun, step_index=10)
    begun.sequencer("run", "--max-steps", "1")
    assert begun.done()[-1] == "supervisor"
    assert begun.head()["iteration"] == 12


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("step_index", True, "a whole number"),
        ("step_index", 1.0, "a whole number"),
        ("step_index", 2.0, "a whole number"),
        ("iteration", 2.0, "a whole number"),
        ("failures_in_row", False, "a whole number"),
        ("attempt", False, "a whole number"),
        ("token", True, "a whole number"),
        ("journal_offset", 0.5, "a whole number"),
        ("exit", 0, "true or false"),
        ("pause_requested", 0, "true or false"),
        ("usage.steps", True, "a whole number"),
        ("usage.steps", 1.0, "a whole number"),
        ("usage.seconds", True, "a number"),
    ],
)
def test_a_boolean_is_no_number_and_a_fraction_is_no_index(
    project: Project, field: str, value: object, wanted: str
) -> None:
    # At 1, where Python takes true and 1.0 for the same number.
    project.sequencer("run", "--max-steps", "1")
    head = project.head()
    outer, _, inner = field.partition(".")
    head[outer] = {**head[outer], inner: value} if inner else value
    project.state.write_text(json.dumps(head))
    refused = project.sequencer("status", code=3)
    assert f"{field} is {json.dumps(value)}, but has to be {wanted}" in refused.err
    project.sequencer("run", "--max-steps", "1", code=3)
    assert len(project.done()) == 1


def test_whole_numbers_may_stand_for_fractions_and_notes_may_be_anything(begun: Project) -> None:
    edit(begun, ticket=2)
    begun.sequencer("run", "--max-steps", "1")
    head = begun.head()
    head["usage"]["cost_usd"] = 0
    begun.state.write_text(json.dumps({**head, "ticket": True}, indent=2))
    begun.sequencer("run", "--max-steps", "1")
    assert begun.head()["ticket"] is True


def test_an_edit_that_breaks_the_order_is_refused(begun: Project) -> None:
    whole = begun.state.read_bytes()
    breaking: list[dict[str, Any]] = [
        {"token": 0},
        {"run_id": "another"},
        {"journal_offset": 0},
        {"step_index": -1},
        {"step_index": 1.5},
        {"status": "on fire"},
        {"schema_version": 2},
        {"revision": 99},
    ]
    for fields in breaking:
        edit(begun, **fields)
        before = begun.state.read_bytes()
        begun.sequencer("run", code=3)
        assert begun.state.read_bytes() == before, fields
        begun.state.write_bytes(whole)
    assert len(begun.done()) == 3


def test_what_can_not_be_read_is_restored(begun: Project) -> None:
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
        assert f"restored from the journal at step_index {step_index}" in ran.err
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


def test_a_folder_or_a_link_in_its_place_is_refused(begun: Project) -> None:
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


def test_set_is_the_same_without_an_editor(begun: Project) -> None:
    begun.sequencer("set", "step_index=8")
    begun.sequencer("set", "ticket=ABC-12")
    begun.sequencer("set", "token=1", code=3)
    assert (begun.head()["step_index"], begun.head()["ticket"]) == (8, "ABC-12")
    assert begun.events()[-2:] == ["edited", "edited"]
