"""A reached usage limit is nobody's failure: the run waits for the reset."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.fundamentals.scratch import Project

LIMITED = """\
workflow: {name: standard}
agent: {default: limited}
agents:
  limited:
    kind: scripted
    outcomes:
      - {status: limited, not_before: "%s"}
      - {status: ok}
"""


def in_seconds(seconds: float) -> str:
    due = datetime.now(UTC) + timedelta(seconds=seconds)
    return due.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_a_tick_reports_that_nothing_is_due(project: Project) -> None:
    reset = in_seconds(3600)
    project.configure(LIMITED % reset)
    project.sequencer("tick")
    before = project.head()
    ran = project.sequencer("tick")
    assert "nothing due" in ran.out + ran.err
    assert before["not_before"] in ran.out + ran.err
    assert project.head() == before
    assert (before["step_index"], before["failures_in_row"], before["claims"]) == (0, 0, [])
    # With a margin behind it: the service's clock may be a little behind this one.
    pause = datetime.fromisoformat(before["not_before"]) - datetime.fromisoformat(reset)
    assert 10 <= pause.total_seconds() <= 15
    assert project.events() == ["initialised", "claimed", "released"]


def test_a_run_sleeps_until_the_reset_and_continues(project: Project) -> None:
    project.configure(LIMITED % in_seconds(-8))
    project.sequencer("run", "--max-steps", "1")
    head = project.head()
    assert (head["step_index"], head["not_before"]) == (1, None)
    assert "failed" not in project.events()


def test_a_person_can_clear_the_wait(project: Project) -> None:
    project.configure(LIMITED % in_seconds(3600))
    project.sequencer("tick")
    project.sequencer("retry")
    assert project.head()["not_before"] is None
