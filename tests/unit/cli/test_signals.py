from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from sequencer.cli.signals import ENDING, EndOnSignal


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def wait_until(condition: threading.Event) -> None:
    assert condition.wait(5)


def test_a_signal_before_the_work_is_ready_is_not_lost() -> None:
    asked, told = threading.Event(), threading.Event()
    with EndOnSignal(lambda _: told.set()) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(told)
        assert not asked.is_set()
        signals.on_ready(asked.set)
        assert asked.is_set()


def test_later_signals_are_reported_once_and_do_no_harm() -> None:
    calls, told = list[int](), list[str]()
    asked = threading.Event()

    def interrupt() -> None:
        calls.append(1)
        asked.set()

    with EndOnSignal(told.append) as signals:
        signals.on_ready(interrupt)
        for _ in range(5):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)
        wait_until(asked)
    assert len(told) == 1
    assert calls
    # The program is ending; an impatient signal must not change its exit code.
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_read_that_fails_loses_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    told, failures, read = threading.Event(), [errno.EIO, errno.ENOMEM], os.read

    def fail_first(fd: int, size: int) -> bytes:
        if failures and threading.current_thread().name == "signals":
            raise OSError(failures.pop(), "refused")
        return read(fd, size)

    monkeypatch.setattr(os, "read", fail_first)
    with EndOnSignal(lambda _: told.set()):
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(told)
    assert failures == []


def test_a_signal_that_was_ignored_from_the_start_stays_ignored() -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from sequencer.cli.signals import EndOnSignal
with EndOnSignal(print) as signals:
    signals.on_ready(lambda: print("asked"))
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.1)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert ended.stdout == ""


STUCK = """
import os, signal, sys, time
from sequencer.cli.signals import EndOnSignal, ForcedExit
with ForcedExit(0.2) as last:
    last.words = lambda: {words}
    with EndOnSignal(last.begin_before(lambda text: print("ending", flush=True))) as signals:
        signals.on_ready(lambda: None)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep({stuck_s})
print("ended by itself", flush=True)
time.sleep(0.5)
"""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("words", "stuck_s", "said"),
    [
        ("print('unknown', flush=True)", 60, "ending\nunknown\n"),
        # As before a terminal that is stopped.
        ("time.sleep(60)", 60, "ending\n"),
        ("1 / 0", 60, "ending\n"),
        ("print('unknown', flush=True)", 0.05, "ending\nended by itself\n"),
    ],
)
def test_work_that_does_not_end_is_abandoned(words: str, stuck_s: float, said: str) -> None:
    code = STUCK.format(words=words, stuck_s=stuck_s)
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50
    )
    assert ended.stdout == said
    assert ended.returncode == (0 if "itself" in said else 130)
    assert time.monotonic() - began < 40
