"""What stands on a person's terminal: it fits, it says when, and it calls things by their names."""

from __future__ import annotations

import re
import signal
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, launched, scripted_project
from tests.terminal_width import count_columns
from tests.unit.cli.calling import call, list_verbs
from tests.unit.cli.flow.terminals import Terminal, terminal

COLUMNS = 80
AGENT = """\
import os, sys
sys.stdin.read()
if os.environ["SEQUENCER_STEP"] == os.environ.get("FAIL"):
    sys.exit("no such module: " + "a_module_with_a_long_name_" * 4)
print("done: " + "and so on " * 20)
"""
CYCLE = "nightly-maintenance-of-the-repository"
RUN = "fix-login-timeout-behind-the-corporate-proxy-with-kerberos"
FLOW = "long-names-of-nodes-in-a-flow-for-the-terminal"
CONFIGURATION = f"""\
workflow: {{name: {CYCLE}, review_every_n: 2}}
agent: {{default: script-agent-with-a-long-name}}
agents:
  script-agent-with-a-long-name: {{kind: command, argv: ["{{python}}", -IS, agent.py]}}
workflows:
  {CYCLE}:
    steps: [supervisor, implementation-of-the-request-handlers, verification-against-the-criteria]
    review: {{step: reviewer}}
  team-of-those-who-look-after-the-repository:
    size: 2
    tasks:
      - {{id: investigate-the-request-handlers, subject: Investigate them and their past}}
      - id: implement-the-change-of-the-handlers
        subject: Implement the change of the handlers
        blocked_by: [investigate-the-request-handlers]
"""
CHART = f"""\
---
id: {FLOW}
---

```mermaid
flowchart TD
  investigateTheRepository[Investigate the repository] --> implementTheChangeThatWasAskedFor
  implementTheChangeThatWasAskedFor --> isItFineAsItStandsNow{{{{Fine?}}}}
  isItFineAsItStandsNow -->|approve| publishTheChangeToEverybody
  isItFineAsItStandsNow -->|"send back"| investigateTheRepository
```

### investigateTheRepository
Say hello

### implementTheChangeThatWasAskedFor
Say it

### isItFineAsItStandsNow
---
options:
  - {{label: Good, value: approve, description: It goes out to everybody who has asked for it}}
  - send back
---
Is it fine?

### publishTheChangeToEverybody
Say it
"""
TEAM = "team-of-those-who-look-after-the-repository"
REQUEST = "Debug the login timeout that happens behind the corporate proxy with Kerberos"
STATE_DISPLAYS = [
    *(
        "plan",
        "status",
        "history",
        "report",
        "status --all --ended",
        "inbox",
        "plan --list",
        "check",
        "repair",
    ),
    *("check --settings", "run --dry-run", "tick --dry-run", "takeover", "sync"),
    *(f"plan {CYCLE}", f"plan {FLOW}", f"plan {TEAM}", "plan debugger-full", "status --watch"),
    *(f"plan {FLOW} --simulate", f"plan {TEAM} --simulate", "plan --request Fix-the-login"),
    *(f"--run {RUN} {verb}" for verb in ("status", "plan", "history", "report", "inbox", "run")),
    *(
        f"--run {FLOW} {verb}"
        for verb in ("status", "plan", "history", "report", "plan --list", "run")
    ),
    *(f"--run {TEAM} {verb}" for verb in ("status", "plan", "history", "report", "plan --list")),
    *("--run nobody status", "rewind 99", "skip --as"),
]
"""Every command that looks, on a run of each kind, and some that are refused."""
UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project with a cycle, a procedure at a gate, a flow that asks, and a team."""
    folder = tmp_path_factory.mktemp("a-project")
    (folder / "prompts").mkdir()
    names = ("supervisor", "reviewer", "implementation-of-the-request-handlers")
    for name in (*names, "verification-against-the-criteria"):
        (folder / "prompts" / f"{name}.md").write_text(f"# {name}\n")
    (folder / "flows").mkdir()
    (folder / "flows" / f"{FLOW}.md").write_text(CHART)
    (folder / "agent.py").write_text(AGENT)
    (folder / "orchestration.yaml").write_text(CONFIGURATION)
    assert cli(folder, "run", "--max-steps", "8").returncode == 0
    procedure = ("start", REQUEST, "--procedure", "debugger-full")
    assert cli(folder, "--run", RUN, *procedure).returncode == 4
    assert cli(folder, "run", FLOW).returncode == 4
    assert cli(folder, "run", TEAM).returncode == 0
    return folder


def on_terminal(folder: Path, screen: Terminal, *arguments: str) -> str:
    """Run ``sequencer ARGUMENTS`` on *screen* to its end; return what is on it."""
    process = launched(
        folder, *arguments, variables={"TERM": "dumb"}, stdout=screen.stream, stderr=screen.stream
    )
    if "--watch" in arguments:
        screen.wait_for("waiting-next")
        process.send_signal(signal.SIGINT)
    while process.poll() is None:
        screen.read(0.02)
    screen.drain()
    return "\n".join(screen.screen())


@pytest.mark.parametrize("look", STATE_DISPLAYS)
def test_views_fit_a_terminal(project: Path, look: str) -> None:
    with terminal(COLUMNS, 24) as screen:
        text = on_terminal(project, screen, *look.split())
    assert text.strip()
    wide = [line for line in text.splitlines() if count_columns(line) > COLUMNS]
    assert not wide, "\n".join(wide)
    assert str(project) not in text
    assert not UUID.search(text)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("look", [
    "plan", "history", "status --all --ended", f"plan {CYCLE}", "plan debugger-full",
    *(f"--run {run} history" for run in (RUN, FLOW, TEAM)),
])  # fmt: skip
def test_no_row_of_a_table_is_wrapped(project: Path, look: str) -> None:
    with terminal(COLUMNS, 24) as screen:
        rows = on_terminal(project, screen, *look.split()).rstrip().splitlines()
    piped = cli(project, *look.split()).stdout.splitlines()
    # Below the table of runs stand sentences: what each waits for.
    rows, piped = ([*takewhile(lambda row: ": waits" not in row, one)] for one in (rows, piped))
    sentences = 1 if look == f"plan {CYCLE}" else 0
    assert len(rows) == len(piped) + sentences
    assert any("…" in row for row in rows)


@pytest.mark.parametrize("verb", [(), *((name,) for name in list_verbs())], ids=" ".join)
def test_help_fits_a_terminal(
    tmp_path: Path, verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    text = call(tmp_path, *verb, "--help").out
    assert "Usage: sequencer" in text
    assert max(map(count_columns, text.splitlines())) <= COLUMNS


def test_a_watch_ends_with_the_run(tmp_path: Path) -> None:
    folder = scripted_project(tmp_path / "p")
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    process = launched(
        folder, "status", "--watch", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "waiting-next" in process.stdout.readline()
    assert cli(folder, "stop").returncode == 0
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(out.splitlines()) == 1
    assert err.startswith("nothing more starts on its own: the run was stopped")


def test_the_next_attempt_is_announced_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    chart = (
        "---\nid: f\n---\n\n```mermaid\nflowchart TD\n  a --> b\n```\n\n### a\nSay\n\n### b\nSay\n"
    )
    (tmp_path / "flows" / "f.md").write_text(chart)
    (tmp_path / "agent.py").write_text(AGENT)
    settings = "step_defaults: {retry: {max_attempts: 2, initial_delay_s: 1}}\n"
    agents = (
        'agent: {default: s}\nagents:\n  s: {kind: command, argv: ["{python}", -IS, agent.py], '
    )
    settings += agents + "pass_env: [FAIL]}\n"
    (tmp_path / "orchestration.yaml").write_text(settings)
    ended = cli(tmp_path, "run", "f", FAIL="b")
    assert ended.returncode == 1
    told = [line for line in ended.stderr.splitlines() if " b" in line or "next try" in line]
    words = [line.split(" ", 1)[1].split(":")[0] for line in told if line[:2].isdigit()]
    assert words[:4] == ["start b", "retry b after attempt 1", "notice", "start b, attempt 2"]
    assert re.search(r": the next try starts at \d\d:\d\d:\d\d$", ended.stderr, re.MULTILINE)


@pytest.mark.parametrize("verb", [
    "status", "plan", "run", "tick", "plan --list", "history", "log", "status --all", "inbox",
    "report", "report --metrics", "stop --pause", "answer approve", "trust",
    "schedule print", "plan --request X", "start X",
])  # fmt: skip
def test_without_a_project_init_is_suggested(tmp_path: Path, verb: str) -> None:
    ended = cli(tmp_path, *verb.split())
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: there is no project here: ")
    assert "'sequencer init'" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_check_reports_a_missing_project(tmp_path: Path) -> None:
    ended = cli(tmp_path, "check")
    assert ended.returncode == 2
    assert ended.stdout.startswith("error: configuration: there is no project here: ")
    assert "'sequencer init'" in ended.stdout


@pytest.mark.slow
def test_the_list_of_workflows_is_of_the_projects_own(project: Path) -> None:
    lines = cli(project, "plan", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["WORKFLOW", CYCLE, TEAM, FLOW]
    assert lines[4] == ""
    assert lines[5].startswith("built in: debugger-full, ")
    assert len(lines) == 6
