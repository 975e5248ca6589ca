"""What a person is told of a tick, and what the log keeps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sequencer.plugins.schedules.unattended import News, log_of, record_name, recorded
from sequencer.store.user_state import own_state
from tests.unit.cli.calling import Called, call, project, worked

TIMED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}  ")
FAILS = """\
agent: fails
agents: {fails: {kind: command, argv: ["false"], free: true}}
steps: [{name: main, text: x}]
limits: {failures_in_row: 9}
"""
FAILED = "error: logs/iter-1.log: step 'main' (iteration 1, attempt 1) failed: no"


def told(path: Path, code: int, text: str = "", *, has_moved: bool = False) -> str:
    """Return what is printed of a tick that ends so."""
    ended, said = recorded(path, lambda: (code, News(text, has_moved)))
    assert ended == code
    return said


def record_of(log: Path) -> Path:
    """Return the record about what was said of ticks with the log *log*."""
    return own_state("ticks", record_name(log))


def tick(folder: Path, *arguments: str) -> Called:
    return call(folder, "tick", "--log", "logs/tick.log", *arguments)


def logged(folder: Path) -> list[str]:
    lines = (folder / "logs" / "tick.log").read_text().splitlines()
    assert all(TIMED.match(line) for line in lines)
    return [TIMED.sub("", line) for line in lines]


def test_a_step_that_is_done_is_no_news_and_is_in_the_log(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    assert tick(folder) == Called(0, "", "")
    assert logged(folder)[0].startswith("[1] supervisor: rehearsal with supervisor.md")
    assert logged(folder)[-1].startswith("the step that was due is done")
    assert (folder / "logs" / "tick.log").stat().st_mode & 0o777 == 0o600


def test_a_step_that_said_no_is_not_done(tmp_path: Path) -> None:
    judge = "{max_attempts: 3, fixer: {name: repair, prompt: supervisor.md}}"
    step = f"{{name: main, agent: says_no, validation: {judge}}}"
    text = f"agent: rehearsal\nworkflows: {{check: {{kind: procedure, steps: [{step}]}}}}\n"
    text += 'agents: {says_no: {kind: command, argv: ["false"], free: true}}\nworkflow: check\n'
    folder = project(tmp_path / "p", text)
    tick(folder)
    assert logged(folder)[-1].startswith("the attempt that was due is done")
    assert call(folder, "status", "--json").json["step_index"] == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FAILED, FAILED),
        (FAILED, FAILED.replace("attempt 1", "attempt 2").replace("-1.log", "-1.2.log")),
        (f"{FAILED} after 3.2 s", f"{FAILED} after 1 min"),
        (f"{FAILED} (req_011CSHoEeqs5C35K2UUqR7Fy)", f"{FAILED} (req_022CSHoEeqs5C35K2UUqR7Fz)"),
        (f"{FAILED} at 2026-11-01T01:30:00Z", f"{FAILED} at 2026-11-01T02:30:00Z"),
    ],
)
def test_the_same_is_told_once(tmp_path: Path, first: str, second: str) -> None:
    log = tmp_path / "tick.log"
    assert told(log, 1, first).startswith(first)
    assert told(log, 1, second) == ""


@pytest.mark.parametrize(
    ("code", "second"),
    [
        (1, FAILED.replace("iteration 1", "iteration 3")),
        (1, FAILED.replace("'main'", "'plan'")),
        (1, FAILED.replace("failed: no", "failed: HTTP 500")),
        (3, FAILED),
        (4, "error: 'a-question-with-a-long-name-1' waits for a decision"),
        (4, "error: 'a-question-with-a-long-name-2' waits for a decision"),
        (70, "error: this is a bug: KeyError: 'x'"),
        (2, "error: orchestration.yaml:7: unknown key 'limit'"),
        (0, "the run is complete after 3 steps"),
    ],
)
def test_what_is_different_is_told(tmp_path: Path, code: int, second: str) -> None:
    log = tmp_path / "tick.log"
    told(log, 4, "error: 'a-question-with-a-long-name-3' waits for a decision")
    told(log, 1, FAILED)
    said = told(log, code, second)
    assert said.startswith(f"{second}\nexit code {code}, ")
    assert f"the whole record: {log}" in said


def test_it_is_over_when_a_step_was_accepted(tmp_path: Path) -> None:
    log = tmp_path / "tick.log"
    assert told(log, 0, has_moved=True) == ""
    told(log, 1, FAILED)
    # Nothing is due for now; another tick is at work; the machine goes down.
    for code, text in ((0, ""), (75, "error: held"), (130, "interrupted")):
        assert told(log, code, text) == ""
    over = told(log, 0, has_moved=True)
    assert over.startswith("over: logs/iter-1.log: step 'main' (iteration 1, attempt 1) failed: no")
    assert told(log, 0, has_moved=True) == ""
    assert told(log, 1, FAILED).startswith(FAILED)


FLOW = """\
```mermaid
flowchart TD
  S((start)) --> Ask{{Is it good?}}
  Ask -->|yes| Build
  Ask -->|no| E((End))
  Build --> E
```

### Ask
Is it good?

### Build
Build it.
"""
OF_A_FLOW = """\
workflow: {name: note}
workflows: {note: flows/note.md}
agent: {default: fails}
agents:
  fails: {kind: command, argv: ["false"], free: true}
"""


def test_a_flows_question_and_its_bad_end_are_told_once(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", OF_A_FLOW)
    (folder / "flows").mkdir()
    (folder / "flows" / "note.md").write_text(FLOW)
    said = [tick(folder) for _ in range(4)]
    assert call(folder, "answer", "Ask", "yes").code == 0
    said += [tick(folder) for _ in range(3)]
    first_lines = [f"{one.code} {one.err.partition(chr(10))[0]}".strip() for one in said]
    told = [line for line in first_lines if " " in line]
    assert len(told) == 2, first_lines
    assert "'Ask' waits for an answer" in told[0]
    assert told[0][0] == "4"
    assert "the run ended as failed: node 'Build' failed" in told[1]
    assert told[1][0] == "1"


def test_the_short_way_leaves_what_is_over_to_the_long_one(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    call(folder, "stop")
    tick(folder), tick(folder)
    configuration = folder / "orchestration.yaml"
    text = configuration.read_text()
    configuration.write_text("agnet: x\n")
    assert "unknown key 'agnet'" in tick(folder).err
    configuration.write_text(text)
    argv = [sys.executable, "-m", "sequencer", "tick", "--log", "logs/tick.log"]
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, "SEQUENCER_TRUST": "all"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.startswith("the run was stopped")


def test_a_usage_error_is_told_once_as_well(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    first = tick(folder, "--no-such-option")
    assert (first.code, "--no-such-option" in first.err) == (2, True)
    assert tick(folder, "--no-such-option") == Called(2, "", "")


def test_a_log_that_can_not_be_written_is_told_each_time(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    (folder / "elsewhere").mkdir()
    (folder / "mine").symlink_to("elsewhere")
    for _ in range(2):
        called = call(folder, "tick", "--log", "mine/tick.log")
        assert (called.code, called.out) == (0, "")
        assert "mine/tick.log: the log can't be written: is a link" in called.err
    assert list((folder / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"code": 1}', json.dumps({"code": "1"})])
def test_what_can_not_be_read_is_told_again(tmp_path: Path, kept: str) -> None:
    log = tmp_path / "tick.log"
    told(log, 1, FAILED)
    record_of(log).write_text(kept)
    assert told(log, 1, FAILED).startswith(FAILED)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["fifo", "folder"])
@pytest.mark.timeout(10)
def test_what_is_no_file_in_the_place_of_a_record_is_no_record(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    log = tmp_path / "tick.log"
    told(log, 1, FAILED)
    record_of(log).unlink()
    make(record_of(log))
    log.with_name("tick.log.told").unlink()
    make(log.with_name("tick.log.told"))
    assert told(log, 1, FAILED).startswith(FAILED)


def test_no_file_of_the_project_keeps_a_person_from_being_told(tmp_path: Path) -> None:
    log = tmp_path / "tick.log"
    copy = log.with_name("tick.log.told")
    told(log, 1, FAILED)
    kept = copy.read_bytes()
    assert told(log, 0, has_moved=True).startswith("over: ")
    copy.write_bytes(kept)
    assert told(log, 1, FAILED).startswith(FAILED)
    # Nor does one that is gone make somebody be told again.
    copy.unlink()
    assert told(log, 1, FAILED) == ""


def test_a_copy_that_a_clone_brings_counts_for_one_tick_at_most(tmp_path: Path) -> None:
    log, other = tmp_path / "tick.log", tmp_path / "other.log"
    told(other, 1, FAILED)
    kept = json.loads(other.with_name("other.log.told").read_text())
    log.with_name("tick.log.told").write_text(json.dumps(kept))
    assert told(log, 1, FAILED) == ""
    assert told(log, 1, FAILED).startswith(FAILED)


def test_the_copy_counts_where_the_state_folder_is_new_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, said = tmp_path / "logs" / "tick.log", []
    for number in range(4):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"state-{number}"))
        said.append(told(log, 1, FAILED))
    assert [bool(one) for one in said] == [True, False, False, False]


@pytest.mark.parametrize("where", ["file", "unknown"])
def test_the_copy_counts_where_there_is_no_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file" / "state"))
    if where == "unknown":
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", "not/absolute")
    log = tmp_path / "tick.log"
    assert told(log, 1, FAILED).startswith(FAILED)
    assert told(log, 1, FAILED) == ""
    assert told(log, 0, has_moved=True).startswith("over: ")
    assert told(log, 1, FAILED).startswith(FAILED)


def test_a_record_that_others_could_have_written_is_none(tmp_path: Path) -> None:
    log = tmp_path / "tick.log"
    told(log, 1, FAILED)
    folder = record_of(log).parent
    folder.chmod(0o777)
    try:
        log.with_name("tick.log.told").unlink()
        assert told(log, 1, FAILED).startswith(FAILED)
    finally:
        folder.chmod(0o700)


DAY_S = 24 * 60 * 60


@pytest.mark.parametrize(
    ("code", "seconds", "is_told"),
    [
        (1, DAY_S - 60, False),
        (1, DAY_S + 1, True),
        (0, DAY_S + 1, False),
        (0, 7 * DAY_S + 1, True),
        # The clock was ahead a little, or by years.
        (1, 60 - DAY_S, False),
        (1, -DAY_S - 60, True),
    ],
)
def test_what_lasts_is_told_again(
    tmp_path: Path, code: int, seconds: float, *, is_told: bool
) -> None:
    log = tmp_path / "tick.log"
    told(log, code, FAILED)
    kept = json.loads(record_of(log).read_text())
    record_of(log).write_text(json.dumps({**kept, "time": kept["time"] - seconds}))
    said = told(log, code, FAILED)
    assert bool(said) == is_told
    assert not is_told or f"you were told this at {kept['at']}; it has not changed since" in said
    assert told(log, code, FAILED) == ""


def test_the_same_failure_of_another_run_is_told(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", FAILS)
    assert tick(folder).err.startswith("error: ")
    assert tick(folder) == Called(1, "", "")
    shutil.rmtree(folder / "sync")
    assert tick(folder).err.startswith("error: ")


def test_a_pause_of_days_is_told(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    assert tick(folder) == Called(0, "", "")
    date = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert call(folder, "set", f'not_before="{date}"').code == 0
    assert f"nothing starts before {date}" in tick(folder).err
    assert tick(folder) == Called(0, "", "")


@pytest.mark.parametrize(
    ("arguments", "log"),
    [
        (["tick", "--log=a b"], Path("a b")),
        (["tick", "--config", "c", "--log", "x"], Path("x")),
        (["tick"], None),
        (["tick", "--log"], None),
        (["answer", "--", "tick", "--log=x"], None),
    ],
)
def test_the_log_is_found_among_the_arguments(arguments: list[str], log: Path | None) -> None:
    assert log_of(arguments) == log


def test_all_of_a_tick_is_in_the_log_with_what_was_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "tick.log"

    def work() -> tuple[int, News]:
        print("one\ntwo", flush=True)
        print("three", end="", file=sys.stderr, flush=True)
        print(" four", file=sys.stderr)
        print("five", end="")
        return 0, News()

    assert recorded(log, work) == (0, "")
    assert capfd.readouterr() == ("", "")
    lines = [TIMED.sub("", line) for line in log.read_text().splitlines()]
    assert lines == ["one", "two", "three four", "five"]
