"""A tick whose k-th call of the system is refused, for every k: full or broken disk, no descriptor.

It has to end with 3 or 75 in words, or go on without the call. It is never a bug, never counts as a
failure of the step, and the next tick does the step.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.clones import copy_of
from tests.concurrency.command_points import _apart, _called
from tests.concurrency.crash_points import Injector, nothing_waits_for_the_disk
from tests.forked import import_all
from tests.long.report import Report, Size
from tests.property.amounts import in_memory
from tests.storage.commands import accepted

ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "ENOMEM")
MORE_CALLS = (
    "read",
    "pread",
    "ftruncate",
    "pipe",
    "eventfd",
    "fchmod",
    "fchown",
    "chmod",
    "dup",
    "fstat",
)
DONE, REFUSED, BUSY = 0, 3, 75
UNREADABLE = 2
"""The configuration or a prompt can't be read."""
_GRAPH = """---
id: flow
---

```mermaid
flowchart TD
a --> b
```

### a
x

### b
x
"""
WORKFLOWS = {"line": "default", "graph": "flow"}


class Refuser(Injector):
    """Refuses one call; more kinds of calls than an `Injector` fails."""

    def install(self) -> None:
        """Wrap the calls."""
        super().install()
        for name in MORE_CALLS:
            self.real[name] = getattr(os, name)
            setattr(os, name, self._wrap(name))

    def _fail(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        del name, real
        number = getattr(errno, self.fault)
        about = [args[0]] if args and isinstance(args[0], str | os.PathLike) else []
        raise OSError(number, os.strerror(number), *about)


def project(folder: Path, kind: str) -> None:
    """Make a project whose workflow is one step or a chart, and whose agent notes that it ran."""
    (folder / "flows").mkdir(parents=True)
    (folder / "flows" / "flow.md").write_text(_GRAPH)
    argv = ["sh", "-c", "echo $SEQUENCER_STEP >> ran; echo ok"]
    document = {
        "agent": {"default": "a"},
        "agents": {"a": {"kind": "command", "argv": argv}},
        "steps": [{"name": "main", "text": "Go on."}],
        "workflow": WORKFLOWS[kind],
        "workflows": {"flow": "flows/flow.md"},
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document))


def called(folder: Path, *argv: str) -> tuple[int, str]:
    """Return how the program ended that was called with *argv*, and what it complained about."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        code = _called(folder, *argv)
    return code, told.getvalue()


def refused(folder: Path, fault: str, at: int) -> dict[str, Any]:
    """Run a tick, with *fault* at call *at*, in a child; return how it ended."""

    def act() -> dict[str, Any]:
        refuser = Refuser(fault, at)
        refuser.install()
        refuser.is_armed = True
        code, told = called(folder, "tick")
        refuser.is_armed = False
        name = refuser.names[at - 1] if refuser.has_fired else ""
        return {"code": code, "told": told, "has_fired": refuser.has_fired, "call": name}

    found = _apart(act)
    return found if isinstance(found, dict) else {"told": found, "code": 70, "has_fired": True}


def wrong_in(said: dict[str, Any]) -> str:
    """Return what is wrong with how a command ended; nothing if it ended as it should."""
    code, told = said.get("code"), said.get("told", "")
    if "this is a bug" in told or "Traceback" in told or code is None:
        return f"a bug: {told[-800:]} {said if code is None else ''}"
    if code not in (DONE, REFUSED, BUSY, UNREADABLE):
        return f"ended with {code}: {told[-400:]}"
    if code in (REFUSED, BUSY) and len(told.strip().splitlines()) < 2:
        return f"ended with {code} and no word about what to do: {told}"
    return ""


def wrong_behind(folder: Path) -> str:
    """Return what does not hold once nothing is refused any more."""
    for _ in range(2):
        if (folder / "sync" / "state.json").exists():
            # What a machine lacked is tried again in some seconds only; each node has its own time.
            _apart(partial(called, folder, "set", "not_before=null"))
            _apart(partial(called, folder, "retry"))
        code, told = _apart(partial(called, folder, "tick"))
        if code:
            return f"the next one ended with {code}: {told}"
        events = _apart(lambda: facts_of(folder))
        if accepted(events):
            break
    steps = accepted(events)
    if [one for one in events if one["event"] == "failed"]:
        return f"a failure was counted: {events}"
    if steps != [*range(len(steps))] or not steps:
        return f"accepted behind it: {steps}"
    return ""


def facts_of(folder: Path) -> list[dict[str, Any]]:
    """Return the facts of the journal."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        _called(folder, "history", "--json")
    return [json.loads(line) for line in told.getvalue().splitlines()]


def sweep(
    kind: str, fault: str, base: Path, first: int = 1, step: int = 1
) -> tuple[int, list[str]]:
    """Refuse the *first* call and each *step*-th one behind it; return how many, and what broke."""
    made, wrong = base / "made", list[str]()
    project(made, kind)
    for tried, at in enumerate(itertools.count(first, step)):
        folder = copy_of(made, base / str(at))
        said = refused(folder, fault, at)
        if not said.get("has_fired"):
            return tried, wrong
        found = wrong_in(said) or wrong_behind(folder)
        if found:
            wrong.append(f"{kind}, {fault} at call {at} ({said.get('call')}): {found}")
        shutil.rmtree(folder)
    raise AssertionError("unreachable: the calls of a command have an end")


def campaign(folder: Path, size: Size) -> Report:
    """Refuse each call of a tick of a line and of a graph with each errno."""
    import_all()
    points, wrong = 0, list[str]()
    is_short = size is Size.SHORT
    place = in_memory() if is_short else contextlib.nullcontext(folder)
    with place as base, nothing_waits_for_the_disk():
        everything = list(itertools.product(WORKFLOWS, ERRORS))
        # On every push half of the errors, for a line and for a graph in turn.
        chosen = everything[: len(ERRORS) : 2] + everything[len(ERRORS) + 1 :: 2]
        for number, (kind, fault) in enumerate(chosen if is_short else everything):
            # Not the same calls for each, so that others are met as well.
            first, step = (number * 97 % 211 + 20, 251) if is_short else (1, 1)
            tried, found = sweep(kind, fault, base / kind / fault, first, step)
            points, wrong = points + tried, wrong + found
    return Report({"inputs": points}, tuple(wrong))
