"""`status` ends with the command to type, whatever state the run is in; `--json` has it too."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.cli_process import launched, until
from tests.unit.cli.calling import Called, call, project
from tests.unit.cli.flow.terminals import terminal

CONFIGURATION = """\
workflow: {name: mine}
agent: {default: script}
workflows:
  mine: {kind: procedure, steps: [supervisor, {name: main, requires_approval: true}, reviewer]}
  drawn: flows/drawn.md
agents:
  script: {kind: command, argv: [sh, agent.sh]}
limits: {failures_in_row: 2}
"""
AGENT = """\
while test -e hold; do sleep 0.05; done
test ! -e broken || { echo no room >&2; exit 1; }
"""
FLOW = """\
```mermaid
flowchart TD
  a[Build it] --> b{{Is it good?}}
  b -->|yes| c[Ship it]
  b -->|no| a
```

### a
Build it.

### b
Is it good?

### c
Ship it.
"""
LATER = (datetime.now(UTC) + timedelta(hours=5)).isoformat(timespec="seconds")
RUN = ("run", "--quiet")


@pytest.fixture(params=["line", "net"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a project whose default run is a procedure, or a flowchart."""
    text = CONFIGURATION
    if request.param == "net":
        text = text.replace("workflow: {name: mine}", "workflow: {name: drawn}")
    made = project(tmp_path / "p", text)
    (made / "agent.sh").write_text(AGENT)
    (made / "flows").mkdir()
    (made / "flows" / "drawn.md").write_text(FLOW)
    return made


def is_net(folder: Path) -> bool:
    return "name: drawn" in (folder / "orchestration.yaml").read_text()


def last_line(folder: Path, words: str) -> Called:
    """Return what `status` says; its last line and its JSON have to name the command *words*."""
    text = call(folder, "status")
    facts = call(folder, "status", "--json").json
    last = text.out.rstrip("\n").splitlines()[-1]
    assert last.startswith("next: sequencer "), text.out
    assert last.removeprefix("next: sequencer ").partition(" (")[0] == words, text.out
    assert facts["next_command"] == f"sequencer {words}"
    note = f" ({facts['next_note']})" if facts["next_note"] else ""
    assert last == f"next: {facts['next_command']}{note}"
    return text


def edit(folder: Path, *, chart: tuple[str, str], config: tuple[str, str]) -> None:
    """Replace a text in the flowchart, or in the configuration of the procedure."""
    path = folder / ("flows/drawn.md" if is_net(folder) else "orchestration.yaml")
    path.write_text(path.read_text().replace(*(chart if is_net(folder) else config)))


def change_workflow(folder: Path) -> None:
    edit(
        folder,
        chart=("| c[Ship it]", "| c[Ship it] --> a"),
        config=(", reviewer]", "]"),
    )


def answered(folder: Path) -> None:
    words = ("answer", "b", "yes") if is_net(folder) else ("answer", "approve")
    assert call(folder, *words).code == 0


def work(folder: Path, *, code: int = 0) -> None:
    ended = call(folder, *RUN)
    assert ended.code == code, ended.err


@pytest.mark.slow(sample=1)
def test_every_stage_of_a_run_names_the_next_command(folder: Path) -> None:
    assert "status      not started; " in last_line(folder, "run").out
    assert call(folder, *RUN, "--max-steps", "1").code == 0
    last_line(folder, "inbox" if is_net(folder) else "run")
    work(folder, code=4)
    last_line(folder, "inbox")
    answered(folder)
    last_line(folder, "run")
    work(folder)
    said = last_line(folder, "report").out
    assert "('sequencer reset' starts it again)" in said


def test_a_complete_flowchart_names_the_command_that_starts_it_again(tmp_path: Path) -> None:
    made = project(tmp_path, "agent: rehearsal\n")
    (made / "f.md").write_text(
        "---\nid: f\n---\n\n```mermaid\nflowchart TD\na[Do it]\n```\n\n### a\nDo it.\n"
    )
    assert call(made, "run", "f.md").code == 0
    again = "'sequencer run f.md --new' starts it again"
    assert again in call(made, "--run", "f", "status").out
    assert again in call(made, "run", "f.md").err
    assert call(made, "run", "f.md", "--new").code == 0


@pytest.mark.slow(sample=1)
def test_a_failed_run_shows_the_first_line_of_the_error(folder: Path) -> None:
    (folder / "broken").touch()
    work(folder, code=1)
    said = last_line(folder, "retry" if is_net(folder) else "run").out
    assert "failed: exit code 1" in said
    if not is_net(folder):
        assert "1 in a row, limit 2: 'supervisor' failed: exit code 1" in said
        work(folder, code=1)
        said = last_line(folder, "retry").out
        assert "status      failed since" in said
        # The limit and what to do about it are two sentences.
        assert "(limits.failures_in_row: 2); look at 'sequencer log'" in said
    assert "exit code 1" in call(folder, "status", "--json").json["failure"]
    (folder / "broken").unlink()
    assert call(folder, "retry").code == 0
    assert "failed:" not in last_line(folder, "run").out
    work(folder, code=4)


@pytest.mark.parametrize(
    ("change", "word", "words"),
    [
        (("stop",), "stopped", "resume"),
        (("stop", "--pause"), "paused", "resume"),
        (("set", f'not_before="{LATER}"'), "", "run"),
    ],
)
def test_a_manual_block_names_the_command_that_removes_it(
    folder: Path, change: tuple[str, ...], word: str, words: str
) -> None:
    assert call(folder, *RUN, "--max-steps", "1").code == 0
    answered(folder) if is_net(folder) else None
    assert call(folder, *change).code == 0
    said = last_line(folder, words).out
    assert f"status      {word}" in said
    assert call(folder, "status", "--json").json["in_the_way"]
    if change[0] == "set":
        assert "it waits until " in said


def test_a_reached_run_limit_must_be_raised_first(folder: Path) -> None:
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text().replace("limits: {", "limits: {steps: 1, "))
    call(folder, *RUN)
    answered(folder) if is_net(folder) else None
    said = last_line(folder, "trust").out
    assert "first raise limits.steps in orchestration.yaml" in said
    assert "status      at its limit since" in said


def test_a_failed_step_reports_when_it_is_retried(folder: Path) -> None:
    config = folder / "orchestration.yaml"
    config.write_text(
        config.read_text() + "step_defaults: {retry: {max_attempts: 3, initial_delay_s: 3000}}\n"
    )
    (folder / "broken").touch()
    assert call(folder, "tick").code == (0 if is_net(folder) else 1)
    said = last_line(folder, "run").out
    assert f"'{'a' if is_net(folder) else 'supervisor'}' failed; tried again at " in said
    assert "('sequencer retry': now)" in said
    assert "(it waits until " in said


def test_a_working_process_that_dies_changes_the_next_command(folder: Path) -> None:
    (folder / "hold").touch()
    process = launched(folder, *RUN)
    until(lambda: "alive" in call(folder, "status").out)
    last_line(folder, "status --watch" if is_net(folder) else "log -f")
    process.kill()
    process.wait()
    (held,) = call(folder, "status", "--json").json["held_by"]
    assert (held["state"], held["token"]) == ("dead", 1)
    assert held["by"].startswith(f"process {process.pid} on ")
    said = last_line(folder, "run").out
    assert "status      interrupted since" in said
    assert "it takes the step over" in said
    assert not is_net(folder) or re.search(r"(?m)^a +Build it +interrupted +1 ", said)
    listed = call(folder, "status", "--all").out
    assert "  interrupted  " in listed
    assert " is gone; sequencer run\n" in listed
    assert call(folder, "stop").code == 0
    # Nothing takes over what was stopped.
    assert "status      stopped since" in last_line(folder, "resume").out
    assert "in the way  the run was stopped" in call(folder, "status").out


def test_a_changed_workflow_suggests_adopt(folder: Path) -> None:
    work(folder, code=4)
    answered(folder)
    change_workflow(folder)
    last_line(folder, "adopt")
    assert "the run was started differently" in str(
        call(folder, "status", "--json").json["in_the_way"]
    )


def test_a_complete_run_needs_no_adopt_after_a_change(folder: Path) -> None:
    work(folder, code=4)
    answered(folder)
    work(folder)
    before = last_line(folder, "report").out
    change_workflow(folder)
    assert last_line(folder, "report").out == before
    refused = call(folder, *RUN)
    assert refused.code == 3
    assert "the run was started differently and is complete" in refused.err
    assert "adopt" not in refused.err
    assert "reset' starts over" in refused.err


def test_a_complete_run_of_a_broken_workflow_needs_no_one(folder: Path) -> None:
    work(folder, code=4)
    answered(folder)
    work(folder)
    edit(folder, chart=("c[Ship it]", "c[Ship it"), config=("kind: procedure", "kind: nosuch"))
    listed = call(folder, "inbox")
    assert "can't continue" not in listed.out + listed.err
    assert listed.out == "no run waits for a decision\n"


def test_a_missing_workflow_suggests_check(folder: Path) -> None:
    work(folder, code=4)
    (folder / "orchestration.yaml").write_text("agent: {default: rehearsal}\n")
    last_line(folder, "check")


def test_an_untrusted_project_suggests_trust(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work(folder, code=4)
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    last_line(folder, "trust")
    assert call(folder, "trust", "--yes").code == 0
    last_line(folder, "inbox")
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text().replace("agent.sh", "other.sh"))
    last_line(folder, "trust")


@pytest.mark.slow(sample=1)
def test_a_run_restored_from_an_older_copy_suggests_repair(folder: Path) -> None:
    """Its files agree with each other, and this user's own record knows that it was further."""
    assert call(folder, *RUN, "--max-steps", "1").code == 0
    older = shutil.copytree(folder / "sync", folder.with_name("older"))
    if is_net(folder):
        answered(folder)
    work(folder, code=0 if is_net(folder) else 4)
    shutil.rmtree(folder / "sync")
    shutil.copytree(older, folder / "sync")
    said = last_line(folder, "repair").out
    assert "accepted steps may be missing" in said
    assert "repair --apply --accept-journal" in said
    assert "accepted steps may be missing" in call(folder, "status", "--json").json["in_the_way"][0]
    for view in ("inbox", "status --all"):
        said = call(folder, *view.split()).out
        assert "accepted steps may be missing" in said
        assert "repair" in call(folder, "inbox").out
    (listed,) = call(folder, "status", "--all", "--json").json
    assert listed["status"] == "unreadable"
    # Nothing of it has changed what the run needs.
    assert call(folder, "run").code == 3
    assert call(folder, "repair", "--apply", "--accept-journal").code == 0
    assert "missing" not in call(folder, "status").out


@pytest.mark.parametrize("has_record", [True, False])
def test_a_journal_shorter_than_the_step_logs_is_noticed(tmp_path: Path, has_record: bool) -> None:
    """With an own record that was put back too, or without one; the logs stayed."""
    folder = project(tmp_path / "p")
    assert call(folder, *RUN, "--max-steps", "1").code == 0
    records = Path(os.environ["XDG_STATE_HOME"], "sequencer", "runs")
    (record,) = [path for path in records.iterdir() if str(folder) in path.read_text()]
    kept, older = record.read_bytes(), shutil.copytree(folder / "sync", folder.with_name("older"))
    assert call(folder, *RUN, "--max-steps", "1").code == 0
    last_line(folder, "run")
    shutil.rmtree(folder / "sync")
    shutil.copytree(older, folder / "sync")
    record.write_bytes(kept) if has_record else record.unlink()
    said = last_line(folder, "repair").out
    assert "iter-00002_main.log shows token 2" in said
    assert call(folder, "run").code == 3


def test_the_command_for_a_named_run_can_be_pasted(folder: Path) -> None:
    assert call(folder, "--run", "a night", *RUN, "--max-steps", "1").code == 0
    assert call(folder, "--run", "a night", "stop").code == 0
    said = call(folder, "--run", "a night", "status").out
    last = said.rstrip("\n").splitlines()[-1]
    assert last == "next: sequencer --run 'a night' resume"
    assert call(folder, *shlex.split(last.removeprefix("next: sequencer "))).code == 0


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_failure_is_red_on_a_terminal_that_shows_colors(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    folder = project(tmp_path / "p")
    for _ in range(3):
        assert call(folder, "skip", "--as-failed").code == 0
    with terminal(80, 24) as screen:
        options = {"TERM": "xterm", **variables}
        process = launched(folder, "status", variables=options, stdout=screen.stream)
        screen.wait_for("next: sequencer retry")
        assert process.wait(30) == 0
        has_color = not variables
        assert (b"\x1b[31mstatus      failed since" in screen.raw) is has_color
        assert (b"\x1b[1mnext: sequencer retry" in screen.raw) is has_color
    assert "\x1b" not in call(folder, "status").out
