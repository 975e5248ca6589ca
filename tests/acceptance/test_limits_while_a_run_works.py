"""A run that works sees limits that are changed: lower ones at once, higher ones if trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.flow_projects import write_flow
from tests.unit.cli.calling import Called, call, project

CONFIGURATION = """\
agent: script
agents:
  script: {kind: command, free: true, argv: [sh, -c, 'echo done; sh ./act.sh']}
steps: [supervisor, main]
limits: {steps: 6, failures_in_row: 3}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return project(tmp_path / "p", CONFIGURATION)


def acting(folder: Path, *lines: str, later_s: float = 0.0) -> None:
    """Let the agent change the file in its second step, as a person might meanwhile.

    That step takes a second, because the limits are read once per second of work (see
    docs/how-to/limits-and-budgets.md); each other step takes *later_s*.
    """
    other = f'[ "$(wc -l < count)" -eq 2 ] || {{ sleep {later_s}; exit 0; }}'
    text = "\n".join(("echo x >> count", other, *lines, "sleep 1"))
    (folder / "act.sh").write_text(text + "\n")
    assert call(folder, "trust", "--yes").code == 0


def worked(folder: Path, *more: str) -> Called:
    return call(folder, *more, "run", "--max-steps", "20")


def steps(folder: Path) -> int:
    return len((folder / "count").read_text().splitlines())


def replaced(old: str, new: str) -> str:
    return f"sed -i 's/{old}/{new}/' orchestration.yaml"


def test_a_limit_that_is_lowered_counts_before_the_next_step(folder: Path) -> None:
    acting(folder, replaced("steps: 6", "steps: 3"))
    ended = worked(folder)
    assert (ended.code, steps(folder)) == (0, 3), ended.err
    assert "limits.steps: 6 -> 3" in ended.err
    assert "the run's limit of 3 steps is reached" in ended.out


def test_a_limit_that_is_raised_does_not_count_before_it_is_trusted(folder: Path) -> None:
    acting(folder, replaced("steps: 6", "steps: 9"))
    ended = worked(folder)
    assert (ended.code, steps(folder)) == (0, 6), ended.err
    assert "limits.steps" not in ended.err


def test_a_raised_limit_that_is_trusted_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    acting(folder, replaced("steps: 6", "steps: 9"))
    ended = worked(folder)
    assert (ended.code, steps(folder)) == (0, 9), ended.err
    assert "limits.steps: 6 -> 9" in ended.err


def test_only_lower_limits_of_an_untrusted_file_count(folder: Path) -> None:
    # An agent may make its own run end sooner, and give itself nothing.
    acting(
        folder,
        replaced("steps: 6", "steps: 4"),
        replaced("failures_in_row: 3", "failures_in_row: 90"),
        replaced("argv:", "env: {A: b}, argv:"),
    )
    ended = worked(folder)
    assert (ended.code, steps(folder)) == (0, 4), ended.err
    assert "limits.steps: 6 -> 4" in ended.err
    assert "failures_in_row" not in ended.err


def test_an_unreadable_file_changes_nothing_and_is_reported_once(folder: Path) -> None:
    # It is read again after every second step.
    acting(folder, "echo 'limits: [' >> orchestration.yaml", later_s=0.5)
    ended = worked(folder)
    assert steps(folder) == 6, ended.err
    assert ended.err.count("the limits stay as they are: ") == 1


def test_a_flow_sees_them_too(folder: Path) -> None:
    (folder / "flows").mkdir()
    write_flow(folder, "f", "  a[A] --> b[B] --> c[C] --> d[D]", a="A.", b="B.", c="C.", d="D.")
    acting(folder, replaced("steps: 6", "steps: 3"))
    ended = call(folder, "run", "f")
    assert steps(folder) == 3, ended.err
    assert "the run's limit of 3 steps is reached" in ended.out + ended.err
