"""What every executor reports of an attempt: the evidence on which the engine judges it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sequencer import Cancellation, Outcome
from tests.contract.client_cases import CLIENT_CASES
from tests.contract.executor_cases import (
    CASES,
    Behaviour,
    ExecutorCase,
    Recorder,
    request_for,
)

ALL_CASES = [*CASES, *CLIENT_CASES]
SCRIPTED = next(case for case in CASES if case.name == "scripted")
"""Its evidence is what other executors' is compared with."""


def attempt(
    case: ExecutorCase,
    behaviour: Behaviour,
    folder: Path,
    heard: Recorder,
    timeout_s: float | None = None,
) -> Outcome:
    """Return the outcome of one attempt; *heard* gets what the agent prints."""
    folder.mkdir(exist_ok=True)
    request = request_for(folder, timeout_s=timeout_s)
    with case.build(behaviour, folder) as executor, closing(Cancellation()) as cancellation:
        return executor.perform(request, heard, cancellation)


def digest_of(answer: str, folder: Path) -> str | None:
    """Return the digest in the evidence of an agent that gives this *answer*."""
    shown = attempt(SCRIPTED, Behaviour(answer=answer), folder, Recorder()).evidence
    assert shown is not None
    return shown.answer


@pytest.mark.parametrize("case", ALL_CASES, ids=[case.name for case in ALL_CASES])
def test_every_executor_shows_what_its_agent_did(case: ExecutorCase, tmp_path: Path) -> None:
    behaviour = Behaviour(answer="It is done.", leaves=str(tmp_path) if case.has_process else None)
    heard = Recorder()
    outcome = attempt(case, behaviour, tmp_path, heard)
    shown = outcome.evidence
    assert shown is not None
    assert (shown.turn_end, shown.has_text, shown.open_calls) == ("clean", True, 0)
    assert shown.answer == digest_of(outcome.output, tmp_path / "same")
    if case.has_agent:
        assert shown.answer == digest_of("It is done.", tmp_path / "known"), (
            "equal answers have equal digests"
        )
    assert shown.answer != digest_of("It is not done.", tmp_path / "other")
    assert shown.ended_processes == int(case.has_process)
    assert ("had left running" in heard.text()) is case.has_process
    assert outcome.is_accepted


AGENTS = [case for case in ALL_CASES if case.has_agent and case.name != "scripted"]


@pytest.mark.parametrize("case", AGENTS, ids=[case.name for case in AGENTS])
def test_an_agent_that_was_stopped_was_cut_off(case: ExecutorCase, tmp_path: Path) -> None:
    outcome = attempt(case, Behaviour(delay_s=60), tmp_path, Recorder(), timeout_s=0.5)
    assert outcome.is_timed_out
    assert outcome.evidence is not None
    assert outcome.evidence.turn_end == "cut-off"
