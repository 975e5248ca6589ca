"""Make call k of the system fail, for every k, in a child; then recover and look."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sequencer import FileStore, Head, SequencerError
from sequencer.errors import CorruptState, StorageFailed
from tests.contract import store_cases as cases
from tests.power.recorder import Plain, replaced

CALLS = (
    *("open", "write", "fsync", "fdatasync", "posix_fallocate"),
    *("replace", "link", "unlink", "mkdir", "rmdir"),
)
ERRORS = ("EIO", "ENOSPC", "EINTR", "EDQUOT")
FAULTS = (*ERRORS, "EIO-after", "short", "kill", "kill-after", "kill-half")
MIXED = ("EIO", "ENOSPC", "EINTR", "EIO-after")
"""What the fault "mixed" is, from one call to the next."""
ROTATE_BYTES = 2_500
"""More than the first two records, so that the third makes the journal one to put aside."""
LIMIT_S = 30
"""Nothing that is refused or repeated takes longer."""


@dataclass
class Injector:
    """Fails the call with number *at*, counted over all kinds of calls."""

    fault: str
    at: int
    seen: int = 0
    names: list[str] = field(default_factory=list)
    """What was called, as far as it came."""
    is_armed: bool = False
    has_fired: bool = False
    real: dict[str, Callable[..., Any]] = field(default_factory=dict)
    replacements: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Never closed: the process ends with them."""

    def install(self) -> None:
        if self.fault == "mixed":
            # Halved, so that every second call meets each of them too.
            self.fault = MIXED[self.at // 2 % len(MIXED)]
        self.real.update((name, getattr(os, name)) for name in CALLS)
        self.replacements.enter_context(replaced({name: self._wrap(name) for name in CALLS}))
        self.real["flock"] = fcntl.flock
        fcntl.flock = self._wrap("flock")
        name = "fdopen"
        self.real[name] = getattr(os, name)
        setattr(os, name, self._fdopen)

    def _fdopen(self, fd: int, mode: str = "r", **options: Any) -> Any:
        return Plain(fd) if mode == "wb" else self.real["fdopen"](fd, mode, **options)

    def _wrap(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            real = self.real[name]
            if not self.is_armed:
                return real(*args, **kwargs)
            self.seen += 1
            self.names.append(name)
            if self.seen != self.at:
                return real(*args, **kwargs)
            self.has_fired = True
            return self._fail(name, lambda *given: real(*(given or args), **kwargs), args)

        return call

    def _fail(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self.fault in ERRORS:
            number = getattr(errno, self.fault)
            raise OSError(number, os.strerror(number), str(args[0]))
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        is_write = name == "write"
        if self.fault in ("short", "kill-half"):
            if not is_write:
                return real()
            written = real(args[0], bytes(args[1])[: len(args[1]) // 2])
            if self.fault == "kill-half":
                os.kill(os.getpid(), signal.SIGKILL)
            return written
        result = real()
        if self.fault == "kill-after":
            os.kill(os.getpid(), signal.SIGKILL)
        raise (
            OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]))
            if result is None
            else (OSError(errno.EIO, os.strerror(errno.EIO)))
        )


def new_store(folder: Path) -> FileStore:
    def migrate(raw: dict[str, Any]) -> Head:
        return cases.new_head(step_index=int(raw["step_index"]), iteration=raw["step_index"] + 1)

    return FileStore(folder / "state.json", rotate_bytes=ROTATE_BYTES, keep=1000, migrate=migrate)


def nothing(folder: Path) -> None:
    """Leave a folder in which no run ever began."""


def begun(folder: Path) -> None:
    cases.begin(new_store(folder))


def claimed(folder: Path) -> None:
    begun(folder)
    cases.claim(new_store(folder))


def held_by_a_dead_process(folder: Path) -> None:
    begun(folder)
    child = os.fork()
    if child == 0:
        cases.claim(new_store(folder))
        os._exit(0)
    os.waitpid(child, 0)


def about_to_rotate(folder: Path) -> None:
    # One that does not rotate yet, however long a record is.
    store = FileStore(folder / "state.json", rotate_bytes=1024 * 1024)
    cases.begin(store)
    while (folder / "journal.jsonl").stat().st_size < ROTATE_BYTES:
        cases.release(store, cases.claim(store).token)


def rotated_half(folder: Path) -> None:
    about_to_rotate(folder)
    os.link(folder / "journal.jsonl", folder / "journal-000001.jsonl")


def of_another_program(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"step_index": 0, "status": "idle", "mine": 1}')


def edited(folder: Path) -> None:
    begun(folder)
    cases.edit(folder / "state.json", exit_reason="by hand")


def without_head(folder: Path) -> None:
    begun(folder)
    (folder / "state.json").unlink()


def with_torn_journal(folder: Path) -> None:
    begun(folder)
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"revision":2,"at":"x')


def held_token(store: FileStore) -> int:
    head = store.view().head
    assert head is not None
    return head.claims[0].token


def beat(store: FileStore) -> None:
    head = store.view().head
    assert head is not None
    try:
        store.beat(head.claims[0], 1)
    except OSError as error:
        raise StorageFailed("the heartbeat says so by an OSError") from error


SCENARIOS: Mapping[str, tuple[Callable[[Path], None], Callable[[FileStore], object]]] = {
    "init": (nothing, cases.begin),
    "claim": (begun, cases.claim),
    "heartbeat": (claimed, beat),
    "commit": (claimed, lambda store: cases.commit(store, held_token(store))),
    "commit+claim": (claimed, lambda store: cases.commit_and_claim(store, held_token(store))),
    "fail": (claimed, lambda store: cases.fail(store, held_token(store))),
    "release": (claimed, lambda store: cases.release(store, held_token(store))),
    "take-over": (held_by_a_dead_process, cases.claim),
    "rotation": (about_to_rotate, cases.claim),
    "rotation-again": (rotated_half, cases.claim),
    "migration": (of_another_program, cases.claim),
    "edit": (edited, cases.claim),
    "head-lost": (without_head, cases.claim),
    "torn": (with_torn_journal, cases.claim),
}


def act(scenario: str, injector: Injector, folder: Path, report: int) -> None:
    """Do the scenario's action under the fault, then again if it was refused."""
    action, store = SCENARIOS[scenario][1], new_store(folder)
    injector.install()
    said: dict[str, Any] = {}
    try:
        injector.is_armed = True
        action(store)
    except SequencerError as error:
        injector.is_armed = False
        head = new_store(folder).view().head
        said = {"refused": error.message, "revision": head.revision if head else 0}
        store.take_notices()
        action(store)
    finally:
        injector.is_armed = False
    head = store.view().head
    said.update(
        acknowledged=head.revision if head else 0,
        has_fired=injector.has_fired,
        calls=injector.names,
    )
    os.write(report, json.dumps(said).encode())


def run_child(scenario: str, injector: Injector, folder: Path) -> dict[str, Any]:
    """Return what the child said before its end, and how it ended."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        signal.alarm(LIMIT_S)
        try:
            act(scenario, injector, folder, write_fd)
            code = 0
        except BaseException:  # noqa: BLE001 (whatever it is, the parent has to hear of it)
            os.write(write_fd, json.dumps({"bug": traceback.format_exc()}).encode())
        os._exit(code)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    said: dict[str, Any] = json.loads(text) if text else {}
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        said["bug"] = f"it did not end within {LIMIT_S} s"
    return {**said, "was_killed": os.WIFSIGNALED(status)}


def violations(folder: Path, before: list[dict[str, Any]], said: dict[str, Any]) -> list[str]:
    """Return what does not hold after a fresh worker has come to the run."""
    if "bug" in said:
        return [said["bug"]]
    revision = before[-1]["revision"] if before else 0
    wrong = []
    if "nothing was accepted" in said.get("refused", "") and said["revision"] > revision + 1:
        wrong.append(f"refused, and yet at revision {said['revision']}: {said['refused']}")
    store = new_store(folder)
    try:
        head = store.view().head
        if (head.revision if head else 0) < said.get("acknowledged", 0):
            wrong.append(f"acknowledged {said['acknowledged']}, found {head}")
        cases.begin(store)
        head = store.view().head
        assert head is not None
        if head.claims:
            cases.release(store, head.claims[0].token)
        granted = cases.claim(store)
        cases.commit(store, granted.token)
        cases.check_files(folder)
        after = list(store.history())
    except (AssertionError, CorruptState, SequencerError):
        return [*wrong, traceback.format_exc()]
    if after[: len(before)] != before:
        wrong.append(f"what was accepted has changed: {before} -> {after}")
    return wrong


@contextlib.contextmanager
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Let the calls that sync be made, counted and failed, but not wait.

    A kill leaves the page cache as it is, so what is found afterwards is the same; what a
    power cut leaves is another campaign's business.
    """
    with replaced({"fsync": do_not_wait, "fdatasync": do_not_wait}):
        yield


def do_not_wait(fd: Any) -> None:
    os.fstat(fd)


def sweep(
    scenario: str, fault: str, base: Path, first: int = 1, step: int = 1
) -> tuple[int, list[str]]:
    """Try *scenario* under *fault* at its *first* point and each *step*-th one behind it.

    Returns how many points there were, and what broke.
    """
    with nothing_waits_for_the_disk():
        return _sweep(scenario, fault, base, itertools.count(first, step))


def _sweep(scenario: str, fault: str, base: Path, points: Iterator[int]) -> tuple[int, list[str]]:
    found: list[str] = []
    for tried, at in enumerate(points):
        folder = base / f"{at}" / "sync"
        SCENARIOS[scenario][0](folder)
        before = list(new_store(folder).history())
        said = run_child(scenario, Injector(fault, at), folder)
        found += [
            f"{scenario}, {fault} at call {at}: {' | '.join(text.strip().splitlines()[-3:])}"
            for text in violations(folder, before, said)
        ]
        shutil.rmtree(folder.parent)
        if not said["was_killed"] and not said.get("has_fired", True):
            return tried, found
    raise AssertionError("unreachable: the calls of an action have an end")
