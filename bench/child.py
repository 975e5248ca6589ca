"""Other processes of the bench: one JSON line in, one JSON line out.

A peer runs in an interpreter of its own, and whatever happens to it ends in an `Absent`
with the reason; nothing that goes wrong there stops the bench.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

CHECKOUT = Path(__file__).resolve().parent.parent
START_S = 60.0
ANSWER_S = 1800.0
CLOCK_OF_PROCESS = 2
"""The kernel's clock id of a process's CPU time is ``~pid << 3 | 2``."""


class Absent(Exception):
    """A child could not be started or did not answer; the text says why."""


def clean_environment() -> dict[str, str]:
    """Return this environment without what would slow down or steer an interpreter."""
    prefixes = ("PYTHON", "COVERAGE", "COV_", "PYTEST", "SEQUENCER_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
    return {**kept, "SEQUENCER_TRUST": "all"}


class Child:
    """A process that answers requests, see `bench.serving`."""

    def __init__(
        self, module: str, arguments: Sequence[str], log: Path, python: str | None = None
    ) -> None:
        """Start *module* with *arguments*; what it prints beside its answers goes to *log*."""
        self._log = log
        self._module = module
        self._stderr: IO[bytes] = log.open("wb")
        command = [python or sys.executable, "-m", module, *arguments]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=CHECKOUT,
                env=clean_environment(),
            )
        except OSError as error:
            self._stderr.close()
            raise Absent(str(error)) from error
        try:
            self.greeting = self._read(START_S)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def tell(self, request: dict[str, Any]) -> None:
        """Send *request* without waiting for the answer."""
        stdin = self._process.stdin
        if stdin is None:
            raise Absent("its standard input is gone")
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise Absent(self._last_words() or str(error)) from error

    def hear(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the answer to the request before."""
        return self._read(timeout_s)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send *request* and return the answer."""
        self.tell(request)
        return self.hear()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        stdout = self._process.stdout
        if stdout is None:
            raise Absent("its standard output is gone")
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise Absent(f"{self._module} did not answer within {timeout_s:g} s")
        line = stdout.readline()
        if not line:
            self._process.wait(timeout=10)
            raise Absent(self._last_words() or f"it ended with {self._process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        if "absent" in answer:
            raise Absent(str(answer["absent"]))
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        """End the process: by closing its input, else by a signal."""
        process = self._process
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue  # it went first
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time that process *pid* has used, all threads, to the nanosecond."""
    return time.clock_gettime(~pid << 3 | CLOCK_OF_PROCESS)


def idle_percent(pid: int, seconds: float) -> float:
    """Return how much of one core process *pid* uses over *seconds*, in percent."""
    (percent,) = idle_percents([pid], seconds)
    return percent


def idle_percents(pids: Sequence[int], seconds: float) -> list[float]:
    """Return the same for several processes, over the same *seconds*."""
    used, started = [*map(cpu_seconds_of, pids)], time.monotonic()
    time.sleep(seconds)
    now, passed = [*map(cpu_seconds_of, pids)], time.monotonic() - started
    return [(after - before) / passed * 100 for before, after in zip(used, now, strict=True)]


def cpu_of_command(argv: Sequence[str], cwd: Path) -> float:
    """Run *argv* once and return its CPU seconds, user and system, children included.

    Raises:
        Absent: it can't be started, or it fails.
    """
    outputs = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    here = Path.cwd()
    os.chdir(cwd)
    try:
        pid = os.posix_spawn(argv[0], list(argv), clean_environment(), file_actions=outputs)
    except OSError as error:
        raise Absent(f"{argv[0]}: {error.strerror}") from error
    finally:
        os.chdir(here)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        raise Absent(f"{' '.join(argv)} ended with {code}")
    return usage.ru_utime + usage.ru_stime
