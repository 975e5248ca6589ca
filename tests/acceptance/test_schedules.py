"""`schedules:`: a run starts once for each date that comes while it rests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sequencer import commands, open_project
from sequencer.errors import TransitionRefused
from tests import forked
from tests.boundary.forging import Record, forge
from tests.unit.cli.calling import Called, call, idle_record, project

CONFIGURATION = """\
agent: rehearsal
limits: {cost_usd: 9}
workflows:
  two: {kind: procedure, steps: [supervisor, main]}
schedules:
  night: {workflow: two, at: "0 2 * * *"}
"""
DAY_S = 24 * 60 * 60
Later = Callable[[float], None]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with a schedule; nothing else has notes in this user's state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return project(tmp_path / "p", CONFIGURATION)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Return a patch that sets the clock of this process that many seconds ahead.

    Only what Python reads as `time.time`: the times of changes to a run stay as they are.
    """
    read_clock = time.time

    def move(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: read_clock() + seconds)

    return move


def tick(folder: Path) -> Called:
    ended = call(folder, "--run", "night", "tick")
    assert ended.code == 0, ended.err
    return ended


def events(folder: Path) -> list[str]:
    listed = call(folder, "--run", "night", "history", "--json").out.splitlines()
    return [json.loads(line)["event"] for line in listed]


def test_a_run_starts_at_each_date_and_not_in_between(folder: Path, later: Later) -> None:
    for _ in range(3):
        assert "nothing due: it starts at" in tick(folder).out
    shown = call(folder, "--run", "night", "status").out
    assert re.search(r"(?m)^starts      20\d\d-\d\d-\d\d 02:00$", shown)
    listed = call(folder, "status", "--all")
    assert re.search(
        r"night .* two .* scheduled .* it starts at 20\d\d-\d\d-\d\d 02:00", listed.out
    )
    assert not (folder / "sync" / "runs").exists()
    later(DAY_S)
    for _ in range(2):
        tick(folder)
    assert events(folder).count("succeeded") == 2
    # The run has ended now, and not at the date that the clock of schedules pretends.
    later(0)
    for _ in range(3):
        assert "complete after 2 steps; it starts at" in tick(folder).out
    (facts,) = call(folder, "status", "--all", "--json").json
    assert facts["status"] == "scheduled"
    (ended,) = call(folder, "status", "--all", "--ended", "--json").json
    assert (ended["status"], ended["starts_at"]) == ("complete", facts["starts_at"])
    assert (
        call(folder, "--run", "night", "status", "--json").json["starts_at"] == facts["starts_at"]
    )
    # Two dates were missed: one start makes up for them.
    later(2 * DAY_S)
    for _ in range(2):
        tick(folder)
    later(0)
    tick(folder)
    assert events(folder).count("reset") == 1
    assert events(folder).count("succeeded") == 4


def test_dates_during_a_run_are_skipped(folder: Path, later: Later) -> None:
    tick(folder)
    later(DAY_S)
    tick(folder)
    later(5 * DAY_S)
    tick(folder)
    assert events(folder).count("succeeded") == 2
    assert "reset" not in events(folder)


def test_of_many_simultaneous_ticks_only_one_starts_the_run(folder: Path, later: Later) -> None:
    tick(folder)
    later(DAY_S)
    tick(folder)
    tick(folder)
    later(0)
    command = [sys.executable, "-m", "sequencer", "--run", "night", "tick"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    for turn in range(1, 4):
        let_a_date_come(folder)
        ticks = [forked.Forked(command, cwd=folder, **pipes) for _ in range(8)]
        said = [one.communicate(timeout=60)[0] for one in ticks]
        assert events(folder).count("reset") == turn, said
        tick(folder)
        tick(folder)
        assert events(folder).count("succeeded") == 2 * (turn + 1)


def let_a_date_come(folder: Path) -> None:
    """Move the last start and all records of the journal to the day before yesterday."""
    before = time.time() - 2 * DAY_S
    at = datetime.fromtimestamp(before, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def date(record: Record) -> None:
        record["at"] = record["head"]["last_update"] = at

    forge(folder / "sync" / "runs" / "night", date)
    note_of(folder).write_text(json.dumps({"since": before}))


def test_a_tick_with_an_outdated_decision_starts_nothing(folder: Path, later: Later) -> None:
    tick(folder)
    later(DAY_S)
    tick(folder)
    tick(folder)
    run = open_project(folder).run("night")
    assert run.head is not None
    ended = run.head.run_id
    run.do(commands.Reset(ended))
    tick(folder)
    tick(folder)
    with pytest.raises(TransitionRefused):
        run.do(commands.Reset(ended))


def test_a_clock_that_was_set_back_starts_nothing(folder: Path, later: Later) -> None:
    tick(folder)
    later(DAY_S)
    tick(folder)
    tick(folder)
    later(-400 * DAY_S)
    assert "it starts at" in tick(folder).out
    assert "reset" not in events(folder)


def test_clean_leaves_a_run_that_has_a_schedule(folder: Path, later: Later) -> None:
    tick(folder)
    later(DAY_S)
    tick(folder)
    tick(folder)
    later(DAY_S)

    def unneeded() -> list[str]:
        found = call(folder, "clean", "--older-than", "0", "--json").json
        return [one["run"] for one in found if one["what"] == "ended run"]

    assert unneeded() == []
    text = CONFIGURATION.replace("  night:", "  other:")
    (folder / "orchestration.yaml").write_text(text)
    assert unneeded() == ["night"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('{workflow: two, at: "every night"}', "MINUTE HOUR DAY MONTH WEEKDAY"),
        ('{workflow: two, at: "0 25 * * *"}', "Bad hour"),
        ('{workflow: two, at: "0 2 30 2 *"}', "is not a cron schedule"),
        ('{workflow: twoo, at: "0 2 * * *"}', "unknown workflow 'twoo'"),
        ("{workflow: two}", "at"),
    ],
)
def test_errors_are_reported_with_their_line(folder: Path, entry: str, says: str) -> None:
    text = CONFIGURATION.replace('{workflow: two, at: "0 2 * * *"}', entry)
    (folder / "orchestration.yaml").write_text(text)
    refused = call(folder, "--run", "night", "tick")
    assert refused.code == 2
    assert says in refused.err
    assert "orchestration.yaml:6" in refused.err


def test_a_changed_date_needs_trust_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    assert call(folder, "trust", "--yes").code == 0
    tick(folder)
    often = CONFIGURATION.replace("0 2", "*/5 *")
    (folder / "orchestration.yaml").write_text(often)
    refused = call(folder, "--run", "night", "tick")
    assert refused.code == 2
    assert "schedules" in refused.err


def test_a_timer_can_be_installed_before_the_first_start(folder: Path) -> None:
    shown: Any = call(folder, "--run", "night", "schedule", "print", "--every", "5")
    assert shown.code == 0, shown.err
    assert "--run=night" in shown.out
    assert call(folder, "--run", "nite", "status").code == 2


def test_an_idle_ticks_record_expires_at_the_next_date(folder: Path, later: Later) -> None:
    tick(folder)
    later(DAY_S)
    tick(folder)
    tick(folder)
    later(0)
    tick(folder)
    kept = json.loads(idle_record(folder, "night").read_text())
    (answer,) = kept["answers"].values()
    starts_at = call(folder, "--run", "night", "status", "--json").json["starts_at"]
    assert answer["until"] == datetime.fromisoformat(starts_at).timestamp() > time.time()


def test_a_flow_starts_over_too(folder: Path, later: Later) -> None:
    chart = "```mermaid\nflowchart TD\n    a[A] --> b[B]\n```\n\n### a\nDo a.\n\n### b\nDo b.\n"
    (folder / "chart.md").write_text(f"# Chart\n\n{chart}")
    text = CONFIGURATION.replace("workflow: two", "workflow: chart")
    text = text.replace("schedules:", "  chart: chart.md\nschedules:")
    (folder / "orchestration.yaml").write_text(text)
    tick(folder)
    for days in (1, 2):
        later(days * DAY_S)
        tick(folder)
        tick(folder)
    assert events(folder).count("succeeded") == 4, events(folder)
    assert events(folder).count("reset") == 1


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.unlink(),
        lambda state: state.write_text(
            state.read_text().replace(
                json.loads(state.read_text())["last_update"], "2020-01-01T00:00:00Z"
            )
        ),
        lambda state: shutil.rmtree(state.parent, ignore_errors=True),
    ],
    ids=["no-state", "ended-long-ago", "no-run"],
)
def test_changing_a_runs_files_does_not_start_it(
    folder: Path, later: Later, change: Callable[[Path], object]
) -> None:
    tick(folder)
    state = folder / "sync" / "runs" / "night" / "state.json"
    # The second time it starts over.
    for day in (1, 2):
        later(day * DAY_S)
        tick(folder)
        assert json.loads(state.read_text())["usage"]["steps"] == 1
        tick(folder)
        for _ in range(3):
            change(state)
            assert "it starts at" in tick(folder).out


def note_of(folder: Path) -> Path:
    """Return the note about the dates of the one schedule."""
    (note,) = (folder.parent / "state" / "sequencer" / "schedules").glob("*.json")
    return note


def test_a_clock_that_was_years_ahead_blocks_no_later_date(folder: Path, later: Later) -> None:
    tick(folder)
    later(9 * 365 * DAY_S)
    tick(folder)
    tick(folder)
    later(0)
    said = tick(folder)
    assert "has started for 203" in said.err
    assert "far ahead of this machine's clock: its dates count from now on" in said.err
    assert "it starts at" in said.out
    assert "clock" not in tick(folder).err
    for day in (1, 2):
        later(day * DAY_S)
        for _ in range(3):
            tick(folder)
        assert events(folder).count("reset") == day


def test_a_clock_that_is_years_behind_repeats_no_date(folder: Path, later: Later) -> None:
    tick(folder)
    later(DAY_S)
    tick(folder)
    tick(folder)
    later(-9 * 365 * DAY_S)
    assert "far ahead of this machine's clock" in tick(folder).err
    # Without its end, only the note keeps the run from starting for its date again.
    shutil.rmtree(folder / "sync" / "runs")
    later(DAY_S)
    assert "it starts at" in tick(folder).out
    later(2 * DAY_S)
    tick(folder)
    assert events(folder).count("succeeded") == 1


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"since": NaN}',
        b'{"since": 1e300}',
        b'{"since": -5}',
        b'{"since": 0, "starting": Infinity}',
        b'{"since": 0, "ended": 7}',
        b'{"since": null}',
    ],
)
def test_an_invalid_note_is_ignored(folder: Path, later: Later, written: bytes) -> None:
    tick(folder)
    note_of(folder).write_bytes(written)
    assert "it starts at" in call(folder, "--run", "night", "status").out + tick(folder).out
    later(DAY_S)
    tick(folder)
    assert events(folder).count("succeeded") == 1


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["fifo", "folder"])
@pytest.mark.timeout(20)
def test_a_fifo_or_folder_in_place_of_a_note_is_reported(
    folder: Path, make: Callable[[Path], None]
) -> None:
    tick(folder)
    note = note_of(folder)
    note.unlink()
    make(note)
    ended = call(folder, "--run", "night", "tick")
    assert (ended.code, str(note) in ended.err) == (3, True)
    assert call(folder, "--run", "night", "status").code == 0


def test_a_schedule_reports_that_its_note_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "file" / "state"))
    ended = call(folder, "--run", "night", "tick")
    assert (ended.code, "can't be used: Not a directory" in ended.err) == (3, True)
    assert call(folder, "--run", "night", "status").code == 0


def test_an_error_before_its_first_step_loses_no_date(folder: Path, later: Later) -> None:
    tick(folder)
    later(DAY_S)
    prompt = folder / "prompts" / "supervisor.md"
    prompt.rename(folder / "aside.md")
    assert call(folder, "--run", "night", "tick").code == 2
    (folder / "aside.md").rename(prompt)
    tick(folder)
    assert events(folder).count("succeeded") == 1


def test_an_end_in_the_future_keeps_no_date_away(folder: Path, later: Later) -> None:
    tick(folder)
    later(DAY_S)
    tick(folder)
    tick(folder)
    state = folder / "sync" / "runs" / "night" / "state.json"
    ended = json.loads(state.read_text())
    state.write_text(state.read_text().replace(ended["last_update"], "9999-01-01T00:00:00Z"))
    later(0)
    tick(folder)
    later(2 * DAY_S)
    assert "step" in tick(folder).out
    assert json.loads(state.read_text())["run_id"] != ended["run_id"]


def _of_records(folder: Path) -> list[tuple[str, str]]:
    found = call(folder, "check", "--json").json["findings"]
    told = [(one["level"], one["message"]) for one in found if "own records" in one["message"]]
    # The same lack has a finding of its own for how far runs have come.
    return [(level, text) for level, text in told if not text.startswith("the progress of runs")]


def test_check_reports_that_there_is_no_place_for_records(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    ((level, text),) = _of_records(folder)
    assert level == "warning"
    assert text.startswith("your own records can't be written there")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "nowhere")
    ((level, text),) = _of_records(folder)
    assert level == "warning"
    assert text.startswith("there is no place for your own records: your home folder is unknown")
    # Without a timer or a schedule nothing needs them.
    (folder / "orchestration.yaml").write_text("agent: rehearsal\n")
    assert _of_records(folder) == []


def test_a_date_skipped_because_its_note_is_missing_is_reported(folder: Path, later: Later) -> None:
    assert "nothing was noted" not in tick(folder).err
    later(DAY_S)
    for _ in range(2):
        tick(folder)
    assert call(folder, "--run", "night", "status", "--json").json["status"] == "complete"
    # As in a container whose home folder is new at each start.
    shutil.rmtree(note_of(folder).parent)
    later(2 * DAY_S)
    said = tick(folder)
    assert "nothing due: " in said.out
    assert re.search(r"notice: .*/schedules: nothing was noted about the date .* skipped", said.err)
    assert "nothing was noted" not in tick(folder).err
    later(3 * DAY_S)
    for _ in range(2):
        tick(folder)
    assert events(folder).count("completed") == 2
