"""What a person hears when a flow's run begins: what is odd, and where what is wrong stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.flow_projects import asked, cli, make_project, write_flow

ODD = "W-UNREACHABLE c: it never runs"
CHART = "a --> b\nc --> b"
TEXTS = {name: f"Say {name}" for name in "abc"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = make_project(tmp_path)
    write_flow(made, "odd", CHART, **TEXTS)
    return made


def configure(project: Path, more: str) -> None:
    path = project / "orchestration.yaml"
    path.write_text(path.read_text() + more)


def warnings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning: ")]


@pytest.mark.slow
def test_warnings_are_printed_once_when_the_run_starts(project: Path) -> None:
    first = cli(project, "run", "odd", "--max-steps", "1")
    assert first.returncode == 0, first.stderr
    (told,) = warnings(first.stderr)
    assert told.startswith("warning: flows/odd.md:")
    assert ODD in told
    assert first.stdout.count("\n") == 1
    # As the other commands say it.
    assert told in cli(project, "plan", "odd").stderr
    assert told in cli(project, "plan", "--simulate", "flows/odd.md").stderr
    assert told.removeprefix("warning: ") in cli(project, "check").stdout
    for again in (("run", "odd"), ("--run", "odd", "tick"), ("--run", "odd", "run")):
        assert warnings(cli(project, *again).stderr) == []
    # Another run is another beginning.
    assert warnings(cli(project, "run", "odd", "--new").stderr) == [told]


def test_quiet_mode_prints_no_warnings(project: Path) -> None:
    ended = cli(project, "run", "odd", "--quiet")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_json_output_keeps_warnings_on_stderr(project: Path) -> None:
    ended = cli(project, "run", "odd", "--json")
    assert len(warnings(ended.stderr)) == 1
    assert ended.stdout.startswith("{")


def test_a_tick_that_starts_the_default_run_prints_warnings_too(project: Path) -> None:
    configure(project, "workflow: {name: odd}\nworkflows: {odd: {file: flows/odd.md}}\n")
    first = cli(project, "tick")
    assert first.returncode == 0, first.stderr
    assert [ODD in line for line in warnings(first.stderr)] == [True]
    assert asked(project) == ["a: Say a"]
    assert warnings(cli(project, "tick").stderr) == []


# --- where what is wrong stands ----------------------------------------------------------

REFUSED = "agent 'script' (kind command) does not support model"


def placed(text: str) -> str:
    """Return the place, which is a path and a line, and the reason."""
    (line,) = [line for line in text.splitlines() if REFUSED in line]
    before, _, _ = line.partition(REFUSED)
    found = re.search(r"\S+:\d+:\d+: .*|\S+:\d+: .*", before)
    assert found is not None
    return found[0] + REFUSED


@pytest.mark.parametrize("arguments", [("run", "hot"), ("run", "hot", "--dry-run")])
def test_unsupported_agent_settings_are_reported_with_file_and_line(
    project: Path, arguments: tuple[str, ...]
) -> None:
    write_flow(project, "hot", "a --> b", a="Say a", b="---\nmodel: opus\n---\nSay b")
    path = project / "flows" / "hot.md"
    line = path.read_text().splitlines().index("### b") + 1
    expect = f"flows/hot.md:{line}:1: {REFUSED}"
    assert placed(cli(project, "check").stdout) == expect
    ended = cli(project, *arguments)
    assert placed(ended.stderr + ended.stdout) == expect
    assert asked(project) == []


def test_a_started_run_reports_the_current_line_of_the_file(project: Path) -> None:
    write_flow(project, "hot", "a --> b", a="Say a", b="Say b")
    assert cli(project, "run", "hot", "--max-steps", "1", "--quiet").returncode == 0
    write_flow(project, "hot", "a --> b", a="Say\n\na", b="---\nmodel: opus\n---\nSay b")
    path = project / "flows" / "hot.md"
    line = path.read_text().splitlines().index("### b") + 1
    ended = cli(project, "--run", "hot", "tick")
    assert ended.returncode == 2
    assert placed(ended.stderr) == f"flows/hot.md:{line}:1: {REFUSED}"


def test_errors_in_a_task_list_have_a_line_too(project: Path) -> None:
    tasks = [
        "workflow: {name: crew}",
        "workflows:",
        "  crew:",
        "    tasks:",
        "      - {id: x, subject: X}",
        "      - {id: y, subject: Y, model: opus}",
    ]
    configure(project, "\n".join(tasks) + "\n")
    path = project / "orchestration.yaml"
    line = path.read_text().splitlines().index(tasks[-1]) + 1
    told = placed(cli(project, "check").stdout)
    assert told.startswith(f"{path.name}:{line}:")
    ended = cli(project, "run")
    assert ended.returncode == 2
    assert placed(ended.stderr) == told
