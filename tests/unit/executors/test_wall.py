"""The wall around each agent: what it keeps out, what works behind it, and what it ends.

As root and as an ordinary user: root's guards are given to user 65534 there, like the
agents that they start.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sequencer.executors import guard_process
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.guard import DEPTH, DUMPABLE, Prctl
from sequencer.executors.guard_process import Guard
from sequencer.executors.launch import Launch
from sequencer.executors.process import ProcessCore, ProcessEnd, conclude
from sequencer.executors.protocol import Piece
from sequencer.executors.result_file import apply_result
from sequencer.executors.wall import Wall, unavailable_reason
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from tests.contract.executor_cases import Recorder, wait_until

NOBODY = 65_534
LACK = unavailable_reason()
needs_wall = pytest.mark.skipif(LACK is not None, reason=f"no wall here: {LACK}")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the wall is one of Linux")


class Heard:
    """Keeps what an agent says."""

    def __init__(self) -> None:
        self.out = b""
        self.err = b""

    def feed_stdout(self, data: bytes) -> bool:
        self.out += data
        return True

    def feed_stderr(self, data: bytes) -> bool:
        self.err += data
        return True


@pytest.fixture
def core() -> Iterator[ProcessCore]:
    with ProcessCore() as core:
        yield core


Run = Callable[..., tuple[ProcessEnd, Heard]]


@pytest.fixture
def run(core: ProcessCore, tmp_path: Path) -> Run:
    """Return what runs a shell script as an agent, to its end."""

    def ran(script: str, wall: Wall = Wall.SCOPES, **update: Any) -> tuple[ProcessEnd, Heard]:
        heard, cancellation = Heard(), Cancellation()
        end = core.run(launch(tmp_path, script, wall, **update), heard, cancellation)
        cancellation.close()
        return end, heard

    return ran


def launch(folder: Path, script: str, wall: Wall = Wall.SCOPES, **update: Any) -> Launch:
    facts: dict[str, Any] = {
        "identity": None,
        "argv": ["sh", "-c", script],
        "environment": {"PATH": os.environ["PATH"]},
        "cwd": folder,
        "prompt": b"",
        "timeout_s": 60,
        "wall": wall,
    }
    return Launch(**{**facts, **update})


TAKES_DESCRIPTORS = """
import os, resource
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        nothing = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(nothing, fd)
        with open("orphan", "w") as file:
            file.write(str(os.getpid()))
        os.execve("/bin/sleep", ["sleep", "60"], {})
    os._exit(0)
os.wait()
while not os.path.exists("orphan") or not open("orphan").read():
    pass
resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))
"""


@on_linux
@pytest.mark.parametrize("wall", Wall)
def test_an_agent_that_takes_its_guards_descriptors_leaves_no_orphan(
    core: ProcessCore, tmp_path: Path, wall: Wall
) -> None:
    update = {"argv": [sys.executable, "-c", TAKES_DESCRIPTORS]}
    end = core.run(launch(tmp_path, "", wall, **update), Heard(), Cancellation())
    assert end.is_guard_lost
    assert not is_alive(int(pid_in(tmp_path / "orphan")))


# --- behind the wall ---------------------------------------------------------------------


@needs_wall
@pytest.mark.parametrize(("wall", "code"), [(Wall.SCOPES, 1), (Wall.NONE, 0)])
def test_an_agent_cannot_signal_outside_processes(run: Run, wall: Wall, code: int) -> None:
    # Neither its guard, nor its sequencer, which is here a person's server as well.
    end, heard = run(f"kill -0 {os.getpid()}", wall)
    assert (end.exit_code, end.lacks_wall) == (code, False), heard.err
    end, heard = run("kill -0 $PPID", wall)
    assert end.exit_code == code, heard.err


@needs_wall
def test_an_agent_can_signal_processes_it_started(run: Run) -> None:
    end, heard = run("sleep 60 & a=$!; setsid sleep 60 & kill $a $!; wait; echo gone")
    assert (end.exit_code, heard.out) == (0, b"gone\n"), heard.err


@needs_wall
@pytest.mark.parametrize(("wall", "is_set"), [(Wall.SCOPES, b"1"), (Wall.NONE, b"0")])
def test_an_agent_cannot_gain_privileges(run: Run, wall: Wall, is_set: bytes) -> None:
    _, heard = run("grep NoNewPrivs /proc/self/status", wall)
    assert heard.out.split() == [b"NoNewPrivs:", is_set]


@on_linux
@pytest.mark.parametrize("wall", Wall)
def test_its_output_is_still_a_pipe_that_it_can_open(run: Run, wall: Wall) -> None:
    end, heard = run("echo why > /dev/stderr; echo so > /dev/stdout; echo x >/proc/self/fd/1", wall)
    assert (end.exit_code, heard.out, heard.err) == (0, b"so\nx\n", b"why\n")


@needs_wall
def test_an_agent_reaches_sockets_with_a_path_but_not_abstract_ones(run: Run) -> None:
    folder = Path(tempfile.mkdtemp(prefix="wall-"))
    script = (
        f"exec {sys.executable} -I -S -c 'import socket, sys\n"
        "for name in sys.argv[1:]:\n"
        '    try: socket.socket(socket.AF_UNIX).connect(name.replace("@", chr(0)))\n'
        "    except OSError as error: print(error.errno)\n"
        "    else: print(0)' "
    )
    name = f"@wall-{os.getpid()}"
    try:
        with socket.socket(socket.AF_UNIX) as path, socket.socket(socket.AF_UNIX) as abstract:
            path.bind(str(folder / "s"))
            path.listen()
            abstract.bind(name.replace("@", "\0"))
            abstract.listen()
            behind, before = (run(f"{script} {folder}/s {name}", wall)[1].out for wall in Wall)
    finally:
        shutil.rmtree(folder)
    assert (behind.split(), before.split()) == ([b"0", b"1"], [b"0", b"0"])


@needs_wall
def test_an_agent_can_mount_in_its_own_namespace(run: Run, tmp_path: Path) -> None:
    mount = f"unshare -Urm sh -c 'mount -t tmpfs none {tmp_path} && echo mounted'"
    if run(mount, Wall.NONE)[1].out != b"mounted\n":
        pytest.skip("this system lets nobody mount in a namespace of their own")
    assert run(mount)[1].out == b"mounted\n"


@needs_wall
def test_killing_an_agent_also_ends_processes_that_left_its_session(
    run: Run, tmp_path: Path
) -> None:
    script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > pid; sleep 60' & sleep 60"
    end, _ = run(script, timeout_s=1, grace_s=0.1)
    assert (end.ended_by, end.survivors) == ("timeout", 0)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@needs_wall
def test_walls_nest_up_to_the_kernels_limit(core: ProcessCore, tmp_path: Path) -> None:
    # An agent that starts agents: the kernel has 16 domains, so at last there is no wall, and the
    # agent starts all the same. The wall of this one has taken some.
    program = (
        f"import sys\nsys.path.insert(0, {str(guard_process._PROGRAM.parent)!r})\n"
        "import guard\nprctl = guard.Prctl()\n"
        "print([guard.Domain(prctl).enter() for _ in range(17)])\n"
    )
    heard, cancellation = Heard(), Cancellation()
    argv = [sys.executable, "-I", "-S", "-c", program]
    core.run(launch(tmp_path, "", argv=argv), heard, cancellation)
    cancellation.close()
    assert heard.out.count(b"True") == math.ceil((16 - DEPTH) / DEPTH)
    assert heard.out.rstrip().endswith(b"False, False]")


# --- of an ordinary user -----------------------------------------------------------------


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let guards be an ordinary user's; return a folder that is this user's."""
    folder = Path(tempfile.mkdtemp(prefix="wall-"))
    try:
        folder.chmod(0o755)
        if os.geteuid() == 0:
            program = Path(shutil.copy(guard_process._PROGRAM, folder))
            monkeypatch.setattr(guard_process, "_PROGRAM", program)
            monkeypatch.setattr(sys, "executable", python_of_everybody())
            popen = partial(subprocess.Popen, user=NOBODY, group=NOBODY, extra_groups=())
            monkeypatch.setattr("sequencer.executors.guard_process.subprocess.Popen", popen)
            work = folder / "work"
            work.mkdir()
            os.chown(work, NOBODY, NOBODY)
            yield work
        else:
            yield folder
    finally:
        shutil.rmtree(folder)


def python_of_everybody() -> str:
    """Return a Python that an ordinary user may start; a test is skipped without one."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        argv = [path, "-I", "-S", "-c", "import ctypes, sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            done = subprocess.run(
                argv, user=NOBODY, group=NOBODY, extra_groups=(), cwd="/", check=False
            )
        except OSError:
            continue
        if done.returncode == 0:
            return path
    pytest.skip("user 65534 can start no Python from 3.11 on")


ATTACK = r"""
for pid in %s; do
  tr '\0' ' ' < /proc/$pid/environ && echo READ
  echo forged > /proc/$pid/fd/1 && echo WROTE
  kill -0 $pid && echo SIGNALED
  readlink /proc/$pid/cwd && echo FOLLOWED
done
exit 0
"""


@pytest.mark.slow(sample=1)
@needs_wall
@pytest.mark.parametrize(
    ("wall", "found"),
    [(Wall.SCOPES, set()), (Wall.NONE, {b"READ", b"WROTE", b"SIGNALED", b"FOLLOWED"})],
)
def test_an_ordinary_users_agents_do_not_reach_each_other(
    ordinary: Path, wall: Wall, found: set[bytes]
) -> None:
    victim, attacker = guard_of_user(), guard_of_user()
    try:
        environment = {"PATH": os.environ["PATH"], "SEQUENCER_RESULT": "/s3cret"}
        victim.run(launch(ordinary, "echo $$ > pid; sleep 60", wall, environment=environment))
        assert wait_until(lambda: (ordinary / "pid").exists() and pid_in(ordinary / "pid"), 20)
        # The other guard and the sequencer as well: what they know is not the agent's.
        pids = f"{pid_in(ordinary / 'pid')} {victim.pid}"
        attacker.run(launch(ordinary, ATTACK % pids, wall))
        said = output_of(attacker)
    finally:
        victim.stop()
        victim.close()
        attacker.close()
    assert {word for word in said.split() if word.isupper()} == found
    assert (b"s3cret" in said) is bool(found)


@needs_wall
def test_a_wall_does_not_protect_against_an_agent_without_one(ordinary: Path) -> None:
    # Why a decision does not run beside `wall: none`, see `engine.exclusion`.
    victim, attacker = guard_of_user(), guard_of_user()
    try:
        victim.run(launch(ordinary, "echo $$ > pid; sleep 60"))
        assert wait_until(lambda: (ordinary / "pid").exists() and pid_in(ordinary / "pid"), 20)
        attacker.run(launch(ordinary, ATTACK % pid_in(ordinary / "pid"), Wall.NONE))
        assert b"WROTE" in output_of(attacker)
    finally:
        victim.stop()
        victim.close()
        attacker.close()


@on_linux
def test_an_agent_finds_no_secret_in_its_guard(
    ordinary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "s3cret")
    guard = Guard()
    try:
        guard.run(launch(ordinary, "tr '\\0' '\\n' < /proc/$PPID/environ", Wall.NONE))
        said = output_of(guard)
    finally:
        guard.close()
    assert b"SEQUENCER_GUARD=" in said
    assert b"s3cret" not in said


@on_linux
def test_a_nondumpable_process_shows_its_environment_only_to_root(
    ordinary: Path,
) -> None:
    del ordinary
    source = Path(guard_process.__file__).with_name("guard.py").read_text()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
    program = f"{source}\nprctl = Prctl()\nprint(flush=True)\ninput()\n".replace("main()\n", "\n")
    hidden = program.replace("print(", f"prctl.set({DUMPABLE}, 0); print(")
    for text, can_read in ((program, True), (hidden, False)):
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", text.replace('"__main__"', "None")],
            env={"SECRET": "s3cret"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **user,
        )
        with process:
            assert process.stdout is not None
            process.stdout.readline()
            look = ["cat", f"/proc/{process.pid}/environ"]
            seen = subprocess.run(look, capture_output=True, cwd="/", check=False, **user)
            process.kill()
        assert (b"s3cret" in seen.stdout) is can_read, seen.stderr


def guard_of_user() -> Guard:
    """Return a guard whose pipes are its user's too, as they are without root."""
    guard = Guard()
    if os.geteuid() == 0:
        for fd in (guard.stdout, guard.stderr):
            os.fchown(fd, NOBODY, NOBODY)
    return guard


def pid_in(path: Path) -> str:
    return path.read_text().strip()


def output_of(guard: Guard) -> bytes:
    """Return all that an agent prints."""
    os.set_blocking(guard.stdout, True)
    data = b""
    while piece := os.read(guard.stdout, 65_536):
        data += piece
    return data


# --- without a wall ----------------------------------------------------------------------


@pytest.fixture
def _has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel be one that knows no such system call."""
    text = guard_process._PROGRAM.read_text()
    assert "_CREATE_RULESET, _RESTRICT_SELF = 444, 446" in text
    program = tmp_path / "guard.py"
    program.write_text(text.replace("_RESTRICT_SELF = 444, 446", "_RESTRICT_SELF = 9999, 9999"))
    monkeypatch.setattr(guard_process, "_PROGRAM", program)


@pytest.mark.usefixtures("_has_none")
def test_an_agent_starts_without_a_wall_and_it_is_reported_once(run: Run) -> None:
    ends = [run("exit 0")[0] for _ in range(2)]
    assert [end.exit_code for end in ends] == [0, 0]
    assert [end.lacks_wall for end in ends] == [True, False]
    _, heard = run("grep -s NoNewPrivs /proc/self/status; kill -0 $PPID && echo signaled")
    assert heard.out.split()[-1] == b"signaled"
    assert b"1" not in heard.out


@pytest.mark.usefixtures("_has_none")
def test_nothing_is_reported_if_no_wall_was_requested(run: Run) -> None:
    assert not run("exit 0", Wall.NONE)[0].lacks_wall


def test_the_step_log_reports_a_missing_wall_once() -> None:
    heard = Recorder()

    class Request:
        result_path = Path("/nonexistent/result.json")
        decides = False

    ok = Outcome(status=OutcomeStatus.OK)
    for lacks in (True, False):
        end = ProcessEnd(exit_code=0, lacks_wall=lacks)
        conclude(end, Request(), heard, lambda _: ok)  # type: ignore[arg-type]
    assert heard.text(Piece.NOTICE).count("there is no wall around agents") == 1


# --- answers that decide -----------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        '{"status": "complete", "output": "yes"}',
        '{"status": "failed"}',
        '{"output": {"pass": true}}',
        "no JSON",
    ],
)
def test_a_result_file_changes_no_answer_that_decides(tmp_path: Path, content: str) -> None:
    path, told = tmp_path / "result.json", list[str]()
    path.write_text(content)
    before = Outcome(status=OutcomeStatus.OK, output="no")
    assert apply_result(path, before, lambda: told.append("ignored")) == before
    assert told == ["ignored"]


def test_usage_in_an_ignored_result_file_still_counts(tmp_path: Path) -> None:
    path, told = tmp_path / "result.json", list[str]()
    path.write_text('{"usage": {"cost_usd": 0.5}}')
    before = Outcome(status=OutcomeStatus.OK, output="no", usage=Usage(cost_usd=0.25))
    after = apply_result(path, before, lambda: told.append("ignored"))
    assert (after.output, after.usage.cost_usd, told) == ("no", 0.5, [])


def test_a_signal_that_ends_a_guard_ends_its_agent_within_the_wall(
    core: ProcessCore, tmp_path: Path
) -> None:
    core.prepare()
    guard = core._spare
    assert guard is not None
    guard.run(launch(tmp_path, "echo $$ > pid; exec sleep 60"))
    assert wait_until(lambda: (tmp_path / "pid").exists() and pid_in(tmp_path / "pid"), 20)
    agent = int(pid_in(tmp_path / "pid"))
    os.kill(guard.pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(agent), 10), "PDEATHSIG does not reach it"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_prctl_does_nothing_where_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    prctl = Prctl()
    prctl.set(DUMPABLE, 0)
    assert not prctl.is_there
    unavailable_reason.cache_clear()
    try:
        assert unavailable_reason() == "only Linux has such a wall"
    finally:
        unavailable_reason.cache_clear()
