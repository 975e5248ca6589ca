"""Who is inside of an agent: by the mark, by the guard above, and whatever a process does."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sequencer.executors.cancellation import Cancellation
from sequencer.executors.guard import DEPTH
from sequencer.executors.launch import Launch
from sequencer.executors.process import ProcessCore
from sequencer.store import identity
from sequencer.store.identity import INSIDE_AGENT, is_agent, is_inside_agent
from tests.inside import below_a_guard

ROOT = str(Path(__file__).parents[3])
NOBODY = 65534
ASK = f"import sys; sys.path.insert(0, {ROOT!r}); from sequencer.store import identity as i; "
ASKS = [sys.executable, "-c", f"{ASK}print(i.is_inside_agent())"]
ELSEWHERE = [sys.executable, "-c", f"{ASK}print(i._is_below_agent_by_psutil(i.os.getpid()))"]
WALLED = f"""{ASK}
import ctypes, os
libc, scopes = ctypes.CDLL(None), (ctypes.c_uint64 * 3)(0, 0, 3)
fd = libc.syscall(444, scopes, ctypes.c_size_t(24), 0)
libc.prctl(38, 1, 0, 0, 0)
assert libc.syscall(446, fd, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="walks /proc")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


def has_scopes() -> bool:
    """Return whether this kernel has Landlock's scopes."""
    return sys.platform == "linux" and int(ctypes.CDLL(None).syscall(444, None, 0, 1)) >= 6


def has_namespaces() -> bool:
    command = ["unshare", "-Urpf", "--mount-proc", "true"]
    has_program = shutil.which("unshare") is not None
    return has_program and not subprocess.run(command, check=False).returncode


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="no user namespaces here")
needs_scopes = pytest.mark.skipif(not has_scopes(), reason="no scopes of Landlock here")


def answer(command: Sequence[str], **how: object) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=True, **how)  # type: ignore[call-overload]
    return str(ran.stdout).strip()


class Heard:
    """What an agent said."""

    def __init__(self) -> None:
        self.text = b""

    def feed_stdout(self, data: bytes) -> bool:
        self.text += data
        return True

    def feed_stderr(self, data: bytes) -> bool:
        return self.feed_stdout(data)


def said_below_a_real_guard(folder: Path, script: str) -> str:
    """Return what the shell says about *script* that a real guard runs, without any mark."""
    heard, path = Heard(), os.environ["PATH"]
    argv = ["sh", "-c", script, "sh", *ASKS]
    launch = Launch(identity=None, argv=argv, environment={"PATH": path}, cwd=folder, prompt=b"")
    with ProcessCore() as core:
        core.run(launch, heard, Cancellation())
    return heard.text.decode().strip()


WAYS = {
    "nothing": '"$@"',
    "an environment of its own": 'env -i "$@"',
    "a session of its own": 'setsid -w env -i "$@"',
    "an orphan": '(setsid env -i "$@" > said &); while [ ! -s said ]; do sleep 0.1; done; cat said',
}


@needs_linux
@pytest.mark.parametrize("way", WAYS)
def test_every_process_below_a_guard_is_inside_an_agent(tmp_path: Path, way: str) -> None:
    assert said_below_a_real_guard(tmp_path, WAYS[way]) == "True"


@needs_namespaces
def test_a_new_pid_namespace_does_not_hide_the_guard_from_the_old_proc(
    tmp_path: Path,
) -> None:
    assert said_below_a_real_guard(tmp_path, 'env -i unshare -Urpf "$@"') == "True"


@needs_namespaces
@needs_scopes
def test_the_wall_reveals_an_agent_when_proc_shows_no_guard() -> None:
    hidden = ["unshare", "-Urpf", "--mount-proc", *ASKS]
    assert answer(hidden) == "False"  # as docs/protocol.md says: a container's people decide
    assert answer([sys.executable, "-c", WALLED, *hidden]) == "True"


def walled(depth: int) -> list[str]:
    """Return the command line that asks inside of so many walls."""
    return [*[sys.executable, "-c", WALLED] * depth, *ASKS]


@needs_scopes
def test_a_foreign_sandbox_does_not_make_a_process_an_agent() -> None:
    assert answer(walled(DEPTH - 1)) == "False"


@pytest.mark.slow
@needs_scopes
def test_a_process_inside_the_maximum_number_of_walls_is_an_agent() -> None:
    assert answer(walled(16)) == "True"


@needs_scopes
def test_a_process_that_outlived_its_guard_is_known_by_its_wall() -> None:
    """So is a process whose /proc shows no guard."""
    enters = "from sequencer.executors.guard import Domain, Prctl; Domain(Prctl()).enter(); "
    code = f"{ASK}{enters}i.os.execvp(sys.argv[1], sys.argv[1:])"
    assert answer([sys.executable, "-c", code, *ASKS]) == "True"
    assert identity._DEPTH == DEPTH


def test_a_person_and_an_editor_of_the_guard_are_not_inside_an_agent() -> None:
    guard = "/x/sequencer/executors/guard.py"
    script = "import subprocess, sys; subprocess.run(sys.argv[2:], check=True)"
    assert answer(ASKS) == "False"
    assert answer([sys.executable, "-c", script, guard, *ASKS]) == "False"


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("value", ["7", ""])
def test_the_mark_counts_with_any_value_and_after_its_removal(value: str) -> None:
    marked = {**os.environ, INSIDE_AGENT: value}
    assert answer(ASKS, env=marked) == "True"
    code = f"{ASK}i.os.environ.clear(); print(i.is_inside_agent())"
    assert answer([sys.executable, "-c", code], env=marked) == "True"
    unset = ["sh", "-c", f'env -u {INSIDE_AGENT} "$@"; :', "sh", *ASKS]
    assert answer(unset, env=marked) == "True"


def test_the_mark_counts_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_inside_agent()
    monkeypatch.setenv(INSIDE_AGENT, "")
    assert is_inside_agent()


def test_without_proc_an_agent_is_still_recognized(tmp_path: Path) -> None:
    assert answer(ELSEWHERE) == "False"
    assert answer(below_a_guard(tmp_path, ELSEWHERE)) == "True"
    assert answer(ELSEWHERE, env={**os.environ, INSIDE_AGENT: ""}) == "True"


@needs_linux
def test_another_process_can_be_asked_about(tmp_path: Path) -> None:
    assert not is_agent(os.getpid())
    assert not is_agent(2**22 + 1)
    sleeps = [
        sys.executable,
        "-c",
        "import os, time; print(os.getpid(), flush=True); time.sleep(60)",
    ]
    with subprocess.Popen(below_a_guard(tmp_path, sleeps), stdout=subprocess.PIPE) as guard:
        assert guard.stdout is not None
        pid = int(guard.stdout.readline())
        assert is_agent(pid)
        os.kill(pid, 9)


BECOMES = f"{ASK}i.os.setgroups([]); i.os.setgid({NOBODY}); i.os.setuid({NOBODY}); "
BECOMES += "print(i._is_below_agent('self'))"


@needs_linux
@needs_root
def test_a_guard_of_another_user_is_seen_but_not_their_environment(
    tmp_path: Path,
) -> None:
    becomes = [sys.executable, "-c", BECOMES]
    assert answer(below_a_guard(tmp_path, becomes)) == "True"
    marked = {**os.environ, INSIDE_AGENT: "7"}
    assert answer(["sh", "-c", f'env -u {INSIDE_AGENT} "$@"; :', "sh", *becomes], env=marked) == (
        "False"
    )


class Looks:
    """Processes as /proc might show them, one look after the other."""

    def __init__(self, *looks: dict[int | str, tuple[int, bool] | None]) -> None:
        self.looks = list(looks)

    def __call__(self, pid: int | str) -> identity._Ancestor | None:
        now = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        found = now.get(pid)
        return None if found is None else identity._Ancestor(*found)


@pytest.fixture
def among(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool | None]:
    def look(*looks: dict[int | str, tuple[int, bool] | None]) -> bool | None:
        monkeypatch.setattr(identity, "_read_ancestor", Looks(*looks))
        monkeypatch.setattr(identity, "pid_namespace", lambda: identity._FIRST_NAMESPACE)
        return identity._is_below_agent("self")

    return look


def test_a_parent_that_ends_meanwhile_does_not_hide_the_guard(
    among: Callable[..., bool | None],
) -> None:
    """Its number is a stranger's by then, or nobody's, and the orphan has another parent."""
    before: dict[int | str, tuple[int, bool] | None] = {"self": (5, False)}
    after = {"self": (9, False), 9: (1, True)}
    assert among(before, after) is True
    assert among(before, {**after, 5: (1, False)}) is True
    assert among(before, {"self": (1, False), 1: (0, False), 5: (0, True)}) is False


def test_hidden_ancestors_are_unknown_and_an_endless_chain_is_an_agent(
    among: Callable[..., bool | None],
) -> None:
    assert among({"self": (5, False)}) is None
    assert among({}) is None
    endless = {n: (n + 1, False) for n in range(1, 10_000)}
    assert among({"self": (1, False), **endless}) is True


def test_the_top_of_another_namespace_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_read_ancestor", Looks({"self": (0, False)}))
    monkeypatch.setattr(identity, "pid_namespace", lambda: "pid:[4026532000]")
    assert identity._is_below_agent("self") is None


def test_the_check_runs_once_and_costs_little() -> None:
    identity._was_started_by_agent.cache_clear()
    is_inside_agent()
    began = time.perf_counter()
    for _ in range(1000):
        is_inside_agent()
    assert time.perf_counter() - began < 1.0
    assert identity._was_started_by_agent.cache_info().misses == 1
