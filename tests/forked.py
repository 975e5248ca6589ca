"""``python -m sequencer`` without the start of an interpreter: a fork of one that waits.

Hundreds of tests run a command as a process of its own, and of what that costs nine tenths
is importing. One process a test session imports the command line, and forks itself for each
command: with its own pid, folder, environment, descriptors, signals and exit code, and
nothing done before by another. A copy of the program, first in PYTHONPATH, has a process of
its own, and packages in the other folders of PYTHONPATH are installed for a command. `Forked`
is a `subprocess.Popen` in all else.

Not shown by it: how an interpreter starts. A test of imports, of start-up time or of what
Python itself reads from the environment uses `subprocess`, as `Forked` does for the latter.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent
_COMMAND = [sys.executable, "-m", "sequencer"]
_FOLLOWED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED")
"""What Python reads at its start and a fork can still follow, or has no use for."""
_PRELOADED = ("LD_PRELOAD", "FAKETIME_NO_CACHE", "DONT_FAKE_MONOTONIC", "NO_FAKE_STAT")
"""What only one that starts can follow: there is a process that waits for each set of values."""
_STREAMS = slice(3, 9)
"""Where in the arguments of `_execute_child` the ends of the pipes are, from *startupinfo* on:
for each of the three streams one for the child and one for the parent."""
_NUMBER_BYTES = 8
_SOCKET = "FORKED_COMMANDS_SOCKET"
"""Variable with the path of the socket of a process that waits already."""


def _read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of *variables* that an interpreter looks at once, when it starts."""
    return {
        name: value
        for name, value in variables.items()
        if (name.startswith(("PYTHON", "LD_")) and name not in {*_FOLLOWED, *_PRELOADED})
        # Python takes every locale for UTF-8 that does not name another encoding.
        or (name.startswith(("LC_", "LANG")) and "." in value and "utf" not in value.lower())
    }


def _is_measured(variables: Mapping[str, str]) -> bool:
    """Return whether somebody wants to know which lines of the command are run."""
    return any(name.startswith("COVERAGE_") for name in variables)


class Forked(subprocess.Popen[Any]):
    """A `subprocess.Popen` of ``python -m sequencer …`` that starts at once."""

    _answers: socket.socket | None = None

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """Ask the process that waits; whatever is unusual goes the usual way."""
        _, preexec_fn, _, pass_fds, cwd, env = rest[:6]
        streams = rest[6:][_STREAMS]
        others = rest[6:][9:]
        variables = dict(os.environ if env is None else env)
        variables.pop(_SOCKET, None)
        is_usual = (
            sys.platform == "linux"
            and list(args[:3]) == _COMMAND
            and not (preexec_fn or pass_fds)
            # restore_signals, gid, gids, uid, umask; behind it start_new_session, process_group
            and (*others[:5], others[6]) == (True, None, None, None, -1, -1)
            and _read_at_start(variables) == _read_at_start(os.environ)
            and not _is_measured(variables)
        )
        if not is_usual:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        request = {
            "arguments": [os.fsdecode(word) for word in args[3:]],
            "folder": str(cwd or Path.cwd()),
            "variables": variables,
            "has_own_session": others[5],
        }
        child_ends = (streams[0], streams[3], streams[5])
        fds = [end if end >= 0 else number for number, end in enumerate(child_ends)]
        self._answers = _connected(fds, request)
        self.pid = self._receive()
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]

    def _receive(self) -> int:
        assert self._answers is not None
        answer = self._answers.recv(_NUMBER_BYTES, socket.MSG_WAITALL)
        if len(answer) < _NUMBER_BYTES:
            raise ChildProcessError("the process that waits for commands is gone")
        return int.from_bytes(answer, "little", signed=True)

    def _internal_poll(self, *rest: Any, **more: Any) -> int | None:
        if self._answers is None:
            return super()._internal_poll(*rest, **more)  # type: ignore[misc,no-any-return]
        return self._ended(0)

    def _wait(self, timeout: float | None) -> int | None:
        if self._answers is None:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        if self._ended(None if timeout is None else max(timeout, 0.0)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and self._answers is not None:
            poller = select.poll()
            poller.register(self._answers, select.POLLIN)
            if poller.poll(None if timeout_s is None else timeout_s * 1000):
                self.returncode = self._receive()
                self._answers.close()
        return self.returncode


def run(
    command: list[str], *, timeout: float = 60.0, capture_output: bool = False, **how: Any
) -> subprocess.CompletedProcess[Any]:
    """Run *command* to its end, as `subprocess.run` does with ``check=False``.

    Raises:
        TimeoutExpired: it did not end in time, and was killed.
    """
    if capture_output:
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked(command, **how) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def put_on_path(folder: Path) -> dict[str, str]:
    """Write a program ``sequencer`` into *folder*, for shells; return the variables it needs."""
    program = folder / "sequencer"
    program.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.forked import Forked\n"
        f"sys.exit(Forked([*{_COMMAND!r}, *sys.argv[1:]]).wait())\n"
    )
    program.chmod(0o755)
    return {_SOCKET: str(_waiting_process().path)}


# --- the process that waits ---------------------------------------------------------------


class _Waiting:
    """Forks a command for each request; ends with the process that started it."""

    def __init__(self, preloaded: Iterable[tuple[str, str]], root: Path = ROOT) -> None:
        # Only this user's processes get as far as the socket.
        self.path = Path(tempfile.mkdtemp(prefix="sequencer-forks-")) / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(64)
        read_fd, self._alive_fd = os.pipe()
        with listener:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno()), str(read_fd)],
                cwd=root,
                env=os.environ | {"PYTHONPATH": str(root)} | dict(preloaded),
                pass_fds=[listener.fileno(), read_fd],
                stdin=subprocess.DEVNULL,
            )
        os.close(read_fd)
        atexit.register(self.end)

    def end(self) -> None:
        atexit.unregister(self.end)
        os.close(self._alive_fd)
        self._process.wait(20)


@functools.cache
def _waiting_process(preloaded: tuple[tuple[str, str], ...] = ()) -> _Waiting:
    return _Waiting(preloaded)


_copies: dict[Path, _Waiting] = {}
"""The process that waits for commands of a copy of the program; at most one, each is large."""


def _waiting_copy(root: Path) -> _Waiting:
    if root not in _copies:
        for other in list(_copies):
            _copies.pop(other).end()
        _copies[root] = _Waiting((), root)
    return _copies[root]


def _search_path(variables: Mapping[str, str]) -> list[str]:
    return [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _copied_program(variables: Mapping[str, str]) -> Path | None:
    """Return the first folder of PYTHONPATH that has a program, if that is a copy of it."""
    for entry in map(Path, _search_path(variables)):
        if (entry / "sequencer/__init__.py").exists():
            return entry if entry.resolve() != ROOT else None
    return None


def _connected(fds: list[int], request: Mapping[str, Any]) -> socket.socket:
    """Ask for a command; return where its pid and its exit code will come."""
    variables = request["variables"]
    preloaded = tuple((name, variables[name]) for name in _PRELOADED if name in variables)
    copy = _copied_program(variables)
    if preloaded:
        path = str(_waiting_process(preloaded).path)
    elif copy:
        path = str(_waiting_copy(copy).path)
    else:
        path = os.environ.get(_SOCKET) or str(_waiting_process().path)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    socket.send_fds(connection, [b"?"], fds)
    body = json.dumps(request).encode()
    connection.sendall(len(body).to_bytes(_NUMBER_BYTES, "little") + body)
    return connection


def serve(listener_fd: int, alive_fd: int) -> None:
    """Fork a command for each request, until the other end of *alive_fd* is closed."""
    prepare(is_partial=Path.cwd() != ROOT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=listener_fd)
    path = Path(listener.getsockname())
    poller = select.poll()
    for fd in (listener_fd, alive_fd):
        poller.register(fd, select.POLLIN)
    at_work: dict[int, tuple[int, socket.socket]] = {}
    while alive_fd not in (ready := dict(poller.poll())):
        for fd in ready.keys() & at_work.keys():
            poller.unregister(fd)
            _tell_end(fd, *at_work.pop(fd))
        if listener_fd in ready:
            connection, _ = listener.accept()
            pid = _begun(connection)
            fd = os.pidfd_open(pid)
            at_work[fd] = (pid, connection)
            poller.register(fd, select.POLLIN)
    path.unlink()
    path.parent.rmdir()


def prepare(*, is_partial: bool = False) -> None:
    """Do all that each fork of this process would do for itself before its command begins.

    Not in a process of pytest-xdist: commands run here, and close the descriptors they inherit.
    """
    import_all(is_partial=is_partial)
    _warm_up()
    gc.collect()
    gc.freeze()  # what is never collected is never copied either


def import_all(*, is_partial: bool = False) -> None:
    """Import every part of the program that a command can need; *is_partial* if some lack."""
    package = importlib.import_module("sequencer")
    for module in pkgutil.walk_packages(package.__path__, "sequencer."):
        with contextlib.suppress(ImportError) if is_partial else contextlib.nullcontext():
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def _warm_up() -> None:
    """Let what a process works out once be there: patterns, the settings' keys, the options.

    Nothing of a run is looked at, and no descriptor stays open.
    """
    kept = dict(os.environ)
    os.environ["SEQUENCER_TRUST"] = "all"
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        Path("orchestration.yaml").write_text("agent: {default: rehearsal}\n")
        for sys.argv in (["sequencer", "plan", "--list"], ["sequencer", "check"]):
            with contextlib.suppress(SystemExit):
                runpy.run_module("sequencer", run_name="__main__", alter_sys=True)
    # The patterns of secrets take longer to compile than the rest of a command that runs a step.
    redaction = importlib.import_module("sequencer.executors.redaction").Redaction()
    redaction.hide(b"a" * 1024)
    redaction.start_stream().feed(b"a")
    os.environ.clear()
    os.environ.update(kept)
    # A command closes what it inherits, and would close the same numbers again with these.
    importlib.import_module("sequencer.store.folder")._cache.clear()


def _begun(connection: socket.socket) -> int:
    """Fork the command that is asked for, and tell its pid."""
    _, fds, _, _ = socket.recv_fds(connection, 1, 3)
    size = int.from_bytes(connection.recv(_NUMBER_BYTES, socket.MSG_WAITALL), "little")
    request = json.loads(connection.recv(size, socket.MSG_WAITALL))
    if "mcp" in request["arguments"]:
        importlib.import_module("mcp.server.mcpserver")  # for all that come, in a second
    child = os.fork()
    if child == 0:
        _become(request, fds)
    # A reader of its output is to see the end when the command ends.
    for fd in fds:
        os.close(fd)
    with contextlib.suppress(OSError):
        connection.sendall(child.to_bytes(_NUMBER_BYTES, "little", signed=True))
    return child


def _tell_end(pidfd: int, pid: int, connection: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(pidfd)
    with connection, contextlib.suppress(OSError):
        connection.sendall(code.to_bytes(_NUMBER_BYTES, "little", signed=True))


def _become(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """Be ``python -m sequencer`` as *request* says, with *fds* as the three streams."""
    code = 70
    try:
        # Above the three first: one of them may be where another has to go.
        copies = [os.dup(fd) for fd in fds]
        for number, fd in enumerate(copies):
            os.dup2(fd, number)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # noqa: PTH208
        if request["has_own_session"]:
            os.setsid()
        os.chdir(request["folder"])
        variables = request["variables"]
        os.environ.clear()
        os.environ.update(variables)
        time.tzset()
        tempfile.tempdir = None  # its TMPDIR counts
        sys.dont_write_bytecode = bool(variables.get("PYTHONDONTWRITEBYTECODE"))
        _open_streams(is_unbuffered=bool(variables.get("PYTHONUNBUFFERED")))
        program = Path(str(sys.modules["sequencer"].__file__))
        sys.argv = [str(program.with_name("__main__.py")), *request["arguments"]]
        sys.path[0] = str(Path.cwd())
        known = sys.path[1:]
        if packages := [entry for entry in _search_path(variables) if entry not in known]:
            _add_packages(packages)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _main()
    except BaseException:  # noqa: BLE001 (nothing of this process may go on as the server)
        traceback.print_exc()
    os._exit(code)


def _add_packages(folders: list[str]) -> None:
    """Find what is installed in *folders*, as if they had been in the path at the start."""
    sys.path[1:1] = folders
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        if name.startswith(("sequencer.cli", "sequencer.plugins")):
            del sys.modules[name]  # commands get options of packages when they are imported
        elif name.startswith("sequencer."):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


def _open_streams(*, is_unbuffered: bool) -> None:
    def open_stream(fd: int, mode: str, errors: str, *, is_by_line: bool) -> io.TextIOWrapper:
        raw = open(fd, f"{mode}b", closefd=False)  # noqa: SIM115 (open as long as it is)
        return io.TextIOWrapper(
            raw, "utf-8", errors, line_buffering=is_by_line, write_through=is_unbuffered
        )

    sys.stdin = open_stream(0, "r", "strict", is_by_line=False)
    sys.stdout = open_stream(1, "w", "strict", is_by_line=os.isatty(1))
    sys.stderr = open_stream(2, "w", "backslashreplace", is_by_line=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def _main() -> int:
    """Run the command and end it as an interpreter ends; return the exit code."""
    code = 0
    try:
        runpy.run_module("sequencer", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 (an interpreter prints it and ends with 1)
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120
    return code


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    serve(int(sys.argv[1]), int(sys.argv[2]))
