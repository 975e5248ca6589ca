"""The campaigns of faults of runs on Temporal, in their short form; and a look at the checks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from tests.fleet.recorded import Noted, wrong_attempts
from tests.git.machines import impossible
from tests.long.__main__ import in_own_process
from tests.long.report import Size

CAMPAIGNS = {
    "T-chance": "kills",
    "T-secrets": "secrets",
    "T-hung-agents": "hung agents",
    "T-long-run": "steps",
    "T-workers": "kills",
    "T-freezes": "freezes",
    "T-servers": "kills",
    "T-unknown": "commands",
}
pytestmark = pytest.mark.timeout(240)


@pytest.mark.fleet
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_is_lost_or_doubled(name: str, tmp_path: Path) -> None:
    report = in_own_process(name, Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    assert report["counts"][CAMPAIGNS[name]] >= 1


@pytest.mark.fleet
@pytest.mark.skipif(impossible() is not None, reason=impossible() or "")
def test_runs_survive_a_cable_pulled_and_plugged_back_in(tmp_path: Path) -> None:
    report = in_own_process("T-cables", Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    assert report["counts"] == {"cuts": 2}


# --- checks of the check ------------------------------------------------------------------


def noted(what: str, token: int, place: int = 0, at: float = 0.0) -> Noted:
    return Noted(what, at, "main", place, token, 1, "run")


def fact(event: str, token: int, revision: int, index: int = 0) -> dict[str, object]:
    return {
        "event": event, "token": token, "revision": revision, "step": "main", "step_index": index,
    }  # fmt: skip


RIGHT = (
    [noted("start", 1), noted("end", 1)],
    [fact("claimed", 1, 1), fact("succeeded", 1, 2)],
)


def test_correct_attempts_are_not_reported() -> None:
    assert wrong_attempts(*RIGHT) == []


@pytest.mark.parametrize(
    ("more", "facts", "words"),
    [
        ([], [fact("succeeded", 1, 3)], "accepted 2 times"),
        ([], [fact("claimed", 2, 3), fact("succeeded", 2, 4)], "0 starts, 0 ends"),
        ([noted("start", 1)], [], "has 2 agents"),
        ([noted("start", 2)], [], "was never claimed"),
        ([], [fact("claimed", 1, 3)], "was claimed 2 times"),
        ([], [fact("paused", 0, 4)], "revisions"),
        (
            [noted("start", 2, 5), noted("end", 2, 5)],
            [fact("claimed", 2, 3), fact("succeeded", 2, 4)],
            "its agent was at",
        ),
    ],
)
def test_wrong_attempts_are_reported(
    more: list[Noted], facts: list[dict[str, object]], words: str
) -> None:
    wrong = wrong_attempts([*RIGHT[0], *more], [*RIGHT[1], *facts])
    assert words in "; ".join(wrong)
