"""``python looks.py PLAN``: run commands one after another, for whoever traces this process.

PLAN is a JSON file: the commands, how long each may take, and where their outputs go. A
command is a fork of this process that runs ``python -m sequencer``, or, with ``"starts"``,
an interpreter of its own. A name that is nowhere is looked for before each
command and after it, so that a trace shows which call is whose.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from tests.boundary.traced import MARKER

FEW = 5
"""So many commands import what they need sooner than all is imported."""


def main(plan_path: Path) -> None:
    """Run what *plan_path* says, and write beside it how each command ended."""
    plan = json.loads(plan_path.read_text())
    # Of all that can be imported one command alone needs a part, and imports that itself.
    if not plan["starts"] and len(plan["commands"]) > FEW:
        for module in pkgutil.walk_packages(
            importlib.import_module("sequencer").__path__, "sequencer."
        ):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        gc.collect()
        gc.freeze()  # what is never collected is never copied either
    ended = []
    for number, command in enumerate(plan["commands"]):
        streams = [os.open(os.devnull, os.O_RDONLY)]
        for name in ("out", "err"):
            path = plan_path.with_name(f"{number}.{name}")
            streams.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        mark(f"{number}")
        ended.append(watched(command, streams, plan))
        mark("between")
        for fd in streams:
            os.close(fd)
    plan_path.with_name("ended.json").write_text(json.dumps(ended))


def mark(name: str) -> None:
    with contextlib.suppress(OSError):
        os.open(f"{MARKER}{name}", os.O_RDONLY)


def watched(command: dict[str, Any], streams: list[int], plan: dict[str, Any]) -> dict[str, Any]:
    """Run one command; return its exit code (None: it took too long) and what it cost."""
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        become(command, streams, plan)
    is_late = False
    while True:
        done, status, usage = os.wait4(pid, 0 if is_late else os.WNOHANG)
        if done:
            break
        if time.monotonic() - began > plan["limit_s"]:
            is_late = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return {
        "code": None if is_late else os.waitstatus_to_exitcode(status),
        "seconds": time.monotonic() - began,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "mib": usage.ru_maxrss / 1024,
    }


def become(command: dict[str, Any], streams: list[int], plan: dict[str, Any]) -> NoReturn:
    """Be the command, in its folder and with its variables."""
    code = 70
    try:
        os.chdir(command["folder"])
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(3, 256)
        environment = {**os.environ, **command.get("variables", {})}
        if plan["starts"]:
            argv = [sys.executable, *plan["starts"], *command["argv"]]
            os.execve(sys.executable, argv, environment)  # noqa: S606 (no shell is meant)
        os.environ.update(environment)
        sys.argv = ["sequencer", *command["argv"]]
        # As the installed command has it: no folder of the person's is searched for modules.
        sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
        code = called()
    except BaseException:  # noqa: BLE001 (nothing of this process may run the next command)
        traceback.print_exc()
    os._exit(code)


def called() -> int:
    """Run ``python -m sequencer`` in this process; return its exit code."""
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    code = 0
    try:
        runpy.run_module("sequencer", run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


if __name__ == "__main__":
    main(Path(sys.argv[1]))
