"""What the inbox lists besides questions: everything that stands still until somebody acts."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sequencer.store.file import FileStore
from tests.unit.cli.calling import call, project

FAILS = """\
agent: hand
agents: {hand: {kind: command, argv: [sh, -c, "echo no space left; exit 1"], free: true}}
steps: [{name: work, text: x}]
limits: {failures_in_row: 1}
"""
LIMITED = """\
agent: rehearsal
steps: [{name: work, text: x}]
limits: {steps: 1}
"""


def test_a_run_with_no_tries_left_is_listed_with_its_last_lines(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", FAILS)
    assert call(folder, "--run", "night", "run", "--quiet").code == 1
    assert call(folder, "inbox").out.splitlines() == [
        "night: step 'work' failed (limits.failures_in_row: 1)",
        "  | exit code 1",
        "  | no space left",
        "  log: logs/local/runs/night/steps/iter-00001_work.log",
        "  sequencer --run night retry",
        "  sequencer --run night skip",
    ]
    (row,) = call(folder, "inbox", "--json").json
    assert (row["run"], row["need"], row["cause"][-1]) == ("night", "refused", "no space left")
    assert call(folder, "--run", "night", "inbox", "--json").json == [row]
    # With a try left, or stopped by a person, it needs nobody.
    assert call(folder, "--run", "night", "retry").code == 0
    assert call(folder, "inbox").out == "no run waits for a decision\n"


def test_a_run_at_its_own_limit_is_listed_with_what_to_do(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", LIMITED)
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    assert call(folder, "inbox").out.splitlines() == [
        "default run: the run's limit of 1 step is reached (limits.steps)",
        "  raise it in orchestration.yaml, then",
        "  sequencer trust",
    ]
    assert call(folder, "stop").code == 0
    assert call(folder, "inbox", "--json").json == []


def test_untrusted_changes_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    folder = project(tmp_path / "p", LIMITED.replace("steps: 1", "steps: 5"))
    assert call(folder, "inbox").out == "no run waits for a decision\n"
    assert call(folder, "trust", "--yes").code == 0
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    assert call(folder, "inbox", "--json").json == []
    more = "agents: {hand: {kind: command, argv: [sh, -c, date]}}\n"
    (folder / "orchestration.yaml").write_text(LIMITED.replace("steps: 1", "steps: 5") + more)
    lines = call(folder, "inbox").out.splitlines()
    assert lines[0] == "this project: it has changed since you trusted it, so nothing starts"
    assert any("hand" in line for line in lines[1:-1])
    assert lines[-1] == "  sequencer trust"
    (row,) = call(folder, "inbox", "--json").json
    assert (row["run"], row["need"], row["commands"]) == (None, "untrusted", ["sequencer trust"])


def test_a_manual_edit_is_reported_wherever_runs_are_shown(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", LIMITED.replace("steps: 1", "steps: 5"))
    for option in ((), ("--run", "night")):
        assert call(folder, *option, "run", "--max-steps", "1", "--quiet").code == 0
    path = folder / "sync" / "runs" / "night" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "exit": True}))
    said = "notice: sync/runs/night/state.json was edited by hand\n"
    for words in ("status --all", "inbox", "--run night inbox", "--run night status"):
        assert call(folder, *words.split()).err == said, words
    assert call(folder, "status").err == ""
    (whole,) = call(folder, "--run", "night", "status", "--json").json["notices"]
    assert whole.endswith("sync/runs/night/state.json was edited by hand")
    rows = call(folder, "status", "--all", "--json").json
    assert {row["run"]: row["notices"] for row in rows} == {None: [], "night": [whole]}


def test_a_run_whose_definition_changed_is_listed(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", LIMITED.replace("steps: 1", "steps: 5"))
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    other = LIMITED.replace("steps: 1", "steps: 5").replace("name: work", "name: play")
    (folder / "orchestration.yaml").write_text(other)
    (row,) = call(folder, "inbox", "--json").json
    assert row["commands"] == ["sequencer adopt", "sequencer reset"]


def test_an_answer_that_nothing_waits_for_is_refused(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", LIMITED.replace("steps: 1", "steps: 5"))
    for option in ((), ("--run", "night")):
        assert call(folder, *option, "run", "--max-steps", "1", "--quiet").code == 0
    for words in (("maybe",), ("yes",), ("q", "yes"), ("q", "approve"), ("feedback", "shorter")):
        ended = call(folder, "answer", *words)
        assert (ended.code, "no run waits for a decision" in ended.err) == (3, True), ended.err
        ended = call(folder, "--run", "night", "answer", *words)
        assert (ended.code, "run 'night' waits for no decision" in ended.err) == (3, True)


def at_gate(path: Path) -> Path:
    steps = "workflows: {ask: {kind: procedure, steps: [{name: main, requires_approval: true}]}}\n"
    folder = project(path, f"agent: rehearsal\nworkflow: ask\n{steps}")
    assert call(folder, "run", "--quiet").code == 4
    return folder


def test_a_gate_of_a_stopped_run_takes_an_answer(tmp_path: Path) -> None:
    folder = at_gate(tmp_path / "p")
    assert call(folder, "stop").code == 0
    assert call(folder, "answer", "main", "look again").code == 0


def test_an_answer_may_come_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = at_gate(tmp_path / "p")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"look again\n")))
    assert call(folder, "answer", "-").code == 0
    fact = json.loads(call(folder, "history", "--json").out.splitlines()[-1])
    assert fact["event"] == "feedback"
    assert fact["outcome"]["note"] == "look again\n"


def test_each_run_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project(tmp_path / "p")
    names = [f"r{number}" for number in range(5)]
    for name in names:
        (folder / "sync" / "runs" / name).mkdir(parents=True)
    opened: Counter[str] = Counter()
    read_view = FileStore._read_view

    def count(store: FileStore) -> Any:
        opened[store.state_path.parent.name] += 1
        return read_view(store)

    monkeypatch.setattr(FileStore, "_read_view", count)
    assert call(folder, "inbox").code == 0
    assert {name: opened[name] for name in names} == dict.fromkeys(names, 1)
