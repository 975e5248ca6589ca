from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sequencer import open_run
from sequencer.model.head import Owner
from tests.unit.cli.calling import CONFIGURATION, call, project, state, worked
from tests.unit.store import broken_runs


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call(folder, "history", "--json").out.splitlines()]


def hold(folder: Path, owner: Owner | None = None) -> None:
    broken_runs.hold(open_run(folder).store, owner)


def test_skip_as_done_accepts_the_step_and_prints_the_next_one(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, "skip", "--as-done", "--note", "by hand")
    assert called.code == 0
    assert called.out.splitlines() == [
        "accepted: step 'main', step_index 1",
        "next: step 'reviewer' (reviewer.md), step_index 2",
    ]
    assert events(tmp_path)[-1]["outcome"] == {"note": "ok: by hand"}


def test_skip_as_failed_counts_a_failure_and_retry_clears_it(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    for count in (1, 2, 3):
        assert call(tmp_path, "skip", "--as-failed", "--note", "red").code == 0
        assert state(tmp_path)["failures_in_row"] == count
    assert "failed 4 times in a row" in call(tmp_path, "skip", "--as-failed").out
    called = call(tmp_path, "retry")
    assert called.out.splitlines()[0] == "failures in a row cleared (4)"
    assert state(tmp_path)["failures_in_row"] == 0
    assert call(tmp_path, "retry").code == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("exit=true", True),
        ("ticket=ABC-12", "ABC-12"),
        ("ticket=", ""),
        ('ticket="a=b"', "a=b"),
        ("ticket=a=b", "a=b"),
        ("ticket=[1, {}]", [1, {}]),
        ("ticket=null", None),
        ("ticket=1.5", 1.5),
        ("ticket=NaN", "NaN"),
        ("ticket=1} , {", "1} , {"),
        ("last_prompt=other.md", "other.md"),
        ("step_index=5", 5),
    ],
)
def test_set_takes_json_or_text(tmp_path: Path, text: str, value: object) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, "set", text)
    assert called.code == 0, called.err
    field = text.partition("=")[0]
    assert state(tmp_path)[field] == value
    assert called.out.splitlines()[0] == f"{field} is {json.dumps(value)}"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("step_index", 2, "not FIELD=VALUE"),
        ("=1", 2, "not FIELD=VALUE"),
        ("token=99", 3, "can't be set by hand"),
        ("step_index=-1", 3, "step_index"),
        ("status=dreaming", 3, "status"),
        ('exit="yes"', 3, "exit"),
    ],
)
def test_set_refuses_what_would_break_the_run(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    worked(tmp_path, 1)
    before = state(tmp_path)
    called = call(tmp_path, "set", text)
    assert called.code == code
    assert said in called.err
    assert state(tmp_path) == before


def test_reset_requires_yes_before_accepted_steps_are_lost(tmp_path: Path) -> None:
    worked(tmp_path, 2)
    refused = call(tmp_path, "reset")
    assert refused.code == 2
    assert "2 accepted steps" in refused.err
    assert "--yes" in refused.err
    assert state(tmp_path)["step_index"] == 2
    old = state(tmp_path)["run_id"]
    called = call(tmp_path, "reset", "--yes")
    assert called.code == 0
    assert state(tmp_path)["step_index"] == 0
    assert state(tmp_path)["run_id"] != old
    assert state(tmp_path)["token"] == 2


def test_reset_can_change_the_workflow(tmp_path: Path) -> None:
    worked(tmp_path, 2)
    called = call(tmp_path, "reset", "--yes", "--workflow", "standard2")
    assert called.code == 0, called.err
    assert state(tmp_path)["workflow_name"] == "standard2"
    call(tmp_path, "reset", "--yes", "--workflow", "review_cadence")
    called = call(tmp_path, "reset", "--yes", "--review-every", "7")
    assert called.code == 0, called.err
    assert state(tmp_path)["params"] == {"review_every_n_cycles": 7}


@pytest.mark.parametrize("text", ["99999999999999999999999", "-99999999999999999999999"])
def test_a_counter_with_too_many_digits_is_refused_with_the_range(
    text: str, tmp_path: Path
) -> None:
    refused = call(worked(tmp_path, 1), "set", f"step_index={text}")
    assert refused.code == 3
    assert "whole numbers from 0 to 4611686018427387903 can be set" in refused.err
    assert state(tmp_path)["step_index"] == 1


@pytest.mark.parametrize(
    ("field", "nearest"),
    [("step_indx", "step_index"), ("statu", "status"), ("ticket", None), ("token_of", None)],
)
def test_a_note_that_looks_like_a_typo_is_noticed(
    field: str, nearest: str | None, tmp_path: Path
) -> None:
    called = call(worked(tmp_path, 1), "set", f"{field}=3")
    assert (called.code, state(tmp_path)[field]) == (0, 3)
    said = f"notice: {field} is kept as a note of yours; did you mean {nearest!r}?"
    assert (said in called.err) is (nearest is not None)
    assert ("did you mean" in called.err) is (nearest is not None)


@pytest.mark.parametrize(("verb", "words"), [("reset", ("--yes",)), ("adopt", ())])
def test_the_command_that_continues_repeats_the_options(
    verb: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    worked(tmp_path, 1)
    ended = call(tmp_path, verb, "--review-every", "5", *words)
    assert ended.code == 0, ended.err
    command = "sequencer run --review-every 5"
    assert f"to continue: {command}\n" in ended.err
    assert "set the same as --review-every 5 in orchestration.yaml" in ended.err
    assert call(tmp_path, "run", "--max-steps", "1", "--quiet").code == 3
    assert call(tmp_path, *command.split()[1:], "--max-steps", "1", "--quiet").code == 0


def test_a_change_of_a_run_that_would_not_continue_says_what_to_do(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    (tmp_path / "orchestration.yaml").write_text(CONFIGURATION.replace(": 2", ": 5"))
    ended = call(tmp_path, "set", "ticket=1")
    assert "next: none: the run was started differently" in ended.out
    assert "to continue:" not in ended.err
    assert "'sequencer adopt'" in ended.err


def test_a_rewind_by_one_step_speaks_of_one_step(tmp_path: Path) -> None:
    worked(tmp_path, 2)
    assert "to 1; 1 step runs again: 1 main\n" in call(tmp_path, "rewind", "1").out
    worked_on = call(tmp_path, "run", "--max-steps", "1", "--quiet")
    assert worked_on.code == 0
    assert "to 0; 2 steps run again: 0 supervisor, 1 main\n" in call(tmp_path, "rewind", "0").out


def test_rewind_only_goes_back(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, "rewind", "9")
    assert called.code == 3
    assert "sequencer skip" in called.err
    assert call(tmp_path, "rewind", "-1").code == 2


DIGITS = "9" * 5000
"""More digits than Python converts."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("rewind", DIGITS),
            "rewind: '9999999999999999999999999999999999999999…' is not a step_index",
        ),
        (("run", "--position", DIGITS), "unknown position '9999"),
        (("tick", "--position", DIGITS), "unknown position '9999"),
        (("log", DIGITS), "unknown step '9999"),
    ],
)
def test_a_number_that_no_counter_has_is_a_mistake_of_the_user(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, *arguments)
    assert called.code == 2
    assert message in called.err


def test_adopt_reports_what_changed(tmp_path: Path) -> None:
    worked(tmp_path, 2)
    (tmp_path / "orchestration.yaml").write_text(CONFIGURATION.replace(": 2", ": 5"))
    assert call(tmp_path, "run").code == 3
    called = call(tmp_path, "adopt")
    assert called.code == 0, called.err
    first = called.out.splitlines()[0]
    assert "review.every: 2 -> 5" in first
    assert "step reviewer -> supervisor" in first
    assert "definition" not in first
    assert call(tmp_path, "run", "--max-steps", "1", "--quiet").code == 0


def test_takeover_names_the_holder_and_its_heartbeat(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    hold(tmp_path)
    called = call(tmp_path, "takeover")
    assert called.code == 75
    assert f"process {os.getpid()}" in called.err
    assert "with a fresh heartbeat" in called.err
    assert "--force" in called.err
    assert state(tmp_path)["claims"]


def test_takeover_knows_a_dead_holder(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    me = open_run(tmp_path).store.owner()
    hold(tmp_path, me.replace(pid_start=me.pid_start + 1))
    called = call(tmp_path, "takeover")
    assert called.code == 75
    assert "the next run takes over" in called.err


@pytest.mark.parametrize("words", ["skip", "skip --as-done", "skip --as-failed", "retry"])
def test_a_command_about_the_step_drops_the_claim_of_a_dead_process(
    tmp_path: Path, words: str
) -> None:
    worked(tmp_path, 1)
    me = open_run(tmp_path).store.owner()
    hold(tmp_path, me.replace(pid_start=me.pid_start + 1))
    called = call(tmp_path, *words.split())
    assert called.code == 0, called.err
    assert state(tmp_path)["claims"] == []
    lost = [event for event in events(tmp_path) if event["event"] == "taken-over"]
    assert [event["outcome"]["usage"]["unpriced"] for event in lost] == [1]


@pytest.mark.parametrize("arguments", [(), ("--force",)])
def test_takeover_without_a_holder_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, "takeover", *arguments)
    assert called.code == 3
    assert "no process holds a step" in called.err


@pytest.mark.parametrize(
    "arguments", [("skip", "--as-done"), ("skip",), ("rewind", "0"), ("reset", "--yes")]
)
def test_a_step_that_runs_is_not_decided_by_hand(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    worked(tmp_path, 1)
    hold(tmp_path)
    before = state(tmp_path)
    called = call(tmp_path, *arguments)
    assert called.code == 3
    assert "is being run" in called.err
    assert state(tmp_path) == before


@pytest.mark.parametrize("verb", ["retry", "reset", "rewind", "adopt", "takeover"])
def test_a_run_that_has_not_started_cannot_be_changed(tmp_path: Path, verb: str) -> None:
    project(tmp_path)
    called = call(tmp_path, verb, *(["0"] if verb == "rewind" else []))
    assert called.code == 3
    assert "has not started" in called.err
    assert not (tmp_path / "sync").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("skip", "--as-done"),
        ("skip", "--as-failed"),
        ("skip",),
        ("set", "a=1"),
        ("rewind", "0"),
        ("reset", "--yes"),
        ("adopt", "--review-every", "9"),
    ],
)
def test_json_prints_the_head(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, *arguments, "--json")
    assert called.code == 0, called.err
    assert called.json == state(tmp_path)


def test_a_change_after_a_definition_change_explains_the_missing_next_step(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    (tmp_path / "orchestration.yaml").write_text(CONFIGURATION.replace(": 2", ": 5"))
    called = call(tmp_path, "set", "a=1")
    assert called.code == 0
    assert "next: none: the run was started differently" in called.out


def test_resume_of_an_active_run_is_refused(tmp_path: Path) -> None:
    worked(tmp_path, 1)
    called = call(tmp_path, "resume")
    assert called.code == 3
    assert "neither paused nor stopped" in called.err


def test_stop_of_an_unstarted_default_run_names_the_started_run(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", CONFIGURATION + "limits: {steps: 9}\n")
    assert call(folder, "run", "--run", "docs", "--max-steps", "1", "--quiet").code == 0
    for options in ((), ("--pause",)):
        refused = call(folder, "stop", *options)
        assert refused.code == 3
        assert "sequencer --run docs stop" in refused.err
    assert not (folder / "sync" / "state.json").exists()
    assert call(folder, "--run", "docs", "stop").code == 0


def test_a_stopped_run_is_not_in_the_inbox(tmp_path: Path) -> None:
    gate = "{name: main, requires_approval: true}"
    steps = f"workflows: {{careful: {{kind: procedure, steps: [{gate}, reviewer]}}}}\n"
    folder = project(tmp_path / "p", CONFIGURATION + steps)
    assert call(folder, "--run", "g", "run", "--workflow", "careful", "--quiet").code == 4
    assert [one["run"] for one in call(folder, "inbox", "--json").json] == ["g"]
    assert call(folder, "--run", "g", "stop").code == 0
    assert call(folder, "inbox", "--json").json == []
    assert call(folder, "--run", "g", "resume").code == 0
    assert [one["run"] for one in call(folder, "inbox", "--json").json] == ["g"]
