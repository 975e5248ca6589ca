"""Who may be believed to be gone, and after how long; no wall clock has a say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequencer.model.head import Claim, Owner
from sequencer.store import identity, leases
from sequencer.store.leases import Leases
from sequencer.store.protocol import Liveness
from tests.contract.store_cases import STRANGER, make_claim

ALIVE, UNKNOWN, EXPIRED, DEAD = Liveness


class Clock:
    """The boot clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(leases, "boottime", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def table(tmp_path: Path) -> Leases:
    return Leases(tmp_path / "beats")


def owned(**update: Any) -> Claim:
    return make_claim(owner=identity.this_process().replace(**update))


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


OWNERS: dict[str, tuple[Callable[[], dict[str, Any]], Liveness]] = {
    "this process": (dict, ALIVE),
    "a pid that is gone": (lambda: {"pid": dead_pid()}, DEAD),
    "a pid that was given again": (lambda: {"pid_start": 1}, DEAD),
    "another pid namespace": (lambda: {"pid": dead_pid(), "pid_ns": "pid:[1]"}, ALIVE),
    "another boot of this machine": (lambda: {"boot_id": "earlier", "machine": "m"}, DEAD),
    "another boot, another host name": (
        lambda: {"boot_id": "b", "machine": "m", "host": "other"},
        UNKNOWN,
    ),
    "another boot, a machine without an id": (lambda: {"boot_id": "b", "machine": ""}, UNKNOWN),
    "another machine": (lambda: {"boot_id": "b", "machine": "other", "host": "h"}, UNKNOWN),
}


@pytest.mark.parametrize("name", OWNERS)
def test_liveness_follows_what_is_known_about_the_owner(
    name: str, table: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "machine_digest", lambda: "m")
    update, expected = OWNERS[name]
    claim = owned(**update())
    table.beat(claim, 0)
    assert table.liveness(claim) is expected
    assert expected.allows_take_over == (expected in (EXPIRED, DEAD))


def test_a_machine_without_an_id_proves_nothing(
    table: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "machine_digest", lambda: "")
    claim = owned(boot_id="earlier", machine="")
    table.beat(claim, 0)
    assert table.liveness(claim) is UNKNOWN


def test_a_lease_on_the_same_boot_ends_at_its_deadline(table: Leases, clock: Clock) -> None:
    claim = owned(pid_ns="pid:[1]")
    table.beat(claim, 0)
    clock.now += 60.0
    assert table.liveness(claim) is ALIVE
    clock.now += 0.01
    assert table.liveness(claim) is EXPIRED
    table.beat(claim, 1)
    assert table.liveness(claim) is ALIVE


def test_the_claim_itself_is_the_first_beat(table: Leases, clock: Clock) -> None:
    claim = owned(pid_ns="pid:[1]").replace(claimed_boottime=1_000.0)
    clock.now = 1_000.0 + claim.ttl_s
    assert table.liveness(claim) is ALIVE
    clock.now += 0.01
    assert table.liveness(claim) is EXPIRED
    table.beat(claim, 1)
    assert table.liveness(claim) is ALIVE


def test_the_clock_of_a_stranger_is_not_trusted(table: Leases, clock: Clock) -> None:
    claim = make_claim().replace(claimed_boottime=1.0)
    assert table.liveness(claim) is UNKNOWN
    clock.now += 1.25 * claim.ttl_s
    assert table.liveness(claim) is UNKNOWN
    clock.now += 0.1
    assert table.liveness(claim) is EXPIRED


def test_a_stranger_is_believed_for_one_and_a_quarter_leases(table: Leases, clock: Clock) -> None:
    claim = make_claim()
    table.beat(claim, 0)
    for waited in (0.0, 30.0, 44.9):
        clock.now = 1_000.0 + waited
        assert table.liveness(claim) is UNKNOWN
    clock.now = 1_000.0 + 75.0
    assert table.liveness(claim) is UNKNOWN
    clock.now += 0.1
    assert table.liveness(claim) is EXPIRED


def test_every_beat_of_a_stranger_starts_the_observation_again(table: Leases, clock: Clock) -> None:
    claim = make_claim()
    for number in range(5):
        table.beat(claim, number)
        assert table.liveness(claim) is UNKNOWN
        clock.now += 74.0
        assert table.liveness(claim) is UNKNOWN
    clock.now += 2.0
    assert table.liveness(claim) is EXPIRED


def test_an_observation_is_remembered_by_the_next_process(table: Leases, clock: Clock) -> None:
    claim = make_claim()
    table.beat(claim, 0)
    assert table.liveness(claim) is UNKNOWN
    clock.now += 100.0
    assert Leases(table.folder).liveness(claim) is EXPIRED


def test_an_observation_from_an_earlier_boot_does_not_count(
    table: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = make_claim()
    table.beat(claim, 0)
    assert table.liveness(claim) is UNKNOWN
    # The memory's name has the first eight digits only; the whole id is inside.
    other = identity.boot_id()[:8] + "-other"
    monkeypatch.setattr(leases, "boot_id", lambda: other)
    clock.now = 5_000.0
    assert table.liveness(claim) is UNKNOWN
    clock.now = 10.0
    assert table.liveness(claim) is UNKNOWN


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"deadline_boottime": "x"}', b'{"deadline_boottime": NaN}', b"\0" * 50],
)
def test_a_beat_that_cannot_be_read_is_observed(
    table: Leases, clock: Clock, content: bytes
) -> None:
    claim = owned(pid_ns="pid:[1]")
    table.folder.mkdir()
    (table.folder / "1").write_bytes(content)
    assert table.liveness(claim) is UNKNOWN
    clock.now += 75.1
    assert table.liveness(claim) is EXPIRED


@pytest.mark.timeout(5)
def test_a_beat_that_is_not_a_regular_file_does_not_hang(table: Leases, clock: Clock) -> None:
    table.folder.mkdir()
    os.mkfifo(table.folder / "1")
    (table.folder / "2").symlink_to("/etc/hostname")
    for token in (1, 2):
        claim = make_claim(token, owner=identity.this_process().replace(pid_ns="x"))
        assert table.liveness(claim) is UNKNOWN
    assert clock.now == 1_000.0


def test_silence_of_a_holder_starts_at_its_last_sign_of_life(table: Leases, clock: Clock) -> None:
    claim = owned().replace(claimed_boottime=900.0)
    assert table.silence_s(claim) == 100, "since the claim, which is the first sign of life"
    table.beat(claim, 0)
    clock.now += 7
    assert table.silence_s(claim) == pytest.approx(7, abs=0.01)
    assert table.silence_s(owned().replace(claimed_boottime=None, token=99)) is None


def test_silence_of_a_stranger_starts_at_the_first_look_at_its_beat(
    table: Leases, clock: Clock
) -> None:
    claim = make_claim(owner=STRANGER)
    assert table.silence_s(claim) is None, "nobody has looked yet"
    table.liveness(claim)
    clock.now += 7
    assert table.silence_s(claim) == 7
    table.write_beat(claim.token, {"beat": 1, "deadline_boottime": 5.0})
    assert table.silence_s(claim) is None, "this beat was not looked at yet"
    table.liveness(claim)
    assert table.silence_s(claim) == 0


def test_a_sweep_leaves_live_beats_and_foreign_files(table: Leases, clock: Clock) -> None:
    for token in (1, 2, 3):
        table.beat(make_claim(token), 0)
        table.liveness(make_claim(token))
    (table.folder / "2.77.tmp").write_text("x")
    strangers = ("id_rsa", "12.txt", "3.seen-mine", "note.tmp", "x.77.tmp", "4.bak.77.tmp")
    for name in strangers:
        (table.folder / name).write_text("x")
    (table.folder / "4").mkdir()
    (table.folder / "5").symlink_to("id_rsa")
    table.sweep({2})
    left = {path.name.partition("-0")[0] for path in table.folder.iterdir()}
    assert {name for name in left if not name.startswith("2")} == {*strangers, "4", "5"}
    assert {name.partition("-")[0] for name in left if name.startswith("2")} == {"2", "2.seen"}
    table.remove_files(make_claim(2))
    table.remove_files(make_claim(2))
    assert clock.now == 1_000.0


def test_a_beat_survives_a_sweep_while_it_is_written(
    table: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweeping worker may take the temporary file for a left-over of a killed one."""
    claim = owned()
    table.beat(claim, 0)
    real, calls = os.replace, []

    def sweep_first(source: str, target: str, **folders: int) -> None:
        calls.append(source)
        if len(calls) == 1:
            table.sweep({claim.token})
        real(source, target, **folders)

    monkeypatch.setattr(os, "replace", sweep_first)
    table.beat(claim, 1)
    assert len(calls) == 2
    assert '"beat": 1' in (table.folder / "1").read_text()


def test_a_beat_that_cannot_be_written_is_an_error(table: Leases) -> None:
    table.folder.write_text("no folder")
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        table.beat(make_claim(), 1)


def test_a_zombie_and_a_stopped_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        start = identity.process_start(child.pid)
        owner = identity.this_process().replace(pid=child.pid, pid_start=start)
        os.kill(child.pid, signal.SIGSTOP)
        assert not identity.is_proven_dead(owner)
        os.kill(child.pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        # Nobody has waited for it yet: the pid is still there, but it runs no code.
        while not identity.is_proven_dead(owner) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert identity.is_proven_dead(owner)
    finally:
        child.kill()
        child.wait()
    assert identity.is_proven_dead(owner)


def test_another_users_process_that_proc_hides_is_not_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(pid, number)

    monkeypatch.setattr(identity, "process_start", lambda _: None)
    assert identity.is_proven_dead(identity.this_process().replace(pid=dead_pid()))
    monkeypatch.setattr(os, "kill", refuse)
    assert not identity.is_proven_dead(identity.this_process())


def test_a_descriptor_of_a_process_becomes_readable_with_its_end() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = identity.process_start(child.pid)
    owner = identity.this_process().replace(pid=child.pid, pid_start=start)
    fd = identity.open_process(owner)
    assert fd is not None
    os.close(fd)
    for update in ({"pid_start": 1}, {"boot_id": "b"}, {"pid_ns": "n"}):
        assert identity.open_process(owner.replace(**update)) is None
    child.communicate(b"\n")
    assert identity.open_process(owner) is None


def test_this_process_is_described_once_and_a_fork_is_another() -> None:
    owner: Owner = identity.this_process()
    assert owner == identity.this_process()
    assert owner.pid == os.getpid()
    assert not identity.is_proven_dead(owner)
    assert identity.is_same_boot(owner)
    assert not identity.is_same_boot(STRANGER)
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_fd, identity.this_process().nonce.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_fd, 100).decode() != owner.nonce
    os.close(read_fd)
    os.close(write_fd)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no descriptors of processes here")
def test_the_end_of_a_holder_is_noticed_with_an_open_descriptor(table: Leases) -> None:
    """One descriptor for all claims of one process, and it proves nothing by itself."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        started = identity.process_start(child.pid)
        claims = [
            owned(pid=child.pid, pid_start=started, nonce="n").replace(
                token=token, claimed_boottime=identity.boottime(), ttl_s=60.0
            )
            for token in (1, 2, 3)
        ]
        before = descriptors()
        assert [table.liveness(claim) for claim in claims] == [ALIVE] * 3
        assert descriptors() == before + 1
        child.kill()
        child.wait()
        assert [table.liveness(claim) for claim in claims] == [DEAD] * 3
    finally:
        child.kill()
        child.wait()
    own = owned(nonce="own").replace(claimed_boottime=identity.boottime(), ttl_s=60.0)
    assert (table.liveness(own), descriptors()) == (ALIVE, before + 1)
    table.close()
    assert [table.liveness(claim) for claim in (own, claims[0], own)] == [ALIVE, DEAD, ALIVE]
    table.close()
    assert descriptors() == before


def test_no_beat_of_a_claim_is_read_within_its_first_lease(
    table: Leases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = owned().replace(claimed_boottime=clock.now, ttl_s=10.0)
    table.beat(claim, 0)
    looks: list[int] = []
    read = Leases.read

    def watched(self: Leases, token: int) -> dict[str, Any]:
        looks.append(token)
        return read(self, token)

    monkeypatch.setattr(Leases, "read", watched)
    clock.now += 10.0
    assert (table.liveness(claim), looks) == (ALIVE, [])
    clock.now += 0.1
    table.liveness(claim)
    assert looks == [claim.token]
