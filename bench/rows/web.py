"""The pages of `sequencer web` over 500 runs, a long line and a large flow, and who follows them.

CPU of a page that is made again, as a reader meets it: what every page is made of is read when
the server starts. Followers are real connections to a real server, whose CPU the kernel tells.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bench.child import clean_environment, cpu_seconds_of, idle_percent
from bench.measuring import quartiles
from bench.project import Marks, make_project, no_op_run
from bench.result import Row, absent, capped
from bench.rows import Setting
from sequencer import InvocationLimits, Mode, open_project
from sequencer.files.yamlfile import KeyPath
from sequencer.model.commands import Pause, Resume
from sequencer.project.sources import FlagValue

RUNS, STEPS, NODES = 500, 20_000, 2_000
PAGE_MS, PAGE_BYTES = 150, 150_000
FOLLOWERS, CHANGES, LAG_MS = 50, 20, 200
FOLLOWED_PERCENT, IDLE_PERCENT = 5, 0.1
PAGES = {"needs": "/", "runs": "/runs", "line": "/p/project/-", "flow": "/p/project/large"}


def measure(setting: Setting) -> list[Row]:
    """Return the rows of pages, of those who follow one, and of a server that nobody asks."""
    if not all(map(find_spec, ("starlette", "uvicorn", "jinja2"))):
        return [absent("web", "its caps", "the extra 'web' is not installed")]
    folder = setting.folder / "project"
    share = min(1.0, setting.effort.growth_steps / STEPS)
    _make(folder, int(RUNS * share), int(STEPS * share), int(NODES * share))
    rows = _pages(folder, f"{int(RUNS * share)} runs")
    with _served(folder) as (pid, port, cookie):
        rows += _followed(folder, pid, port, cookie)
        time.sleep(2)
        idle = idle_percent(pid, setting.effort.idle_s)
    rows.append(capped("web idle", idle, IDLE_PERCENT, "%", "of a core, nobody looks"))
    return rows


def _make(folder: Path, runs: int, steps: int, nodes: int) -> None:
    chain = "\n".join(f"first --> n{number} --> last" for number in range(nodes - 2))
    parts = "".join(f"\n### {name}\nx\n" for name in _names(nodes))
    head = "---\nid: large\n---\n\n```mermaid\nflowchart TD\n"
    folder.mkdir()
    (folder / "large.md").write_text(f"{head}{chain}\n```\n{parts}", encoding="utf-8")
    project = make_project(folder, "workflows: {large: large.md}\n")
    no_op_run(project, Marks()).work(Mode.COMBINED, InvocationLimits(max_steps=steps))
    for number in range(runs):
        project.run(f"run-{number}").commands.begin()
    given: dict[KeyPath, FlagValue] = {("workflow", "name"): FlagValue("--workflow", "large")}
    open_project(folder, flags=given, trust=True).run("large").commands.begin()


def _names(nodes: int) -> Iterator[str]:
    yield from ("first", *(f"n{number}" for number in range(nodes - 2)), "last")


def _pages(folder: Path, note: str) -> list[Row]:
    from sequencer.plugins.web.server import Answers  # noqa: PLC0415 - an extra
    from sequencer.plugins.web.site import Site  # noqa: PLC0415 - an extra

    renderer, rows = Answers(Site([folder]), "token"), []
    for name, address in PAGES.items():
        renderer.render_parts(address)
        times = []
        for _ in range(5):
            before = time.process_time()
            whole = renderer.render_page(address)
            times.append(time.process_time() - before)
        rows.append(capped(f"web {name}", sorted(times)[2] * 1e3, PAGE_MS, "ms", f"CPU, {note}"))
        size = len(whole.encode())
        rows.append(capped(f"web {name} size", size, PAGE_BYTES, "bytes", note))
    return rows


@contextmanager
def _served(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Yield the process, the port and the cookie of a server over *folder*."""
    command = [sys.executable, "-m", "sequencer", "web", "--port", "0", "--no-browser"]
    environment = {**clean_environment(), "PYTHONPATH": os.getcwd()}  # noqa: PTH109
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        line = server.stdout.readline() if server.stdout else ""
        address, _, token = line.strip().partition("/login")
        port = int(address.rpartition(":")[2])
        try:
            answer = _asked(port, f"/login{token}", "")
            answer.read()
            yield server.pid, port, str(answer.getheader("set-cookie")).partition(";")[0]
        finally:
            server.terminate()


def _asked(port: int, path: str, cookie: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"cookie": cookie})
    return connection.getresponse()


def _followed(folder: Path, pid: int, port: int, cookie: str) -> list[Row]:
    """Return the CPU and the lag of pages that many follow while their run changes."""
    heard: list[list[float]] = [[] for _ in range(FOLLOWERS)]

    def follow(times: list[float]) -> Callable[[], None]:
        def read() -> None:
            answer = _asked(port, "/live?at=/p/project/-", cookie)
            try:
                data = (line[5:] for line in answer if line.startswith(b"data:"))
                times.extend(time.monotonic() for part in data if "head" in json.loads(part))
            except (OSError, ValueError):
                return

        return read

    for times in heard:
        threading.Thread(target=follow(times), daemon=True).start()
    while not all(heard):
        time.sleep(0.1)
    time.sleep(2)
    control = open_project(folder, trust=True).run(None).commands
    lags, used, started = list[float](), cpu_seconds_of(pid), time.monotonic()
    for number in range(CHANGES):
        control.do(Resume() if number % 2 else Pause())
        changed = time.monotonic()
        time.sleep(1)
        lags += [
            next((at for at in times if at > changed), changed + 1) - changed for times in heard
        ]
    percent = (cpu_seconds_of(pid) - used) / (time.monotonic() - started) * 100
    most = sorted(lags)[int(len(lags) * 0.95)] * 1e3
    note = f"{FOLLOWERS} followers, a change a second; quartiles {quartiles(lags)[0] * 1e3:.0f} ms"
    return [
        capped("web followed", percent, FOLLOWED_PERCENT, "%", f"of a core, {note}"),
        capped("web lag", most, LAG_MS, "ms", f"p95, {note}"),
    ]
