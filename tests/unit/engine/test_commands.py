"""What every command has in common, whoever makes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import EditRefused, SequencerError, UsageRefused
from sequencer.model.commands import (
    Accept,
    AnswerQuestion,
    Approve,
    Fail,
    Feedback,
    Reject,
    RunCommand,
    SetField,
    Skip,
    SkipTo,
    Stop,
    Tell,
)
from sequencer.model.head import Head
from sequencer.project.project import open_project
from tests.unit.engine.command_table import make_project, opened

SECRET = "ghp_0123456789abcdefghijABCDEFGHIJ012345"  # noqa: S105 - as a person may paste one
TEXT = f"use {SECRET} for it"


@pytest.mark.parametrize(
    "command",
    [
        Accept(TEXT),
        Fail(TEXT),
        Skip(TEXT),
        SkipTo(2, 0, TEXT),
        SetField("ticket", TEXT),
        Stop(TEXT),
        Tell(TEXT),
        Approve(TEXT),
        Reject(TEXT),
        Feedback(TEXT),
        AnswerQuestion("q", TEXT),
    ],
)
def test_a_secret_written_by_a_person_is_saved_nowhere(tmp_path: Path, command: RunCommand) -> None:
    make_project(tmp_path, "procedure")
    run = opened(tmp_path)
    run.do(Skip("first"))
    if isinstance(command, (Approve, Reject, Feedback, AnswerQuestion)):
        # Nothing is asked here; the text is not even in the refusal.
        with pytest.raises(SequencerError) as refused:
            run.do(command, by="ann")
        assert SECRET not in str(refused.value)
    else:
        run.do(SkipTo(2, 1, TEXT) if isinstance(command, SkipTo) else command, by="ann")
    written = [path.read_text() for path in tmp_path.glob("sync/**/*.json*")]
    assert written
    assert SECRET not in "".join(written)


def ensure_refused(folder: Path, command: RunCommand, message: str) -> None:
    """Check that *command* is refused with *message* and changes nothing."""
    make_project(folder, "procedure")
    run = opened(folder)
    run.do(Skip("first"))
    before = run.head
    with pytest.raises(UsageRefused, match=message):
        run.do(command, by="ann")
    assert run.head == before


@pytest.mark.parametrize(
    ("make_command", "limit"),
    [
        (Fail, 2_000),
        (Skip, 2_000),
        (Accept, 2_000),
        (Approve, 2_000),
        (Reject, 2_000),
        (partial(SkipTo, 2, 0), 2_000),
        (Stop, 500),
        (Tell, 20_000),
        (Feedback, 20_000),
        (partial(AnswerQuestion, "q"), 20_000),
    ],
)
def test_a_text_that_is_too_long_is_refused(
    tmp_path: Path, make_command: Callable[[str], RunCommand], limit: int
) -> None:
    message = f"has {limit + 1} characters; the limit is {limit}"
    ensure_refused(tmp_path, make_command("x" * (limit + 1)), message)
    make_command("x" * limit).ensure_texts()


@pytest.mark.parametrize("text", ["", "  \n", "\x01\x02", "bad\udcff", 5])
@pytest.mark.parametrize("make_command", [Stop, Tell, Feedback, partial(AnswerQuestion, "q")])
def test_an_empty_or_unreadable_text_is_refused(
    tmp_path: Path, make_command: Callable[[Any], RunCommand], text: Any
) -> None:
    ensure_refused(tmp_path, make_command(text), "is empty|is not UTF-8 text")


def test_a_reason_that_is_set_has_the_same_limit(tmp_path: Path) -> None:
    make_project(tmp_path, "procedure")
    run = opened(tmp_path)
    run.do(Stop("first"))
    with pytest.raises(EditRefused, match="500 characters"):
        run.do(SetField("exit_reason", "x" * 501))
    assert run.do(SetField("exit_reason", "x" * 500)).head.exit_reason == "x" * 500


def test_a_step_of_a_sequence_gets_no_output_by_hand(tmp_path: Path) -> None:
    make_project(tmp_path, "procedure")
    with pytest.raises(UsageRefused, match="only a node of a graph"):
        opened(tmp_path).do(Accept(output="made by hand"))


def test_a_secret_in_a_manual_edit_is_not_saved(tmp_path: Path) -> None:
    make_project(tmp_path, "procedure")
    opened(tmp_path).do(Skip("first"))
    state = tmp_path / "sync" / "state.json"
    notes = {"ticket": {"text": TEXT}, "other": "kept"}
    edited = json.dumps(
        {**json.loads(state.read_text()), "exit": True, "exit_reason": TEXT, **notes}
    )
    state.write_text(edited)
    seen = opened(tmp_path).head
    assert seen is not None
    assert SECRET not in str(seen.model_dump())
    opened(tmp_path).do(Tell("go on"))
    written = {path.name: path.read_text() for path in tmp_path.glob("sync/*.json*")}
    assert written.keys() >= {"state.json", "journal.jsonl"}
    assert SECRET not in str(written)
    kept = json.loads(written["state.json"])
    assert (kept["exit"], kept["other"]) == (True, "kept")
    assert kept["exit_reason"].startswith("use ")
    # As a writer leaves it that is killed before it has replaced the file.
    state.write_text(edited)
    assert opened(tmp_path).store.view().head == Head.model_validate(kept)


def test_a_command_reports_what_it_did_without_reading_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_project(tmp_path, "cycle")
    run = open_project(tmp_path, trust=True).run(None)
    monkeypatch.setattr(type(run.store), "history", None)
    done = run.do(Skip("later"))
    assert [(str(fact.event), fact.step) for fact in done.facts] == [
        ("initialised", "a"),
        ("skipped", "a"),
    ]
    assert (done.note, done.head.step_index) == ("later", 1)
