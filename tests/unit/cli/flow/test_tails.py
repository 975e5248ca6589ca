from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.cli.views.tails import read_last_outputs
from sequencer.engine.attempt import Attempt
from sequencer.engine.logs import StepLogs
from sequencer.model.head import Claim, Owner
from sequencer.model.outcome import Outcome, OutcomeStatus
from tests.unit import saying

OWNER = Owner(host="h", boot_id="b", pid_ns="n", pid=1, pid_start=1, nonce="x")


def claim(step: str = "build", *, token: int = 7, attempt: int = 1, index: int = 3) -> Claim:
    return Claim(
        token=token,
        step=step,
        step_index=index,
        attempt=attempt,
        owner=OWNER,
        claimed_at="2026-11-22T12:00:00Z",
        ttl_s=60,
    )


def logs(folder: Path) -> StepLogs:
    return StepLogs(folder / "logs", folder, warn=pytest.fail)


def attempt(folder: Path, held: Claim) -> Attempt:
    place = {name: getattr(held, name) for name in ("step_index", "token", "attempt")}
    paths = {"state_path": folder / "state.json", "result_path": folder / "result.json"}
    return saying.attempt(held.step, **place, **paths)


def written(folder: Path, held: Claim, data: bytes, *, is_over: bool = False) -> Path:
    """Write what the attempt of *held* says, as the engine does; return the folder of the logs."""
    made = logs(folder)
    log = made.open(attempt(folder, held))
    log.write(data)
    if is_over:
        log.close(Outcome(status=OutcomeStatus.OK))
    return made.folder


def last(held: Claim, folder: Path) -> str | None:
    found = read_last_outputs([held], [folder]).get(held.step)
    return found.last if found is not None else None


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\x1b]0;owned\x07safe\x1b[2J\n", "safe"),
        (b"10%\r50%\r100%", "100%"),
        (b"\xff\xfe bytes\n", "\ufffd\ufffd bytes"),
        ("pay\u202eoff\n".encode(), "payoff"),
        (b"x" * 5000, "x" * 200),
    ],
)
def test_any_output_becomes_one_safe_line(tmp_path: Path, data: bytes, line: str) -> None:
    assert last(claim(), written(tmp_path, claim(), data)) == line


def test_the_log_of_an_earlier_claim_is_a_different_file(tmp_path: Path) -> None:
    written(tmp_path, claim(token=2), b"from before\n", is_over=True)
    folder = written(tmp_path, claim(token=9), b"from now\n")
    assert sorted(path.name for path in folder.iterdir()) == [
        "iter-00004_build.2.log",
        "iter-00004_build.log",
    ]
    assert last(claim(token=9), folder) == "from now"
    assert last(claim(token=2), folder) is not None
    assert read_last_outputs([claim(token=29)], [folder]) == {}


def test_neither_a_link_nor_a_pipe_is_followed(tmp_path: Path) -> None:
    folder = written(tmp_path, claim("a"), b"secret\n")
    (folder / "iter-00004_b.log").symlink_to(folder / "iter-00004_a.log")
    os.mkfifo(folder / "iter-00004_c.log")
    assert read_last_outputs([claim("b"), claim("c")], [folder]) == {}


def test_the_closing_lines_of_a_log_are_not_agent_output(tmp_path: Path) -> None:
    folder = written(tmp_path, claim(), b"the last word\n", is_over=True)
    assert last(claim(), folder) == "the last word"
    silent = written(tmp_path, claim("quiet"), b"", is_over=True)
    assert read_last_outputs([claim("quiet")], [silent]) == {}
