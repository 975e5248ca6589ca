"""The lock of a run: taken again without opening it, and never by two at once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sequencer.errors import ClaimHeld, StorageFailed
from sequencer.store import lock as lock_module
from sequencer.store.lock import RunLock

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sync" / "state.json.lock"


def lock_of(path: Path) -> RunLock:
    return RunLock(path, allow_network_fs=False)


def is_free(path: Path) -> bool:
    """Return whether another descriptor can have the kernel's lock."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_a_file_that_was_deleted_is_not_taken_again(path: Path) -> None:
    lock = lock_of(path)
    with lock:
        old = path.stat().st_ino
    path.rename(path.with_name("elsewhere"))
    with lock:
        assert path.stat().st_ino != old
        assert not is_free(path)
        assert is_free(path.with_name("elsewhere"))


def test_a_lock_file_deleted_while_held_is_noticed(path: Path) -> None:
    lock = lock_of(path)
    with lock:
        path.unlink()
        assert not lock.is_current()
        path.touch()
        assert not lock.is_current()
        path.unlink()
        path.symlink_to("/dev/null")
        assert not lock.is_current()


def test_a_link_in_its_place_is_refused(path: Path, tmp_path: Path) -> None:
    lock = lock_of(path)
    with lock:
        pass
    path.unlink()
    path.symlink_to(tmp_path / "other")
    with pytest.raises(StorageFailed), lock:
        pytest.fail("locked through a link")
    assert not (tmp_path / "other").exists()


def test_two_locks_of_one_process_exclude_each_other(path: Path) -> None:
    one, two, order = lock_of(path), lock_of(path), []
    with two:
        pass
    entered = threading.Event()

    def wait_for_it() -> None:
        entered.set()
        with two:
            order.append("two")

    with one:
        thread = threading.Thread(target=wait_for_it)
        thread.start()
        assert entered.wait(10)
        time.sleep(0.05)
        order.append("one")
    thread.join()
    assert order == ["one", "two"]


def test_waiting_too_long_for_a_lock_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "TIMEOUT_S", 0.05)
    one, new, used = lock_of(path), lock_of(path), lock_of(path)
    with used:
        pass
    with one:
        for other in (new, used):
            with pytest.raises(ClaimHeld, match=r"held for more than 0\.05 s"), other:
                pytest.fail("two hold the lock")
        with pytest.raises(ClaimHeld), one:
            pytest.fail("it is not reentrant")
    for other in (new, used):
        with other:
            assert not is_free(path)


CHILD = """
import os, sys
from pathlib import Path
from sequencer.store.lock import RunLock
lock = RunLock(Path(sys.argv[1]), allow_network_fs=False, timeout_s=0.1)
with lock:
    pass
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.read(read, 1)  # the parent holds the lock by now
    try:
        with lock:
            os._exit(1)
    except Exception as error:
        os._exit(0 if type(error).__name__ == "ClaimHeld" else 2)
with lock:
    os.write(write, b"x")
    _, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_a_child_does_not_hold_its_parents_lock(path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.stdout == "0\n", told.stderr
