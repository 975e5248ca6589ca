"""A run that is told to end does so within its agents' grace and ten seconds, in every store."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sequencer.errors import WaitsForPerson
from tests.acceptance.cli_process import until
from tests.clones import ENVIRONMENT, Shared, git
from tests.storage.commands import environment, sequencer
from tests.unit.posting.desk import Reply, open_desk

GRACE_S = 1.0
AT_MOST_S = GRACE_S + 10.0
GATED = {"name": "main", "requires_approval": True}
AGENT = """\
import os, sys, time
sys.stdin.read()
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
while os.path.exists("hold"):
    time.sleep(0.02)
"""
HOLD_LOCK = """\
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def project(folder: Path, **settings: object) -> Path:
    (folder / "prompts").mkdir(parents=True)
    for name in ("supervisor", "main"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do {name}.\n")
    argv = [sys.executable, "-IS", "agent.py"]
    document = {
        "workflow": {"name": "standard"},
        "agent": {"default": "script"},
        "agents": {"script": {"kind": "command", "argv": argv, "grace_s": GRACE_S}},
        **settings,
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    (folder / "agent.py").write_text(AGENT)
    (folder / "hold").touch()
    return folder


def begin(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sequencer", *arguments],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(run: subprocess.Popen[str]) -> tuple[float, str, str]:
    """Send TERM to *run*; return how long it took to end, and what it has said."""
    run.send_signal(signal.SIGTERM)
    began = time.monotonic()
    out, err = run.communicate(timeout=AT_MOST_S + 40)
    return time.monotonic() - began, out, err


def stopped_holder(path: Path) -> subprocess.Popen[str]:
    """Return a process that holds the lock at *path* and is stopped."""
    holder = subprocess.Popen(
        [sys.executable, "-IS", "-c", HOLD_LOCK, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGSTOP)
    return holder


def agents(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["words", "json"])
def test_a_lock_held_by_a_stopped_process_does_not_keep_a_run_from_ending(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder = project(tmp_path / "p")
    with begin(folder, "run", "--max-steps", "2", *options) as run:
        until(lambda: agents(folder))
        with stopped_holder(folder / "sync" / "state.json.lock") as holder:
            try:
                seconds, out, err = ended(run)
            finally:
                holder.kill()
    assert run.returncode == 130, err
    assert seconds < AT_MOST_S
    assert "the run's state is unknown: if this process has a claim" in err
    assert not any(map(psutil.pid_exists, agents(folder)))
    if options:
        assert json.loads(out)["exit_code"] == 130
    # Nobody needs to wait for the claim: its process is known to be gone.
    (folder / "hold").unlink()
    again = sequencer(folder, "run", "--max-steps", "2")
    assert again.code == 0, again.err
    assert json.loads(sequencer(folder, "status", "--json").out)["step_index"] == 2


@pytest.mark.slow
def test_a_run_that_ends_normally_reports_that_its_claim_was_released(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    with begin(folder, "run", "--max-steps", "2") as run:
        until(lambda: agents(folder))
        seconds, _, err = ended(run)
    assert run.returncode == 130
    assert "the claim was released" in err
    assert "unknown:" not in err
    assert seconds < AT_MOST_S


HANGING = """\
#!/bin/sh
# Hangs while there is a file, as a remote does whose line went dead.
while test -e {hang}; do sleep 0.1; done
exec git {program} "$@"
"""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("agent_obeys", [True, False], ids=["at once", "after its grace"])
def test_a_hanging_remote_does_not_keep_a_run_from_ending(
    tmp_path: Path, *, agent_obeys: bool
) -> None:
    shared = Shared(tmp_path)
    folder, hang = shared.clone("a"), tmp_path / "hang"
    project(folder, store={"kind": "git", "ttl_s": 3, "retry_for_s": 0})
    if not agent_obeys:
        agent = folder / "agent.py"
        text = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + AGENT
        agent.write_text(text)
    (folder / ".gitignore").write_text("sync/\nlogs/\nhold\npids\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a project")
    git(folder, "push", "-q", "origin", "main")
    for program in ("receive-pack", "upload-pack"):
        path = tmp_path / program
        path.write_text(HANGING.format(hang=hang, program=program))
        path.chmod(0o755)
        git(folder, "config", f"remote.origin.{program.replace('-', '')}", str(path))
    identity = {name: text for name, text in ENVIRONMENT.items() if name.startswith("GIT_")}
    with begin(folder, "run", "--max-steps", "2", **identity) as run:
        until(lambda: agents(folder))
        hang.touch()
        try:
            seconds, _, err = ended(run)
        finally:
            hang.unlink()
    assert run.returncode == 130, err
    assert seconds < AT_MOST_S, err
    assert "unknown: " in err
    assert not any(map(psutil.pid_exists, agents(folder)))
    (folder / "hold").unlink()
    again = sequencer(folder, "run", "--max-steps", "2", "--max-wait", "30", variables=identity)
    assert again.code == 0, again.err
    status = sequencer(folder, "status", "--json", variables=identity)
    assert json.loads(status.out)["step_index"] == 2


@pytest.mark.slow
def test_a_run_ended_while_posting_asks_no_gate_question(tmp_path: Path) -> None:
    # A terminal, where a person would be asked what is to become of the gate.
    master, terminal = pty.openpty()
    with open_desk(Reply(waits=True)) as desk:
        sink = {"kind": "webhook", "url": f"http://127.0.0.1:{desk.port}/"}
        folder = project(
            tmp_path / "p",
            workflow={"name": "mine"},
            workflows={"mine": {"kind": "procedure", "steps": [GATED]}},
            activity={"drain_s": 0.2, "sinks": {"hook": sink}},
        )
        (folder / "hold").unlink()
        command = [sys.executable, "-m", "sequencer", "run"]
        with subprocess.Popen(
            command, cwd=folder, env=environment(), stdin=terminal, stdout=terminal, stderr=terminal
        ) as run:
            os.close(terminal)
            shown = ""
            while "for activity sink 'hook' to answer" not in shown:
                shown += os.read(master, 4096).decode()
            began = time.monotonic()
            run.send_signal(signal.SIGTERM)
            try:
                code = run.wait(AT_MOST_S)
            finally:
                run.kill()
        seconds = time.monotonic() - began
        desk.let_go.set()
    os.close(master)
    assert (code, seconds < AT_MOST_S) == (WaitsForPerson.exit_code, True)
