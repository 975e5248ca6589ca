"""The journal has everything that was accepted, in order; the head follows it."""

from __future__ import annotations

import itertools
import json

from tests.fundamentals.scratch import Project


def test_every_change_is_recorded_as_a_fact(project: Project) -> None:
    project.sequencer("run", "--max-steps", "1")
    project.sequencer("skip", "--note", "not today")
    project.sequencer("skip", "--as-done", "--note", "by hand")
    project.sequencer("stop", "--pause")
    project.sequencer("resume")
    assert project.events() == [
        *("initialised", "claimed", "succeeded", "skipped", "stamped", "paused", "resumed")
    ]
    facts = project.history()
    assert [fact["step_index"] for fact in facts] == [0, 0, 0, 1, 2, 3, 3]
    assert facts[3]["outcome"]["note"] == "not today"


def test_a_fact_has_what_a_program_needs(project: Project) -> None:
    project.sequencer("run", "--max-steps", "1")
    for fact in project.history():
        assert fact.keys() >= {
            *("revision", "at", "event", "step", "step_index", "token", "attempt")
        }


def test_revisions_have_no_gap(project: Project) -> None:
    project.sequencer("run", "--max-steps", "4")
    revisions = [fact["revision"] for fact in project.history()]
    assert sorted(set(revisions)) == list(range(1, project.head()["revision"] + 1))
    assert revisions == sorted(revisions)


def test_accepting_a_step_and_claiming_the_next_is_one_transition(project: Project) -> None:
    project.sequencer("run", "--max-steps", "3")
    facts = [(fact["revision"], fact["event"]) for fact in project.history()]
    assert facts == [
        (1, "initialised"),
        (2, "claimed"),
        *((3, "succeeded"), (3, "claimed")),
        *((4, "succeeded"), (4, "claimed")),
        (5, "succeeded"),
    ]


def test_each_record_has_its_resulting_head(project: Project) -> None:
    project.sequencer("run", "--max-steps", "2")
    journal = (project.folder / "sync" / "journal.jsonl").read_bytes()
    records = [json.loads(line) for line in journal.splitlines()]
    assert records[-1]["head"] == project.head()
    offset = project.head()["journal_offset"]
    assert journal[offset:] == journal.splitlines(keepends=True)[-1]
    for before, after in itertools.pairwise(records):
        assert after["head"]["token"] >= before["head"]["token"]
        assert after["head"]["step_index"] >= before["head"]["step_index"]


def test_a_torn_last_line_does_not_count(project: Project) -> None:
    project.sequencer("run", "--max-steps", "2")
    journal = project.folder / "sync" / "journal.jsonl"
    with journal.open("ab") as file:
        file.write(b'{"revision":5,"at":"2026-')
    project.sequencer("run", "--max-steps", "1")
    assert project.head()["step_index"] == 3
    assert project.events().count("succeeded") == 3
    assert b'{"revision":5,"at":"2026-#\n' in journal.read_bytes(), "closed, never cut off"


def test_a_missing_record_is_refused(project: Project) -> None:
    project.sequencer("run", "--max-steps", "3")
    journal = project.folder / "sync" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], lines[2].replace(b"succeeded", b"succeedet"), *lines[3:]])
    journal.write_bytes(damaged)
    ran = project.sequencer("history", code=3)
    assert "revision 3 is missing" in ran.err
    assert "sequencer repair" in ran.err
    assert journal.read_bytes() == damaged


def test_it_can_be_shortened(project: Project) -> None:
    project.sequencer("run", "--max-steps", "4")
    printed = project.sequencer("history", "--limit", "3", "--json").out.splitlines()
    assert [json.loads(line) for line in printed] == project.history()[-3:]
