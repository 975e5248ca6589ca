"""The process core and its composition with a client's parser."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.errors import StorageFailed
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.client import LineSplitter, perform_process
from sequencer.executors.client_events import JsonEventParser, get_number, split_mark
from sequencer.executors.command import Pattern, VariableName, VariableValue
from sequencer.executors.launch import EVERY_AGENT, Launch
from sequencer.executors.process import ProcessCore, ProcessEnd, build_launch, describe_exit
from sequencer.executors.protocol import Listener, Piece
from sequencer.frozen.base import validate_value
from sequencer.frozen.fields import ValidationError
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from tests.contract.executor_cases import Recorder, request_for, wait_until

ENVIRONMENT = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@dataclass
class Parser:
    """Believes every line; says success whatever happened, which must not be enough."""

    lines: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)
    skipped: int = 0
    end: ProcessEnd | None = None
    refused: str | None = None

    def feed_line(self, line: bytes, listener: Listener) -> bool:
        self.lines.append(line)
        listener.write(line + b"\n", Piece.RESPONSE)
        return not line.startswith(b"heartbeat")

    def skip(self) -> None:
        self.skipped += 1

    def feed_stderr(self, line: bytes) -> None:
        self.errors.append(line)

    def finish(self, end: ProcessEnd) -> Outcome:
        self.end = end
        usage = Usage(input_tokens=len(self.lines))
        return Outcome(status=OutcomeStatus.OK, output="parsed", usage=usage, session_id="s1")

    def done(self, end: ProcessEnd) -> Outcome:
        return self.finish(end).replace(output="done")


@dataclass
class Stage:
    core: ProcessCore
    folder: Path
    parser: Parser = field(default_factory=Parser)
    recorder: Recorder = field(default_factory=Recorder)
    cancellation: Cancellation = field(default_factory=Cancellation)

    def perform(self, *argv: str, **update: Any) -> Outcome:
        hint = update.pop("install_hint", "")
        request = request_for(self.folder, **update)
        return perform_process(
            self.core,
            build_launch(argv, ENVIRONMENT, request, hint=hint, grace_s=1),
            request,
            self.recorder,
            self.cancellation,
            cast("JsonEventParser", self.parser),
        )

    def python(self, script: str, *arguments: str, **update: Any) -> Outcome:
        return self.perform(sys.executable, "-c", script, *arguments, **update)

    @property
    def end(self) -> ProcessEnd:
        assert self.parser.end is not None
        return self.parser.end


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ProcessCore() as core:
        stage = Stage(core, tmp_path)
        yield stage
        stage.cancellation.close()


def test_a_line_above_the_cap_is_passed_on_unparsed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sequencer.executors.client.LINE_CAP", 1000)
    stage.python("print('a' * 5000); print('b')")
    assert stage.parser.lines == [b"b"]
    assert stage.recorder.text(Piece.OUTPUT) == "a" * 5000 + "\n"
    assert stage.parser.skipped, "the event that it was is missing"


@pytest.mark.parametrize("code", [1, 3, 42, 144, 255])
def test_no_parser_turns_a_failed_process_into_a_success(stage: Stage, code: int) -> None:
    outcome = stage.perform("sh", "-c", f"echo why >&2; exit {code}")
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.exit_code == code
    assert outcome.error is not None
    assert outcome.error.endswith("why")


def test_death_by_a_signal_is_a_failure_that_names_it(stage: Stage) -> None:
    outcome = stage.perform("sh", "-c", "kill -SEGV $$")
    assert (outcome.status, outcome.exit_code) == (OutcomeStatus.FAILED, -signal.SIGSEGV)
    assert outcome.error == "it was ended by SIGSEGV"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "exit code 1"),
        (137, "exit code 137 (128 + SIGKILL; often because memory ran out)"),
        (143, "exit code 143 (128 + SIGTERM)"),
        (255, "exit code 255"),
        (-9, "it was ended by SIGKILL; often because memory ran out"),
        (-34, "it was ended by SIGRTMIN"),
        (None, "it left no exit code"),
    ],
)
def test_exit_codes_are_described_in_words(code: int | None, said: str) -> None:
    assert describe_exit(ProcessEnd(exit_code=code)) == said


def test_only_the_end_of_stderr_is_kept(stage: Stage) -> None:
    stage.python("import sys; sys.stderr.write('x' * 500_000 + 'the end')")
    assert len(stage.end.stderr_tail) == 4096
    assert stage.end.stderr_tail.endswith("the end")


@pytest.mark.parametrize(
    ("content", "mode", "error"),
    [
        ("#!/bin/sh\n", 0o644, ("not executable", OutcomeStatus.FAILED)),
        ("#!/no/such/interpreter\n", 0o755, ("interpreter", OutcomeStatus.UNAVAILABLE)),
        ("echo without a first line\n", 0o755, ("#! line", OutcomeStatus.FAILED)),
        (None, 0, ("no such file", OutcomeStatus.UNAVAILABLE)),
    ],
)
def test_each_reason_a_program_cannot_run_has_its_message_and_status(
    stage: Stage, tmp_path: Path, content: str | None, mode: int, error: tuple[str, OutcomeStatus]
) -> None:
    program, (said, status) = tmp_path / "agent", error
    if content is not None:
        program.write_text(content)
        program.chmod(mode)
    outcome = stage.perform(str(program))
    assert outcome.status is status
    assert outcome.error is not None
    assert said in outcome.error


def test_a_missing_folder_is_not_taken_for_a_missing_program(stage: Stage, tmp_path: Path) -> None:
    outcome = stage.perform("true", cwd=tmp_path / "gone")
    assert outcome.error == f"can't work in the folder '{tmp_path / 'gone'}': " + os.strerror(2)


def test_an_argument_list_that_is_too_long_is_a_failure(stage: Stage) -> None:
    outcome = stage.perform("echo", "x" * 300_000)
    assert outcome.error is not None
    assert "too long" in outcome.error


def test_a_nul_in_an_argument_is_a_failure(stage: Stage) -> None:
    outcome = stage.perform("echo", "a\0b")
    assert outcome.error is not None
    assert "NUL" in outcome.error


@pytest.mark.parametrize("said", ["echo heartbeat", "echo warning >&2"])
def test_output_without_progress_does_not_restart_the_idle_clock(stage: Stage, said: str) -> None:
    script = f"while :; do {said}; sleep 0.05; done"
    outcome = stage.perform("sh", "-c", script, idle_timeout_s=0.5, timeout_s=20)
    assert outcome.status is OutcomeStatus.FAILED
    assert stage.end.ended_by == "idle"


@pytest.mark.parametrize("limit_s", [2_147_484, 1e10, 1e308])
@pytest.mark.parametrize("name", ["timeout_s", "idle_timeout_s"])
def test_a_limit_that_the_system_cannot_wait_for_lets_the_agent_finish(
    stage: Stage, name: str, limit_s: float
) -> None:
    assert stage.perform("sh", "-c", "sleep 0.1", **{name: limit_s}).status is OutcomeStatus.OK


def test_an_event_of_megabytes_is_progress_while_it_comes(stage: Stage) -> None:
    script = (
        "import sys, time\n"
        "for _ in range(7):\n"
        "    sys.stdout.write('x' * 1024 * 1024); sys.stdout.flush()\n"
        "for _ in range(6):\n"
        "    sys.stdout.write('x'); sys.stdout.flush(); time.sleep(0.6)\n"
    )
    # All of it takes longer than the agent may be silent; to start Python may take a second.
    assert stage.python(script, idle_timeout_s=3).status is OutcomeStatus.OK


def test_a_shutdown_that_reaches_the_guard_first_is_an_interruption(stage: Stage) -> None:
    stage.core.prepare()
    assert stage.core._spare is not None
    guard = stage.core._spare.pid

    def shut_down() -> None:
        wait_until(lambda: stage.parser.lines, 10)
        os.kill(guard, signal.SIGTERM)

    thread = threading.Thread(target=shut_down)
    thread.start()
    outcome = stage.perform("sh", "-c", "echo up; sleep 60")
    thread.join()
    assert outcome.status is OutcomeStatus.INTERRUPTED


@pytest.mark.parametrize("reason", list(StopReason))
def test_an_interruption_states_its_reason_and_overrides_the_result_file(
    stage: Stage, reason: StopReason, tmp_path: Path
) -> None:
    result = json.dumps({"status": "complete"})

    def interrupt() -> None:
        wait_until(lambda: stage.parser.lines, 30)
        stage.cancellation.set(reason)

    thread = threading.Thread(target=interrupt)
    thread.start()
    write = f"mkdir results; echo '{result}' > results/result.json"
    outcome = stage.perform("sh", "-c", f"{write}; echo written; sleep 60")
    thread.join()
    assert json.loads((tmp_path / "results" / "result.json").read_text()) == json.loads(result)
    assert outcome.status is OutcomeStatus.INTERRUPTED
    assert outcome.error == f"stopped: {reason}"


def test_a_spare_guard_is_used_once_and_replaced_when_it_died(stage: Stage) -> None:
    stage.core.prepare()
    first = stage.core._spare
    assert first is not None
    stage.core.prepare()
    assert stage.core._spare is first
    os.kill(first.pid, signal.SIGKILL)
    assert wait_until(lambda: not first.is_alive, 5)
    assert stage.perform("true").status is OutcomeStatus.OK
    assert stage.core._spare is None
    stage.core.prepare()
    assert stage.core._spare is not first


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors have paths of their own")
@pytest.mark.parametrize("fd", [0, 1])
def test_an_agent_cannot_impersonate_its_guard_or_write_to_it(stage: Stage, fd: int) -> None:
    word = '{"event": "ended", "exit_code": 0, "stopped_by": null, "survivors": 0}'
    outcome = stage.perform("sh", "-c", f"echo '{word}' > /proc/$PPID/fd/{fd} && sleep 60; exit 7")
    assert (outcome.status, outcome.exit_code) == (OutcomeStatus.FAILED, 7)


STARTED = '{"event": "started", "pid": 1, "is_walled": true}'
ENDED = '{"event": "ended", "exit_code": 0, "stopped_by": null, "survivors": 0}'
REFUSED = '{"event": "refused", "errno": 2, "stage": "program"}'


@pytest.mark.parametrize(
    "words",
    [
        ["x"],
        ["{}"],
        [ENDED],
        [STARTED, STARTED],
        [STARTED, REFUSED],
        [STARTED, ENDED.replace("0,", "1.5,")],
        [STARTED.replace("true", "1")],
        [REFUSED.replace("2", "9" * 5000)],
        [REFUSED.replace("2", "99999999999999999999")],
    ],
)
def test_an_unknown_guard_report_counts_as_a_lost_guard(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    program = tmp_path / "guard.py"
    said = "".join(f"{word}\n" for word in words)
    # It leaves when its sequencer does, as a guard would.
    program.write_text(f"import os\nos.write(1, {said!r}.encode())\nwhile os.read(0, 9999): pass\n")
    monkeypatch.setattr("sequencer.executors.guard_process._PROGRAM", program)
    monkeypatch.setattr("sequencer.executors.pump._DRAIN_S", 0.0)
    outcome = stage.perform("true", timeout_s=20)
    assert (outcome.status, outcome.exit_code) == (OutcomeStatus.FAILED, None)
    assert outcome.usage.input_tokens == len(stage.parser.lines), "what it used is kept"
    assert outcome.error is not None
    assert outcome.error.startswith("the guard process of the agent was killed")


def test_a_guard_the_system_refuses_to_start_does_not_fail_the_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    stage.core.prepare()
    with pytest.raises(StorageFailed, match="can't start a guard process"):
        stage.perform("true")


def test_a_launch_has_defaults_for_its_limits() -> None:
    launch = Launch(identity=None, argv=["x"], environment={}, cwd=Path("/"), prompt=b"")
    assert (launch.timeout_s, launch.idle_timeout_s, launch.grace_s) == (None, None, 5.0)


@given(st.lists(st.binary(max_size=12)), st.integers(min_value=1, max_value=8))
def test_no_byte_is_lost_or_doubled(pieces: list[bytes], cap: int) -> None:
    order: list[bytes] = []
    splitter = LineSplitter(lambda line: order.append(line + b"\n"), order.append, cap)
    for piece in pieces:
        splitter.feed(piece)
    splitter.finish()
    assert b"".join(order).rstrip(b"\n") == b"".join(pieces).rstrip(b"\n")


# --- the flag that ends a step: for who looks, who waits, and who polls a descriptor ----------


def is_readable(cancellation: Cancellation) -> bool:
    return bool(select.select([cancellation], [], [], 0)[0])


def test_a_descriptor_requested_after_cancellation_is_readable() -> None:
    cancellation = Cancellation()
    cancellation.set(StopReason.CLAIM_LOST)
    assert is_readable(cancellation)
    cancellation.close()


@pytest.mark.parametrize("limit_s", [None, 2_147_484, 1e10, 1e308])
def test_a_flag_ends_a_wait_of_any_length(limit_s: float | None) -> None:
    cancellation = Cancellation()
    timer = threading.Timer(0.05, cancellation.set, [StopReason.INTERRUPTED])
    timer.start()
    assert cancellation.wait(limit_s)
    timer.join()
    cancellation.close()


def test_a_wait_for_a_flag_lasts_as_long_as_it_was_asked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sequencer.store.watch.LONGEST_POLL_S", 0.01)
    cancellation, started = Cancellation(), time.monotonic()
    assert not cancellation.wait(0.1)
    assert time.monotonic() - started >= 0.1
    cancellation.close()


def test_no_secret_is_passed_to_every_agent() -> None:
    assert not [name for name in EVERY_AGENT if "KEY" in name or "TOKEN" in name]


@pytest.mark.parametrize("text", ["CI", "_X", "ANTHROPIC_*", "A1*"])
def test_valid_patterns_are_allowed(text: str) -> None:
    assert validate_value(Pattern, text) == text


@pytest.mark.parametrize("text", ["", "*", "A*B", "1A", "A-B", "A=b", "A\nB", "*_KEY"])
def test_invalid_patterns_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        validate_value(Pattern, text)


@pytest.mark.parametrize("text", ["", "A=B", "A B", "1", "A\n", "A\0"])
def test_invalid_variable_names_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        validate_value(VariableName, text)


def test_a_value_holds_anything_but_nul() -> None:
    assert validate_value(VariableValue, "a\n=b") == "a\n=b"
    with pytest.raises(ValidationError):
        validate_value(VariableValue, "a\0b")


# --- session ids with facts: written, read back, and never trusted ----------------------------


@pytest.mark.parametrize("mark", ["", "--yolo", "-x", "a b", "a/../b", "a\n", ";cost_usd=1", "é"])
def test_a_mark_no_client_would_issue_never_becomes_an_argument(mark: str) -> None:
    with pytest.raises(ValueError, match="is not a session id"):
        split_mark(mark)


@pytest.mark.parametrize(
    "value", ["-1", "x", "1e999x", "nan-", "nan", "inf", "1e300", "1e999", "9" * 5000]
)
def test_facts_that_were_tampered_with_count_as_nothing(value: str) -> None:
    assert get_number({"cost_usd": value}, "cost_usd") == 0
