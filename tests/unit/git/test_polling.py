"""When a remote is asked; no clock of the system has a say but for the file of shared looks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.errors import RemoteUnreachable
from sequencer.git.waiting import PollPace, SharedLook


class Clock:
    """A clock and a die, both moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.chance = 0.5

    def pace(self, *, fast_s: float = 0.5, slow_s: float = 15.0) -> PollPace:
        return PollPace(
            "origin",
            fast_s=fast_s,
            slow_s=slow_s,
            clock=lambda: self.now,
            chance=lambda: self.chance,
        )

    def sleep(self, pace: PollPace) -> float:
        """Sleep until the next look is due; return how long that was."""
        slept = pace.due_in()
        self.now += slept
        assert pace.due_in() == pytest.approx(0.0, abs=1e-9)
        return round(slept, 3)


def gone(*, is_denied: bool = False) -> RemoteUnreachable:
    reason = "Authentication failed" if is_denied else "no route to host"
    message = f"remote 'origin' can't be reached: {reason}"
    return RemoteUnreachable(message, hint="mend it", is_denied=is_denied)


def test_at_rest_looks_become_rare() -> None:
    clock = Clock()
    pace, slept = clock.pace(), []
    for _ in range(11):
        assert pace.looked(has_moved=False) is None
        slept.append(clock.sleep(pace))
    assert slept[:4] == [0.75, 1.125, 1.688, 2.531]
    assert slept[-3:] == [15.0, 15.0, 15.0]


def test_activity_of_this_side_makes_them_frequent() -> None:
    clock = Clock()
    pace = clock.pace()
    for _ in range(12):
        pace.looked(has_moved=False)
    clock.now += 3.0
    pace.active()
    assert clock.sleep(pace) == 0.5
    # But never puts off one that comes sooner.
    pace.looked(has_moved=True)
    clock.now += 0.4
    pace.active()
    assert clock.sleep(pace) == 0.1


def test_with_a_watch_looks_are_the_safety_net() -> None:
    clock = Clock()
    pace = clock.pace()
    pace.is_notified = True
    pace.looked(has_moved=True)
    assert clock.sleep(pace) == 15.0
    pace.looked(has_moved=True)
    pace.active()
    assert clock.sleep(pace) == 15.0


def test_an_unreachable_remote_is_asked_ever_more_rarely() -> None:
    clock = Clock()
    pace, told, slept = clock.pace(), [], []
    for _ in range(9):
        told.append(pace.failed(gone()))
        slept.append(clock.sleep(pace))
    assert slept == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert told[4] == "remote 'origin' can't be reached: no route to host; next try in 16 s"
    assert all(told[:7])
    assert told[7:] == [None, None]


def test_denied_credentials_are_not_tried_again_and_again() -> None:
    clock = Clock()
    pace = clock.pace()
    assert pace.failed(gone(is_denied=True)) == (
        "remote 'origin' can't be reached: Authentication failed (mend it); next try in 60 s"
    )
    assert clock.sleep(pace) == 60.0
    assert pace.failed(gone(is_denied=True)) is None
    # Another reason is news, though the pause is no longer one.
    assert pace.failed(gone()) is not None
    assert pace.failed(gone()) is None


def test_activity_here_does_not_shorten_the_pause_of_an_unreachable_remote() -> None:
    clock = Clock()
    pace = clock.pace()
    for _ in range(5):
        pace.failed(gone())
    pace.active()
    assert clock.sleep(pace) == 16.0


def test_a_look_of_another_process_spares_ones_own() -> None:
    clock = Clock()
    pace = clock.pace()
    pace.looked(has_moved=True)
    assert pace.covers(0.39)
    assert not pace.covers(0.4)
    assert not pace.covers(-0.1)
    pace.looked(has_moved=False, ago_s=0.3)
    assert clock.sleep(pace) == round(0.75 - 0.3, 3)


# --- the file of shared looks ----------------------------------------------------------


def test_a_folder_that_is_not_there_spares_nothing_and_hurts_nobody(tmp_path: Path) -> None:
    look = SharedLook(tmp_path / "none" / "look")
    look.note()
    assert look.age_s() is None
    target = tmp_path / "target"
    target.write_text("x")
    os.utime(target, (1, 1))
    (tmp_path / "link").symlink_to(target)
    SharedLook(tmp_path / "link").note()
    assert target.stat().st_mtime == 1
