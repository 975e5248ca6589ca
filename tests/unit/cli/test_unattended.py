"""What a person is told of a tick, and what the log keeps."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sequencer.cli import unattended
from sequencer.cli.unattended import (
    DECISION,
    FAILURE,
    LASTING,
    PAUSE,
    REFUSAL,
    TickNotice,
    find_log_path,
    record_name,
    repeat_answer,
    run_logged,
)
from sequencer.errors import UsageRefused
from sequencer.store import folder as folders
from sequencer.store import user_state
from sequencer.store.user_state import user_state_path
from tests import forked
from tests.unit.cli.calling import Called, call, project, worked

TIMED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}  ")
FAILS = """\
agent: fails
agents: {fails: {kind: command, argv: [sh, -c, "echo no space left; exit 1"], free: true}}
steps: [{name: main, text: x}]
limits: {failures_in_row: 2}
"""
FAILED = "error: logs/iter-1.log: step 'main' (iteration 1, attempt 1) failed: no"


def told(path: Path, code: int, text: str = "", **more: Any) -> str:
    """Return what is printed of a tick that ends so."""
    ended, said = run_logged(path, lambda: (code, TickNotice(text, **more)))
    assert ended == code
    return said


def record_of(log: Path) -> Path:
    """Return the record about what was said of ticks with the log *log*."""
    return user_state_path("ticks", record_name(log))


def tick(folder: Path, *arguments: str) -> Called:
    return call(folder, "tick", "--log", "logs/tick.log", *arguments)


def logged(folder: Path) -> list[str]:
    lines = (folder / "logs" / "tick.log").read_text().splitlines()
    assert all(TIMED.match(line) for line in lines)
    return [TIMED.sub("", line) for line in lines]


def test_a_finished_step_is_logged_but_not_reported(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    assert tick(folder) == Called(0, "", "")
    assert logged(folder)[0].startswith("[1] supervisor: rehearsal with supervisor.md")
    assert logged(folder)[-1].startswith("the step that was due is done")
    assert (folder / "logs" / "tick.log").stat().st_mode & 0o777 == 0o600


def test_a_step_that_answered_no_is_not_done(tmp_path: Path) -> None:
    judge = "{max_attempts: 3, fixer: {name: repair, prompt: supervisor.md}}"
    step = f"{{name: main, agent: says_no, validation: {judge}}}"
    text = f"agent: rehearsal\nworkflows: {{check: {{kind: procedure, steps: [{step}]}}}}\n"
    text += 'agents: {says_no: {kind: command, argv: ["false"], free: true}}\nworkflow: check\n'
    folder = project(tmp_path / "p", text)
    tick(folder)
    assert logged(folder)[-1].startswith("the attempt that was due is done")
    assert call(folder, "status", "--json").json["step_index"] == 0


def later(log: Path, seconds: float) -> None:
    """Let everything that is remembered of ticks with the log *log* be *seconds* older."""
    kept = json.loads(record_of(log).read_text())
    for one in kept["told"]:
        one.update({name: one[name] - seconds for name in ("since", "time")})
    record_of(log).write_text(json.dumps(kept))


def test_changed_counts_in_a_message_are_not_a_new_problem(tmp_path: Path) -> None:
    log = tmp_path / "tick.log"
    assert told(log, 3, "error: 18 only on 'origin'", key="diverged").startswith("error: 18")
    assert told(log, 3, "error: 20 only on 'origin'", key="diverged") == ""
    assert told(log, 3, "error: 20 only on 'origin'", key="dirty").startswith("error: 20")
    # One after the other in turn, as of a work tree that is dirty now and then.
    assert told(log, 3, "error: 21 only on 'origin'", key="diverged") == ""


@pytest.mark.parametrize(
    ("code", "second"),
    [
        (1, FAILED.replace("'main'", "'plan'")),
        (4, "error: 'a-question-with-a-long-name-1' waits for a decision"),
        (70, "error: this is a bug: KeyError: 'x'"),
    ],
)
def test_a_different_problem_is_reported(tmp_path: Path, code: int, second: str) -> None:
    log = tmp_path / "tick.log"
    told(log, 4, "error: 'a-question-with-a-long-name-3' waits for a decision")
    told(log, 1, FAILED)
    said = told(log, code, second)
    assert said.startswith(f"{second}\nexit code {code}, ")
    assert f"the whole record: {log}" in said


def test_a_failure_is_over_when_a_step_was_accepted(tmp_path: Path) -> None:
    log = tmp_path / "tick.log"
    assert told(log, 0, has_moved=True) == ""
    assert told(log, 1, FAILED).startswith(FAILED)
    # Nothing is due for now; another tick is at work; the machine goes down.
    for code in (0, 75, 130):
        assert told(log, code) == ""
        assert told(log, 1, FAILED) == ""
    # Somebody had to act, and knows.
    assert told(log, 0, has_moved=True) == ""
    assert told(log, 1, FAILED).startswith(FAILED)


def test_a_decision_for_a_person_is_reported_once(tmp_path: Path) -> None:
    log = tmp_path / "tick.log"
    asked = {"key": "gate", "kind": DECISION}
    assert told(log, 4, "waiting: for you", **asked).startswith("waiting: for you")
    assert told(log, 4, "waiting: for you", **asked) == ""
    assert told(log, 0, has_moved=True) == ""


def test_a_pause_is_reported_by_the_second_tick_that_finds_it(tmp_path: Path) -> None:
    log, now = tmp_path / "tick.log", datetime.now(UTC).timestamp()
    pause = {"key": "pause", "kind": PAUSE, "until": now + 6 * 60 * 60}
    assert told(log, 0, "limit until nine", **pause) == ""
    # It is over by the next tick.
    later(log, 8 * 60 * 60)
    assert told(log, 0, has_moved=True) == ""
    assert told(log, 0, "limit until nine", **pause) == ""
    later(log, 60 * 60)
    assert told(log, 0, "limit until nine", **pause).startswith("limit until nine")
    assert told(log, 0, "limit until nine", **pause) == ""


def test_a_refusal_is_over_after_a_tick_that_succeeds(tmp_path: Path) -> None:
    log = tmp_path / "tick.log"
    told(log, 2, "error: unknown key", kind=REFUSAL)
    assert told(log, 2, "error: not trusted", kind=REFUSAL).startswith("error: not trusted")
    assert told(log, 75) == ""
    assert told(log, 2, "error: unknown key", kind=REFUSAL) == ""
    assert told(log, 0) == ""
    assert told(log, 2, "error: unknown key", kind=REFUSAL).startswith("error: unknown key")


def test_a_temporary_problem_is_reported_after_an_hour(tmp_path: Path) -> None:
    log, away = tmp_path / "tick.log", {"key": "away", "kind": LASTING}
    assert told(log, 3, "error: the remote is away", **away) == ""
    assert told(log, 0) == ""
    # It was gone in between, so its time begins anew.
    assert told(log, 3, "error: the remote is away", **away) == ""
    later(log, 50 * 60)
    assert told(log, 3, "error: the remote is away", **away) == ""
    later(log, 10 * 60)
    assert told(log, 3, "error: the remote is away", **away).startswith("error: the remote is")
    assert told(log, 3, "error: the remote is away", **away) == ""
    assert told(log, 0) == ""


def test_a_pause_is_reported_again_only_if_it_gets_longer(tmp_path: Path) -> None:
    log, now = tmp_path / "tick.log", datetime.now(UTC).timestamp()
    pause = {"key": "pause", "kind": PAUSE}
    assert told(log, 0, "limit until Friday", until=now + 5 * DAY_S, **pause)
    later(log, 4 * DAY_S)
    assert told(log, 0, "limit until Friday", until=now + 5 * DAY_S + 60, **pause) == ""
    assert told(log, 0, "limit until Sunday", until=now + 7 * DAY_S, **pause)


def test_other_news_of_a_tick_is_reported_too(tmp_path: Path) -> None:
    log, left_out = tmp_path / "tick.log", TickNotice("no start at 2:00", "date", DECISION)
    assert told(log, 0, also=(left_out,)).startswith("no start at 2:00")
    said = told(log, 3, FAILED, also=(left_out._replace(text="no start at 3:00"),))
    assert "no start" not in said
    assert said.startswith(FAILED)


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


def test_a_question_and_the_failure_of_a_flow_are_each_reported_once(tmp_path: Path) -> None:
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


def test_a_problem_that_ended_and_came_back_is_reported_again(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    call(folder, "stop")
    tick(folder), tick(folder)
    configuration = folder / "orchestration.yaml"
    text = configuration.read_text()
    configuration.write_text("agnet: x\n")
    assert "unknown key 'agnet'" in tick(folder).err
    configuration.write_text(text)
    argv = [sys.executable, "-m", "sequencer", "tick", "--log", "logs/tick.log"]
    done = forked.run(
        argv,
        cwd=folder,
        env={**os.environ, "SEQUENCER_TRUST": "all"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    configuration.write_text("agnet: x\n")
    assert "unknown key 'agnet'" in tick(folder).err


def test_a_usage_error_is_reported_once_too(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    first = tick(folder, "--no-such-option")
    assert (first.code, "--no-such-option" in first.err) == (2, True)
    assert tick(folder, "--no-such-option") == Called(2, "", "")


def test_an_unwritable_log_is_reported_once(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    (folder / "elsewhere").mkdir()
    (folder / "mine").symlink_to("elsewhere")
    called = [call(folder, "tick", "--log", "mine/tick.log") for _ in range(3)]
    assert [(one.code, one.out) for one in called] == [(0, "")] * 3
    assert "mine/tick.log: the log can't be written: is a link" in called[0].err
    assert [one.err for one in called[1:]] == ["", ""]
    assert list((folder / "elsewhere").iterdir()) == []


UNREADABLE = ["", "{", "[]", '{"code": 1}', '{"told": 1}', '{"told": [{"key": "x"}]}']


@pytest.mark.parametrize("kept", UNREADABLE)
def test_an_unreadable_record_means_a_new_report(tmp_path: Path, kept: str) -> None:
    log = tmp_path / "tick.log"
    told(log, 1, FAILED)
    record_of(log).write_text(kept)
    assert told(log, 1, FAILED).startswith(FAILED)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["fifo", "folder"])
@pytest.mark.timeout(10)
def test_a_pipe_or_folder_in_place_of_a_record_is_ignored(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    log = tmp_path / "tick.log"
    told(log, 1, FAILED)
    record_of(log).unlink()
    make(record_of(log))
    log.with_name("tick.log.told").unlink()
    make(log.with_name("tick.log.told"))
    assert told(log, 1, FAILED).startswith(FAILED)


def test_a_file_in_the_project_cannot_suppress_a_report(tmp_path: Path) -> None:
    log = tmp_path / "tick.log"
    copy = log.with_name("tick.log.told")
    told(log, 1, FAILED)
    kept = copy.read_bytes()
    assert told(log, 0, has_moved=True) == ""
    copy.write_bytes(kept)
    assert told(log, 1, FAILED).startswith(FAILED)
    # Nor does one that is gone make somebody be told again.
    copy.unlink()
    assert told(log, 1, FAILED) == ""


def test_a_copy_from_a_clone_counts_for_one_tick_at_most(tmp_path: Path) -> None:
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
    assert told(log, 0, has_moved=True) == ""
    assert told(log, 1, FAILED).startswith(FAILED)


def test_a_record_that_others_could_have_written_is_ignored(tmp_path: Path) -> None:
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
    ("code", "times", "seconds", "is_told"),
    [
        (1, 1, DAY_S - 60, False),
        (1, 1, DAY_S + 1, True),
        (1, 2, DAY_S + 1, False),
        (1, 2, 3 * DAY_S + 1, True),
        (1, 3, 3 * DAY_S + 1, False),
        (1, 9, 7 * DAY_S + 1, True),
        (0, 1, DAY_S + 1, False),
        (0, 1, 7 * DAY_S + 1, True),
        # The clock was ahead a little, or by years.
        (1, 1, 60 - DAY_S, False),
        (1, 1, -DAY_S - 60, True),
    ],
)
def test_a_lasting_problem_is_reported_less_and_less_often(
    tmp_path: Path, code: int, times: int, seconds: float, *, is_told: bool
) -> None:
    log = tmp_path / "tick.log"
    told(log, code, FAILED)
    kept = json.loads(record_of(log).read_text())
    one = kept["told"][0]
    one["times"] = times
    record_of(log).write_text(json.dumps(kept))
    later(log, seconds)
    said = told(log, code, FAILED)
    assert bool(said) == is_told
    assert not is_told or f"you were told this at {one['at']}; it has not changed since" in said
    assert told(log, code, FAILED) == ""


def test_a_problem_that_cannot_be_recorded_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "memory"))
    (tmp_path / "memory").mkdir()
    log = tmp_path / "tick.log"
    told(log, 0)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(unattended, "write_user_record", raising(full))
    first = told(log, 1, FAILED)
    assert first.startswith(FAILED)
    assert "can't be written (No space left on device), so this is said once a day" in first
    assert [told(log, 1, FAILED) for _ in range(3)] == ["", "", ""]
    # Nor can the copy beside the log be written: the one in memory counts.
    monkeypatch.setattr(unattended, "_sidecar_path", lambda _: Path("/proc/none/tick.log.told"))
    assert told(log, 1, FAILED) == ""
    other = FAILED.replace("main", "plan")
    assert [bool(told(log, 1, other)) for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("kind", [FAILURE, LASTING])
def test_without_any_record_problems_are_reported_in_one_hour_of_the_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(unattended, "_MEMORY", ("/proc/none",))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(unattended, "_sidecar_path", lambda _: Path("/proc/none/tick.log.told"))
    monkeypatch.setattr(
        unattended, "write_user_record", raising(OSError(30, "Read-only file system"))
    )
    log, said = tmp_path / "tick.log", []
    for hour in range(24):
        at = time.struct_time((2026, 11, 1, hour, 0, 0, 6, 305, 0))
        monkeypatch.setattr(time, "localtime", lambda at=at: at)
        said.append(told(log, 1, FAILED, key="same", kind=kind))
    assert [hour for hour, one in enumerate(said) if one] == [8]
    assert "so only ticks from 8:00 to 8:59 say this" in said[8]


def test_a_limit_shared_by_several_runs_is_reported_once(tmp_path: Path) -> None:
    now = datetime.now(UTC).timestamp()
    pause = {"kind": PAUSE, "shared": "usage limit of agent 'worker'"}

    def tells(run: str, days: float, about: str = "worker") -> bool:
        shared = {**pause, "shared": f"usage limit of agent '{about}'"}
        until = now + days * DAY_S
        return told(tmp_path / f"tick.{run}.log", 0, "limit", key=run, until=until, **shared) != ""

    assert [tells("one", 5), tells("two", 5), tells("one", 5)] == [True, False, False]
    # It has grown, or is another agent's, or another project's.
    assert [tells("three", 6), tells("two", 6)] == [True, False]
    assert tells("four", 5, "spare")
    # A short limit after a long one is another one.
    assert tells("five", 2)
    (tmp_path / "other").mkdir()
    assert tells("../other/tick", 5)


def test_a_full_disk_is_reported_though_no_new_file_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, full = tmp_path / "tick.log", raising(OSError(28, "No space left on device"))
    told(log, 0)
    monkeypatch.setattr(user_state, "write_atomically", full)
    monkeypatch.setattr(folders, "write_atomically", full)
    now, said = time.time(), []
    for hours in range(0, 30, 6):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + hours * 3_600)
        said.append(told(log, 75, "error: no room", key="full", kind=LASTING))
    assert [bool(one) for one in said] == [False, True, False, False, False]
    assert "once a day" not in said[1]
    # A file with another name is somebody else's, too.
    record = record_of(log)
    os.link(record, record.with_name("other"))
    kept = record.read_bytes()
    told(log, 1, FAILED)
    assert record.read_bytes() == kept


def raising(error: Exception) -> Callable[..., None]:
    """Return a function that fails with *error*."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_only_a_failure_with_no_tries_left_is_reported_in_full(
    tmp_path: Path,
) -> None:
    folder = project(tmp_path / "p", FAILS)
    assert tick(folder) == Called(1, "", "")
    assert logged(folder)[-2:] == ["  the next tick tries it again", "exit code 1"]
    said = tick(folder)
    assert said.code == 1
    assert said.err.startswith("error: step 'main' failed 2 times in a row")
    for part in (f"project: {folder}", "run: default", "no space left", "'sequencer retry'"):
        assert part in said.err
    assert tick(folder) == Called(3, "", "")


def test_the_same_failure_of_another_run_is_reported(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", FAILS.replace("row: 2", "row: 1"))
    assert tick(folder).err.startswith("error: ")
    assert tick(folder) == Called(3, "", "")
    shutil.rmtree(folder / "sync")
    assert tick(folder).err.startswith("error: ")


def test_a_pause_of_several_days_is_reported(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    assert tick(folder) == Called(0, "", "")
    date = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert call(folder, "set", f'not_before="{date}"').code == 0
    said = tick(folder).err
    assert "nothing starts before " in said
    assert "then it continues by itself" in said
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
    assert find_log_path(arguments) == log


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("prompts/main.md", "is not the log of a tick"),
        ("orchestration.yaml", "is not the log of a tick"),
        ("-", "is not a file"),
    ],
)
def test_a_file_that_is_no_log_gets_no_lines(
    tmp_path: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path / "p")
    monkeypatch.chdir(folder)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    refused = call(folder, "tick", "--log", name)
    assert (refused.code, refused.out, said in refused.err) == (2, "", True)
    # An idle tick knows what to say without the rest of the program.
    with pytest.raises(UsageRefused, match=said):
        repeat_answer(Path(name), "nothing is due\n", is_rest=False)
    assert files == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_empty_log_and_that_of_an_earlier_tick_are_continued(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    (folder / "logs").mkdir()
    (folder / "logs" / "tick.log").touch()
    lengths = [0]
    for _ in range(2):
        assert tick(folder).code == 0
        lengths.append(len(logged(folder)))
    assert 0 < lengths[1] < lengths[2]


def test_everything_a_tick_prints_is_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "tick.log"

    def work() -> tuple[int, TickNotice]:
        print("one\ntwo", flush=True)
        print("three", end="", file=sys.stderr, flush=True)
        print(" four", file=sys.stderr)
        print("five", end="")
        return 0, TickNotice()

    assert run_logged(log, work) == (0, "")
    assert capfd.readouterr() == ("", "")
    lines = [TIMED.sub("", line) for line in log.read_text().splitlines()]
    assert lines == ["one", "two", "three four", "five"]
