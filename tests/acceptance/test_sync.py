"""`sync` and `check` as a person types them, where the remote does not behave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, head, launched, scripted_project, until
from tests.clones import Shared, git

GIT_STORE = "store: {kind: git, timeout_s: 2}\n"


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    shared = Shared(tmp_path)
    first = scripted_project(shared.clone("first"))
    config = first / "orchestration.yaml"
    config.write_text(config.read_text() + GIT_STORE)
    (first / ".gitignore").write_text("sync/\nlogs/\ndone.txt\n")
    git(first, "add", ".")
    git(first, "commit", "-q", "-m", "the project")
    git(first, "push", "-q", "origin", "HEAD:main")
    return shared


def hang(folder: Path) -> Path:
    """Let the remote of *folder* never answer; return the file with the pid of who waits for it."""
    pid = folder.parent / "ssh.pid"
    script = folder.parent / "ssh.sh"
    script.write_text(f"#!/bin/sh\necho $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 60\n")
    script.chmod(0o700)
    git(folder, "remote", "set-url", "origin", "ssh://example.invalid/x")
    git(folder, "config", "core.sshCommand", str(script))
    return pid


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_both_clones_see_each_others_turns(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    assert cli(a, "run", "--max-steps", "2").returncode == 0
    shown = cli(b, "sync", "--fetch")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "now it is here too" in shown.stdout
    assert head(b) == head(a)
    assert cli(b, "run", "--max-steps", "1").returncode == 0
    facts = json.loads(cli(a, "sync", "--fetch", "--json").stdout)
    assert (facts["relation"], facts["here"]["step_index"]) == ("behind", 2)
    assert facts["branch"]["step_index"] == facts["next"]["step_index"] == 3
    assert head(a) == head(b)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("verb", [("sync", "--fetch"), ("check", "--remote")])
def test_a_hanging_remote_costs_only_its_time_limit(shared: Shared, verb: tuple[str, str]) -> None:
    a = shared.clone("a")
    assert cli(a, "run", "--max-steps", "1").returncode == 0
    pid = hang(a)
    began = time.monotonic()
    looked = cli(a, *verb, timeout_s=30)
    assert time.monotonic() - began < 8
    assert looked.returncode == (3 if "sync" in verb else 0)
    assert "no answer in time" in looked.stdout + looked.stderr
    assert is_gone(int(pid.read_text()))


@pytest.mark.slow
def test_read_only_commands_do_not_contact_a_remote(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    assert cli(a, "run", "--max-steps", "1").returncode == 0
    pid = hang(a)
    for verb in ("sync", "status", "check", "history", "plan"):
        looked = cli(a, verb, timeout_s=30)
        assert looked.returncode == 0
        assert "step_index 1" in looked.stdout or verb not in {"sync", "status"}
    assert not pid.exists()
    # And what another clone has done is seen by who asks.
    assert json.loads(cli(b, "sync", "--json").stdout)["relation"] == "nowhere"
    facts = json.loads(cli(b, "sync", "--fetch", "--json").stdout)
    assert (facts["relation"], facts["remote"]["asked"]) == ("new", True)
    seen = json.loads(cli(b, "sync", "--json").stdout)
    assert (seen["relation"], seen["remote"]["asked"], seen["remote"]["reachable"]) == (
        *("equal", False),
        None,
    )
    assert seen["branch"]["step_index"] == seen["here"]["step_index"] == 1


def test_ctrl_c_leaves_no_process_behind(shared: Shared) -> None:
    a = shared.clone("a")
    pid = hang(a)
    with launched(
        a,
        "sync",
        "--fetch",
        variables={"SEQUENCER_STORE__TIMEOUT_S": "50"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            until(pid.exists)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130, said
    until(lambda: is_gone(int(pid.read_text())), 5)


def test_sync_check_and_status_leave_the_users_files_alone(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    assert cli(a, "run", "--max-steps", "2").returncode == 0
    (b / "README.md").write_text("being edited\n")
    (b / "new.txt").write_text("staged\n")
    git(b, "add", "new.txt")
    index = (b / ".git" / "index").read_bytes()
    before = {path: path.read_bytes() for path in b.glob("*") if path.is_file()}
    for verb in ("sync", "check", "status", "sync --fetch", "check --remote"):
        assert cli(b, *verb.split()).returncode == 0
    assert (b / ".git" / "index").read_bytes() == index
    assert {path: path.read_bytes() for path in b.glob("*") if path.is_file()} == before
    assert git(b, "branch", "--list", "--all", "*sequencer*") == ""
    assert not (b / ".git" / "FETCH_HEAD").exists()
