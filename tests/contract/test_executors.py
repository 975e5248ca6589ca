"""What the engine relies on, shown for every executor."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from sequencer import Cancellation, Executor, OutcomeStatus, Step, StopReason, Usage
from tests.contract.client_cases import CLIENT_CASES
from tests.contract.executor_cases import (
    CASES,
    IDENTITY,
    Behaviour,
    ExecutorCase,
    Recorder,
    marked_processes,
    request_for,
    wait_until,
)


class Stage:
    """One executor case in a folder of its own."""

    def __init__(self, case: ExecutorCase, folder: Path, stack: ExitStack) -> None:
        self.case = case
        self.folder = folder
        self.recorder = Recorder()
        self.cancellation = Cancellation()
        self._stack = stack
        stack.callback(self.cancellation.close)

    def executor(self, **behaviour: object) -> Executor:
        plan = Behaviour(**behaviour)  # type: ignore[arg-type]
        return self._stack.enter_context(self.case.build(plan, self.folder))


def staged(request: pytest.FixtureRequest, folder: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(request.param, folder, stack)


ALL_CASES = [*CASES, *CLIENT_CASES]
AGENT_CASES = [case for case in ALL_CASES if case.has_agent]
PROCESS_CASES = [case for case in ALL_CASES if case.has_process]
DELAY_S = 60
"""How long an agent takes that something has to end before; how soon depends on the machine."""


@pytest.fixture(params=ALL_CASES, ids=[case.name for case in ALL_CASES])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    yield from staged(request, tmp_path)


@pytest.fixture(params=AGENT_CASES, ids=[case.name for case in AGENT_CASES])
def agent_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    yield from staged(request, tmp_path)


@pytest.fixture(params=PROCESS_CASES, ids=[case.name for case in PROCESS_CASES])
def process_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    yield from staged(request, tmp_path)


def test_it_is_an_executor_that_has_what_it_needs(stage: Stage) -> None:
    executor = stage.executor()
    assert isinstance(executor, Executor)
    assert executor.kind == stage.case.name
    assert executor.problems() == []
    assert executor.supported_fields <= set(Step.model_fields)


def test_success_gives_the_final_answer_and_shows_it(stage: Stage) -> None:
    outcome = stage.executor(answer="It is done.").perform(
        request_for(stage.folder), stage.recorder, stage.cancellation
    )
    assert outcome.status is OutcomeStatus.OK
    assert outcome.error is None
    assert stage.recorder.pieces
    if stage.case.has_agent:
        assert outcome.output == "It is done."
        assert "It is done." in stage.recorder.text()


def test_failure_is_an_outcome_with_a_reason(agent_stage: Stage) -> None:
    outcome = agent_stage.executor(fails=True).perform(
        request_for(agent_stage.folder), agent_stage.recorder, agent_stage.cancellation
    )
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error
    assert not outcome.is_accepted


@pytest.mark.parametrize("reason", list(StopReason))
def test_a_cancelled_attempt_ends_soon_as_interrupted(stage: Stage, reason: StopReason) -> None:
    executor = stage.executor(delay_s=DELAY_S)
    timer = threading.Timer(0.3, stage.cancellation.set, [reason])
    timer.start()
    started = time.monotonic()
    outcome = executor.perform(request_for(stage.folder), stage.recorder, stage.cancellation)
    timer.join()
    assert outcome.status is OutcomeStatus.INTERRUPTED
    assert time.monotonic() - started < DELAY_S


def test_an_attempt_cancelled_before_it_starts_runs_nothing(stage: Stage) -> None:
    stage.cancellation.set(StopReason.CLAIM_LOST)
    outcome = stage.executor().perform(
        request_for(stage.folder), stage.recorder, stage.cancellation
    )
    assert outcome.status is OutcomeStatus.INTERRUPTED
    assert not (stage.folder / "prompt").exists()


def test_the_steps_time_limit_fails_the_attempt(stage: Stage) -> None:
    executor = stage.executor(delay_s=DELAY_S)
    started = time.monotonic()
    outcome = executor.perform(
        request_for(stage.folder, timeout_s=0.5), stage.recorder, stage.cancellation
    )
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "timed out after 0.5 s" in outcome.error
    assert 0.5 <= time.monotonic() - started < DELAY_S


def test_silence_for_too_long_fails_the_attempt(stage: Stage) -> None:
    outcome = stage.executor(delay_s=DELAY_S).perform(
        request_for(stage.folder, idle_timeout_s=0.5), stage.recorder, stage.cancellation
    )
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "no progress for 0.5 s" in outcome.error


def test_output_comes_in_order(agent_stage: Stage) -> None:
    lines = [f"line {number}" for number in range(300)]
    agent_stage.executor(answer="\n".join(lines)).perform(
        request_for(agent_stage.folder), agent_stage.recorder, agent_stage.cancellation
    )
    assert [
        line for line in agent_stage.recorder.text().splitlines() if line in set(lines)
    ] == lines


def test_usage_covers_only_one_attempt(stage: Stage) -> None:
    executor = stage.executor(delay_s=0.05)
    first, second = (
        executor.perform(request_for(stage.folder), stage.recorder, stage.cancellation).usage
        for _ in range(2)
    )
    assert first != Usage()
    assert second.input_tokens == first.input_tokens
    assert second.cost_usd == first.cost_usd
    assert all(usage.cost_usd <= first.cost_usd for usage in stage.recorder.usages)


def test_a_long_prompt_reaches_the_agent_whole(stage: Stage) -> None:
    prompt = "Zeile ü\n" * 34_000
    outcome = stage.executor().perform(
        request_for(stage.folder, prompt=prompt), stage.recorder, stage.cancellation
    )
    assert outcome.status is OutcomeStatus.OK
    if stage.case.has_process:
        assert (stage.folder / "prompt").read_text() == prompt
        assert b"Zeile" not in (stage.folder / "cmdline").read_bytes()


@pytest.mark.parametrize(
    ("fails", "said", "status"),
    [
        (False, "ok", OutcomeStatus.OK),
        (False, "complete", OutcomeStatus.COMPLETE),
        (False, "failed", OutcomeStatus.FAILED),
        (True, "ok", OutcomeStatus.FAILED),
        (True, "complete", OutcomeStatus.FAILED),
    ],
)
def test_the_result_file_decides_unless_the_process_failed(
    process_stage: Stage, fails: bool, said: str, status: OutcomeStatus
) -> None:
    result = {"status": said, "output": "from the file", "usage": {"cost_usd": 1.5}}
    outcome = process_stage.executor(fails=fails, result=result).perform(
        request_for(process_stage.folder), process_stage.recorder, process_stage.cancellation
    )
    assert (outcome.status, outcome.output) == (status, "from the file")
    assert outcome.usage.cost_usd == 1.5


def test_a_result_file_with_an_unknown_status_fails_the_step(process_stage: Stage) -> None:
    outcome = process_stage.executor(result={"status": "fine"}).perform(
        request_for(process_stage.folder), process_stage.recorder, process_stage.cancellation
    )
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "status" in outcome.error


def test_the_agent_knows_which_step_it_is(
    process_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNRELATED_SERVICE_KEY", "not yours")
    monkeypatch.setenv("SEQUENCER_TOKEN", "an outer run's")
    process_stage.executor().perform(
        request_for(process_stage.folder), process_stage.recorder, process_stage.cancellation
    )
    environment = json.loads((process_stage.folder / "environ.json").read_text())
    identity = replace(IDENTITY, result_path=process_stage.folder / "results" / "result.json")
    assert identity.variables().items() <= environment.items()
    assert "UNRELATED_SERVICE_KEY" not in environment


@pytest.mark.parametrize("fails", [False, True])
def test_processes_the_agent_started_are_ended(process_stage: Stage, fails: bool) -> None:
    mark = f"left-{uuid.uuid4()}"
    process_stage.executor(leaves=mark, fails=fails).perform(
        request_for(process_stage.folder), process_stage.recorder, process_stage.cancellation
    )
    assert marked_processes(mark) == []


def test_processes_of_a_cancelled_attempt_are_ended(process_stage: Stage) -> None:
    mark = f"left-{uuid.uuid4()}"
    executor = process_stage.executor(leaves=mark, delay_s=DELAY_S)
    answered = process_stage.folder / "answered"

    def stop_when_started() -> None:
        wait_until(answered.exists, 20)
        assert marked_processes(mark)
        process_stage.cancellation.set(StopReason.INTERRUPTED)

    thread = threading.Thread(target=stop_when_started)
    thread.start()
    executor.perform(
        request_for(process_stage.folder), process_stage.recorder, process_stage.cancellation
    )
    thread.join()
    assert answered.exists()
    assert marked_processes(mark) == []
