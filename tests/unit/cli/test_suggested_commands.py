"""A command that a message suggests can be pasted as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sequencer import open_run
from sequencer.cli import inbox
from sequencer.errors import complete_commands
from sequencer.files.textfile import slug
from tests.unit.cli.calling import Called, call, project

GATE = """\
agent: {default: rehearsal}
steps:
  - {name: supervisor, text: Choose.}
  - {name: main, text: Do., requires_approval: true}
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """Return a project whose default run and run "two" wait for a decision."""
    folder = project(tmp_path / "p", GATE)
    for option in ([], ["--run", "two"]):
        assert call(folder, *option, "run").code == 4
    return folder


def suggested(called: Called) -> list[str]:
    """Return the arguments of the first command in the output of *called*."""
    line = next(line for line in (called.out + called.err).splitlines() if "sequencer -" in line)
    return shlex.split(line[line.index("sequencer -") :].split("'")[0])[1:]


def test_a_hint_names_the_run_and_the_settings_file(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", GATE)
    (folder / "orchestration.yaml").rename(folder / "my.yaml")
    options = ["--config", "my.yaml", "--run", "a"]
    assert call(folder, *options, "run", "--max-steps", "1").code == 0
    refused = call(folder, *options, "rewind", "9")
    assert refused.code == 3
    assert "'sequencer --config=my.yaml --run a skip'" in refused.err
    assert call(folder, *suggested(refused)).code == 0
    paused = call(folder, *options, "stop", "--pause")
    assert "'sequencer --config=my.yaml --run a resume'" in paused.out
    shown = call(folder, *options, "status")
    assert "next: sequencer --config=my.yaml --run a resume" in shown.out
    assert call(folder, *suggested(shown)).code == 0


def test_a_hint_about_all_runs_names_none(waiting: Path) -> None:
    refused = call(waiting, "--run", "two", "trust", "--list", "--remove")
    assert refused.code == 2
    assert "--run" not in refused.err
    called = call(waiting, "--run", "three", "answer", "approve")
    assert "known runs: default, two" in called.err


def test_each_answer_that_the_inbox_suggests_names_its_run(waiting: Path) -> None:
    lines = [line.split() for line in call(waiting, "inbox").out.splitlines()]
    approvals = [line[1:] for line in lines if line[:1] == ["sequencer"] and "approve" in line]
    assert sorted(approvals) == [
        ["--run", "default", "answer", "approve"],
        ["--run", "two", "answer", "approve"],
    ]
    refused = call(waiting, "answer", "approve")
    assert refused.code == 3
    assert "2 runs wait for a decision: default, two" in refused.err
    for arguments in approvals:
        assert call(waiting, *arguments).code == 0
    assert "sequencer" not in call(waiting, "inbox").out


def test_alone_the_default_run_needs_no_name(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", GATE)
    call(folder, "run")
    assert "  sequencer answer approve\n" in call(folder, "inbox").out


def test_a_message_that_was_sent_is_not_called_refused(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", GATE)
    with open_run(folder).turn():
        (folder / "orchestration.yaml").write_text(GATE.replace("name: main", "name: other"))
        sent = call(folder, "tell", "look at a.py")
        assert sent.code == 0, sent.err
        assert "message sent" in sent.err


def test_a_pause_that_waits_for_the_running_step_is_shown(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", GATE)
    run = open_run(folder)
    with run.turn():
        call(folder, "stop", "--pause")
        shown = call(folder, "status")
        assert "the run pauses when its running step ends" in shown.out
        assert call(folder, "status", "--json").json["in_the_way"] == [
            "the run pauses when its running step ends; 'sequencer resume' cancels the pause"
        ]
    assert "pauses when" not in call(folder, "status").out


def test_a_pause_does_not_call_a_stopped_run_paused(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", GATE)
    call(folder, "run", "--max-steps", "1")
    call(folder, "stop")
    assert call(folder, "stop", "--pause").out.startswith("the run is stopped\n")


FLOW = "```mermaid\nflowchart TD\n  a --> b\n```\n\n### a\n\nDo a.\n\n### b\n\nDo b.\n"


@pytest.mark.parametrize("name", ["FLOW", "my flow", "flow"])
def test_the_run_of_a_flow_has_its_name(tmp_path: Path, name: str) -> None:
    folder = project(tmp_path / "p", "agent: {default: rehearsal}\n")
    (folder / f"{name}.md").write_text(FLOW)
    assert call(folder, "run", f"{name}.md").code == 0
    shown = call(folder, "--run", name, "status")
    assert shown.code == 0, shown.err
    assert "complete" in shown.out
    assert open_run(folder, name=name).head is not None


def test_a_flows_run_from_before_continues_under_its_old_name(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: {default: rehearsal}\n")
    (folder / "FLOW.md").write_text(FLOW)
    old_name = slug("FLOW")
    assert call(folder, "--run", old_name, "run", "FLOW.md", "--max-steps", "1").code == 0
    assert call(folder, "run", "FLOW.md").code == 0
    assert "complete" in call(folder, "--run", old_name, "status").out
    assert call(folder, "--run", "FLOW", "status").code == 2


ASKS = """\
```mermaid
flowchart TD
  a --> q{{Good?}} -->|yes| b
  q -->|no| a
```

### a

Do a.

### b

Do b.
"""


def test_an_answer_that_comes_too_late_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path / "p", "agent: {default: rehearsal}\n")
    (folder / "ask.md").write_text(ASKS)

    def answer_late(*_: object) -> str:
        assert call(folder, "--run", "ask", "answer", "q", "yes").code == 0
        return "no"

    monkeypatch.setattr(inbox, "is_interactive", lambda: True)
    monkeypatch.setattr(inbox, "_prompt_for_answer", answer_late)
    shown = call(folder, "run", "ask.md")
    assert "question 'q' is closed: someone else has answered it" in shown.err


def test_records_of_trust_that_can_not_be_read_hide_no_question(
    waiting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = waiting.parent / "state"
    state.mkdir()
    (state / "sequencer").write_text("x")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("SEQUENCER_TRUST", "")
    shown = call(waiting, "inbox")
    assert shown.code == 0, shown.err
    assert "sequencer --run two answer approve" in shown.out
    assert "Not a directory" in shown.out


def test_options_of_one_command_are_not_suggested_by_the_next_in_the_same_process(
    waiting: Path,
) -> None:
    config = waiting / "orchestration.yaml"
    assert call(waiting, f"--config={config}", "--run=two", "status").code == 0
    assert "'sequencer help all' lists them" in call(waiting, "nosuch").err
    assert complete_commands("'sequencer log'") == "'sequencer log'"
