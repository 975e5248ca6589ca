"""When a remote is asked, and waiting for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.errors import ClaimHeld, CorruptState, RemoteUnreachable
from sequencer.model.head import Claim
from sequencer.plugins.git.process import Git
from sequencer.plugins.git.state import waiting as polling
from sequencer.plugins.git.state.remote import RefWatch, Remote, remote_folder
from sequencer.plugins.git.state.waiting import PollPace, SharedPollTime, SharedWait
from sequencer.project.store_requests import EVERYTHING
from sequencer.store import identity
from sequencer.store.file import FileStore
from tests.clones import Shared
from tests.contract import store_cases as cases
from tests.unit.git import remotes
from tests.unit.git.remotes import STATE


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
        slept = pace.seconds_until_due()
        self.now += slept
        assert pace.seconds_until_due() == pytest.approx(0.0, abs=1e-9)
        return round(slept, 3)


def gone(*, is_denied: bool = False) -> RemoteUnreachable:
    reason = "Authentication failed" if is_denied else "no route to host"
    message = f"remote 'origin' can't be reached: {reason}"
    return RemoteUnreachable(message, hint="mend it", is_denied=is_denied)


def test_denied_credentials_are_not_retried_in_quick_succession() -> None:
    clock = Clock()
    pace = clock.pace()
    assert pace.record_failure(gone(is_denied=True)) == (
        "remote 'origin' can't be reached: Authentication failed (mend it); next try in 60 s"
    )
    assert clock.sleep(pace) == 60.0
    assert pace.record_failure(gone(is_denied=True)) is None
    # Another reason is news, though the pause is no longer one.
    assert pace.record_failure(gone()) is not None
    assert pace.record_failure(gone()) is None


def test_activity_here_does_not_shorten_the_pause_of_an_unreachable_remote() -> None:
    clock = Clock()
    pace = clock.pace()
    for _ in range(5):
        pace.record_failure(gone())
    pace.schedule_soon()
    assert clock.sleep(pace) == 16.0


def test_a_recent_look_by_another_process_is_shared() -> None:
    clock = Clock()
    pace = clock.pace()
    pace.record_success(has_moved=True)
    assert pace.is_recent_enough(0.39)
    assert not pace.is_recent_enough(0.4)
    assert not pace.is_recent_enough(-0.1)
    pace.record_success(has_moved=False, ago_s=0.3)
    assert clock.sleep(pace) == round(0.75 - 0.3, 3)


# --- the file of shared looks ----------------------------------------------------------


def test_a_missing_folder_shares_no_look_and_does_no_harm(tmp_path: Path) -> None:
    look = SharedPollTime(tmp_path / "none" / "look")
    look.record_look()
    assert look.age_s() is None
    target = tmp_path / "target"
    target.write_text("x")
    os.utime(target, (1, 1))
    (tmp_path / "link").symlink_to(target)
    SharedPollTime(tmp_path / "link").record_look()
    assert target.stat().st_mtime == 1


class Side:
    """One process in a clone, which follows the remote by a turn in the local files."""

    def __init__(self, clone: Path, *, slow_s: float = 15.0, is_watching: bool = True) -> None:
        self.path = clone / "sync" / "state.json"
        self.local = FileStore(self.path)
        self.remote = Remote(Git(clone, timeout_s=10.0, allowed=EVERYTHING), "origin")
        self.known: str | None = None
        self.looks = 0
        self.told: list[str] = []
        folder = remote_folder(self.remote.git, "origin") if is_watching else None
        self.waiting = SharedWait(
            self.local,
            self.look,
            PollPace("origin", slow_s=slow_s),
            shared=SharedPollTime(clone / "sync" / "look"),
            refs=None if folder is None else RefWatch(folder, STATE),
            notify=self.told.append,
        )

    def look(self) -> bool:
        self.looks += 1
        tip = self.remote.list_tips([STATE, remotes.BEATS]).get(STATE)
        if tip == self.known:
            return False
        self.known = tip
        cases.claim(FileStore(self.path))
        return True

    def close(self) -> None:
        self.waiting.close()
        self.local.close()


class Lab:
    """A remote with a run, a side that waits for it, and a clone that pushes."""

    def __init__(self, folder: Path) -> None:
        self.bare = remotes.new_remote(folder / "remote.git")
        self.clone = remotes.new_clone(self.bare, folder / "waiting")
        self.other = remotes.new_clone(self.bare, folder / "pushing")
        self.revision = cases.begin(FileStore(self.clone / "sync" / "state.json")).revision
        self._sides: list[Side] = []
        self._timers: list[threading.Timer] = []

    def side(self, *, slow_s: float = 15.0, is_watching: bool = True) -> Side:
        made = Side(self.clone, slow_s=slow_s, is_watching=is_watching)
        self._sides.append(made)
        return made

    def push(self, text: str = "x") -> None:
        remotes.push(self.other, remotes.commit(self.other, {"x": text.encode()}), STATE)

    def act(self) -> None:
        """Change the run as another process of the waiting clone does."""
        cases.claim(FileStore(self.clone / "sync" / "state.json"))

    def later(self, delay_s: float, act: object, *arguments: object) -> None:
        assert callable(act)
        timer = threading.Timer(delay_s, act, arguments)
        self._timers.append(timer)
        timer.start()

    def close(self) -> None:
        for timer in self._timers:
            timer.join()
        for side in self._sides:
            side.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


def took(started: float) -> float:
    return time.monotonic() - started


# --- what wakes ------------------------------------------------------------------------


def test_a_local_change_makes_the_next_look_come_soon(lab: Lab) -> None:
    side = lab.side(slow_s=60.0, is_watching=False)
    pace = side.waiting.pace
    assert not side.waiting.wait(lab.revision, 0.1)
    for _ in range(20):
        pace.record_success(has_moved=False)
    assert pace.seconds_until_due() > 40.0
    lab.act()
    assert side.waiting.wait(lab.revision, 10.0) is True
    # It was known without waiting; who waits for the next one is told by the watch.
    lab.later(0.1, lambda: cases.commit(FileStore(side.path), 1))
    assert side.waiting.wait(lab.revision + 1, 10.0)
    assert pace.seconds_until_due() < 1.0


def test_a_descriptor_ends_the_wait(lab: Lab) -> None:
    side = lab.side()
    read_fd, write_fd = os.pipe()
    try:
        lab.later(0.2, os.write, write_fd, b"x")
        started = time.monotonic()
        assert not side.waiting.wait(lab.revision, 30.0, wake_fd=read_fd)
        assert took(started) < 10.0
        assert side.looks == 1
        # Who was asked to stop does not ask a remote that may not answer.
        assert not side.waiting.wait(lab.revision, None, wake_fd=read_fd)
        assert side.looks == 1
    finally:
        os.close(read_fd)
        os.close(write_fd)


# --- with a claim ----------------------------------------------------------------------


def claimed_by(pid: int, ttl_s: float) -> Claim:
    start = identity.process_start(pid)
    owner = identity.this_process().replace(pid=pid, pid_start=start)
    return cases.make_claim(owner=owner, ttl_s=ttl_s)


def test_the_end_of_a_holder_on_this_machine_ends_the_wait(lab: Lab) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        side, claim = lab.side(slow_s=60.0), claimed_by(child.pid, 900.0)
        lab.later(0.2, child.kill)
        started = time.monotonic()
        assert not side.waiting.wait(lab.revision, None, claim=claim)
        assert took(started) < 4.5
        assert identity.is_proven_dead(claim.owner)
        assert side.looks == 1
        assert not side.waiting.wait(lab.revision, None, claim=claim)
        assert side.looks == 1
    finally:
        child.kill()
        child.communicate()


# --- a remote that fails ---------------------------------------------------------------


def test_an_unreachable_remote_is_reported_and_waited_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "FIRST_RETRY_S", 0.05)
    side = lab.side(slow_s=0.1, is_watching=False)
    remotes.git(lab.clone, "remote", "set-url", "origin", "git://127.0.0.1:1/away.git")
    assert not side.waiting.wait(lab.revision, 0.5)
    assert len(side.told) <= 7
    while len(side.told) < 2:
        assert not side.waiting.wait(lab.revision, 0.5)
    assert all(text.startswith("remote 'origin' can't be reached: ") for text in side.told)
    assert all("; next try in " in text for text in side.told)
    remotes.git(lab.clone, "remote", "set-url", "origin", str(lab.bare))
    lab.push()
    assert side.waiting.wait(lab.revision, 10.0)
    assert side.told[-1] == "remote 'origin' answers again"
    assert sum("again" in text for text in side.told) == 1


def test_a_corrupt_state_ends_the_wait(lab: Lab) -> None:
    side = lab.side()

    def refuse() -> bool:
        raise CorruptState("no run")

    side.waiting.look = refuse
    with pytest.raises(CorruptState):
        side.waiting.wait(lab.revision, 10.0)


def test_a_folder_that_stays_locked_is_checked_later(lab: Lab) -> None:
    """Another process of the clone is pushing; its turn wakes who waits."""
    side = lab.side(slow_s=0.2, is_watching=False)
    looks: list[float] = []

    def held() -> bool:
        looks.append(time.monotonic())
        raise ClaimHeld("the lock is held")

    side.waiting.look = held
    lab.later(0.7, lab.act)
    assert side.waiting.wait(lab.revision, 10.0)
    assert 2 <= len(looks) <= 30
    assert not side.told
    assert SharedPollTime(lab.clone / "sync" / "look").age_s() is None


# --- what it costs ---------------------------------------------------------------------


def test_processes_of_a_clone_share_their_looks(lab: Lab) -> None:
    sync_status = [lab.side(slow_s=0.5, is_watching=False) for _ in range(4)]
    for number, side in enumerate(sync_status):
        lab.later(0.05 * number, side.waiting.wait, lab.revision, 2.0)
    lab.close()
    # Alone, each of the four asks 5 or 6 times.
    assert 2 <= sum(side.looks for side in sync_status) <= 12


@pytest.mark.parametrize("is_watching", [True, False])
def test_a_sleep_uses_no_processor_time_and_no_thread(is_watching: bool, lab: Lab) -> None:
    side = lab.side(is_watching=is_watching)
    assert not side.waiting.wait(lab.revision, 0.2)
    for _ in range(12):
        side.waiting.pace.record_success(has_moved=False)
    looks, threads, before = side.looks, threading.active_count(), time.process_time()
    assert not side.waiting.wait(lab.revision, 0.7)
    assert time.process_time() - before < 0.02
    assert side.looks == looks
    assert threading.active_count() == threads


def test_only_the_waiting_thread_watches_the_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat's thread asks for the head meanwhile; what it closed could be another file."""
    shared = Shared(tmp_path)
    store = shared.store("a", slow_s=0.0)
    revision = cases.begin(store).revision
    armed, arm = [], RefWatch.arm
    waits = threading.Event()

    def noting(self: RefWatch) -> None:
        armed.append(threading.current_thread().name)
        if threading.current_thread().name == "waits":
            waits.set()
        arm(self)

    monkeypatch.setattr(RefWatch, "arm", noting)
    waiting = threading.Thread(target=store.wait, args=(revision, 1.0), name="waits")
    waiting.start()
    assert waits.wait(30.0)
    armed.clear()
    for _ in range(20):
        assert store.view().head is not None
    assert waiting.is_alive()
    assert set(armed) <= {"waits"}
    waiting.join()
    store.view()
    assert armed[-1] == threading.current_thread().name
    shared.close()
