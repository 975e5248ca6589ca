from __future__ import annotations

import errno
import os
import threading
from typing import NoReturn

import pytest

from sequencer.store.wake_up import WakeUp
from sequencer.store.watch import wait_readable


@pytest.fixture(params=["eventfd", "pipe"])
def wake_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> WakeUp:
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd", raising=False)
    elif not hasattr(os, "eventfd"):
        pytest.skip("this system has no eventfd")
    return WakeUp()


def is_readable(wake_up: WakeUp) -> bool:
    return bool(wait_readable((wake_up.fileno(),), 0.0))


def test_it_is_readable_from_set_to_clear(wake_up: WakeUp) -> None:
    assert not is_readable(wake_up)
    assert not wake_up.clear()
    for _ in range(3):
        wake_up.set()
    assert is_readable(wake_up)
    assert wake_up.clear()
    assert not is_readable(wake_up)


def test_it_can_be_set_any_number_of_times(wake_up: WakeUp) -> None:
    for _ in range(70_000):
        wake_up.set()
    while wake_up.clear():
        pass
    assert not is_readable(wake_up)
    wake_up.set()
    assert is_readable(wake_up)


def test_a_sleeping_thread_wakes(wake_up: WakeUp) -> None:
    woken = threading.Event()

    def sleep() -> None:
        if wait_readable((wake_up.fileno(),), 30.0):
            woken.set()

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    wake_up.set()
    sleeper.join(30)
    assert woken.is_set()


def test_once_closed_it_frees_its_descriptors_and_set_does_nothing(wake_up: WakeUp) -> None:
    fd = wake_up.fileno()
    wake_up.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    wake_up.set()
    wake_up.close()
    assert wake_up.fileno() == -1


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no eventfd")
def test_a_write_that_is_refused_keeps_no_one_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    wake_up = WakeUp()
    monkeypatch.setattr(os, "write", refuse)
    wake_up.set()
    assert is_readable(wake_up)
