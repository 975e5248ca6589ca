"""Nothing runs for ever by accident: limits of a step, an invocation and a run."""

from __future__ import annotations

import time

from tests.fundamentals.scratch import STANDARD, Project

PAID = 'echo \'{"usage": {"cost_usd": 0.4}}\' > "$SEQUENCER_RESULT"\n'


def test_a_run_stops_after_twenty_steps_by_default(project: Project) -> None:
    project.agent("exit 0")
    ran = project.sequencer("run")
    assert project.head()["step_index"] == 20
    assert "20 steps" in ran.err + ran.out


def test_max_cycles_limits_an_invocation(project: Project) -> None:
    project.sequencer("run", "--max-steps", "1")
    project.sequencer("run", "--max-cycles", "1")
    assert project.head()["step_index"] == 2, "to the end of the cycle that it began in"


def test_a_limit_of_the_run_survives_restarts(project: Project) -> None:
    project.configure(STANDARD + "limits: {max_steps: 3}\n")
    project.sequencer("run", "--max-steps", "2")
    project.sequencer("run", "--max-steps", "2")
    ran = project.sequencer("run", "--max-steps", "2")
    assert len(project.done()) == 3
    assert "limit of 3 steps" in ran.err + ran.out
    project.configure(STANDARD + "limits: {max_steps: 4}\n")
    project.sequencer("run")
    assert len(project.done()) == 4, "a raised limit is all that it needs"


def test_the_cost_of_the_run_is_counted_in_the_head(project: Project) -> None:
    project.configure(STANDARD + "limits: {max_cost_usd: 1}\n")
    project.agent(PAID)
    project.sequencer("run", "--max-steps", "2")
    project.sequencer("run")
    usage = project.head()["usage"]
    assert (usage["steps"], usage["cost_usd"]) == (3, 1.2)


def test_max_cost_limits_an_invocation(project: Project) -> None:
    project.agent(PAID)
    project.sequencer("run", "--max-cost", "0.7")
    project.sequencer("run", "--max-cost", "0.3")
    assert project.head()["usage"]["steps"] == 3


def test_a_failed_attempt_costs_too(project: Project) -> None:
    project.agent(PAID + "exit 1")
    project.sequencer("run", code=1)
    usage = project.head()["usage"]
    assert (usage["steps"], usage["cost_usd"]) == (0, 0.4)


def test_a_step_that_takes_too_long_is_ended_and_fails(project: Project) -> None:
    project.agent('sleep 60 & echo $! > child.pid; echo "$SEQUENCER_STEP"; wait')
    began = time.monotonic()
    ran = project.sequencer("run", "--step-timeout", "0.5", code=1)
    assert time.monotonic() - began < 15
    assert "0.5 s" in ran.err
    assert project.head()["status"] == "failed"


def test_a_step_silent_for_too_long_fails(project: Project) -> None:
    project.configure(STANDARD + "step_defaults: {idle_timeout_s: 0.5}\n")
    project.agent("echo beginning; sleep 60")
    project.sequencer("run", code=1)
    assert project.head()["failures_in_row"] == 1


def test_retries_are_limited(project: Project) -> None:
    project.configure(
        STANDARD + "step_defaults: {retry: {max_attempts: 3}}\nlimits: {max_failures_in_row: 5}\n"
    )
    project.agent('echo "$SEQUENCER_ATTEMPT" >> done.txt; exit 1')
    project.sequencer("run", code=1)
    assert project.done() == ["1", "2", "3"]


def test_the_run_continues_after_a_successful_retry(project: Project) -> None:
    project.configure(STANDARD + "step_defaults: {retry: {max_attempts: 3}}\n")
    project.agent('echo "$SEQUENCER_STEP" >> done.txt; test "$SEQUENCER_ATTEMPT" -ge 2')
    project.sequencer("run", "--max-steps", "2")
    assert project.done() == ["supervisor", "supervisor", "main", "main"]
    assert project.head()["failures_in_row"] == 0
