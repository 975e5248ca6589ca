from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.executors.protocol import Cancellation
from sequencer.executors.stand_ins import wait_like_an_agent
from sequencer.model.outcome import OutcomeStatus
from tests.contract.executor_cases import request_for


@pytest.mark.parametrize(
    ("limits", "said", "key"),
    [
        ({"timeout_s": 0.1}, "timed out after 0.1 s", "timeout_s"),
        ({"idle_timeout_s": 0.1}, "no progress for 0.1 s", "idle_timeout_s"),
        ({"timeout_s": 5, "idle_timeout_s": 0.1}, "no progress for 0.1 s", "idle_timeout_s"),
        ({"timeout_s": 0.1, "idle_timeout_s": 5}, "timed out after 0.1 s", "timeout_s"),
    ],
)
def test_the_first_limit_ends_it(
    tmp_path: Path, limits: dict[str, float], said: str, key: str
) -> None:
    cancellation = Cancellation()
    outcome = wait_like_an_agent(30, request_for(tmp_path, **limits), cancellation)
    cancellation.close()
    assert outcome is not None
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert outcome.error.startswith(said)
    assert f"raise {key} of step 'main'" in outcome.error
    assert outcome.is_timed_out is (key == "timeout_s")
    assert 0.1 <= outcome.usage.seconds < 5
