"""SIGKILL between a post and its cursor: nothing is lost, and what comes twice has one key."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.posting.desk import Desk, open_desk
from tests.unit.posting.runs import Box as AnyBox
from tests.unit.posting.runs import begin, lane_for, new_store, succeed

SCRIPT = Path(__file__).parent / "killed.py"
RESULTS = [f"result {number}" for number in range(4)]
KEYS = [f"run-1:{revision}:0" for revision in range(2, 6)]


def process(folder: Path, desk: Desk, moment: str) -> int:
    command = [sys.executable, str(SCRIPT), str(folder), desk.url, moment]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stderr == ""
    return ran.returncode


def owe(folder: Path) -> None:
    """Make a run with four results behind the cursor of the sink."""
    store = begin(new_store(folder))
    lane_for(store, AnyBox("hook"))
    for text in RESULTS:
        succeed(store, text)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("moment", "times"),
    [
        ("before-post", [1, 1, 1, 1]),
        ("after-post", [2, 1, 1, 1]),
        ("after-cursor", [1, 1, 1, 1]),
    ],
)
def test_after_a_kill_every_result_is_posted(tmp_path: Path, moment: str, times: list[int]) -> None:
    owe(tmp_path)
    with open_desk() as desk:
        assert process(tmp_path, desk, moment) == -signal.SIGKILL
        assert process(tmp_path, desk, "never") == 0
        keys = [seen.headers["idempotency-key"] for seen in desk.seen]
    assert list(dict.fromkeys(keys)) == KEYS
    assert [Counter(keys)[key] for key in KEYS] == times
