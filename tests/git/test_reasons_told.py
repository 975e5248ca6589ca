"""What a person is told by `run` when a shared run can't go on: the true reason, and what helps."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer import Store
from sequencer.errors import RemoteUnreachable
from tests.clones import Shared, git
from tests.contract import store_cases as cases
from tests.git.servers import end, until_open
from tests.git.test_refused_in_doubt import ending
from tests.git.transports import Server, serve_by
from tests.loopback import free_ports
from tests.unit.cli.sharing import call, shared_project, steps

STATE = "sequencer/default"
DENIED = "ERROR: Permission to o/r.git denied to deploy key"
SAID_CHARS = 500
"""At most so much of what a remote says is shown."""
DENYING_LATER = """#!/bin/sh
# The first push is for the server, and who comes later may only read.
if test -e '{folder}/asked'; then
    echo '{words}' >&2
    exit 1
fi
touch '{folder}/asked'
exec '{folder}/receive-pack' "$@"
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Shared]:
    shared = shared_project(tmp_path / "shared")
    git(shared.bare, "config", "core.fsync", "all")
    yield shared
    shared.close()


def refs(shared: Shared) -> str:
    return git(shared.bare, "for-each-ref")


def only_for_readers(clone: Path, server: Path, words: str) -> None:
    """Let the pushes of *clone* end as a host ends them that lets its key read only."""
    server.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    server.chmod(0o755)
    git(clone, "config", "remote.origin.receivepack", str(server))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[str]:
    """Serve the repositories in *folder* to whoever only reads them."""
    port = free_ports(1)[0]
    options = ("--reuseaddr", "--export-all", f"--base-path={folder}", "--listen=127.0.0.1")
    argv = ["git", "daemon", *options, f"--port={port}", str(folder)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until_open("127.0.0.1", port)
        yield f"git://127.0.0.1:{port}"
    finally:
        end(process)


# --- nobody may push --------------------------------------------------------------------


def test_a_read_only_server_is_reported(project: Shared) -> None:
    a = project.clone("a")
    with read_only(project.folder) as address:
        git(a, "remote", "set-url", "origin", f"{address}/{project.bare.name}")
        before = refs(project)
        told, checked = call(a, "run", "--max-steps", "1"), call(a, "check", "--remote")
    assert told.code == 3
    assert "does not accept pushes: remote error: access denied" in told.err
    assert "can't tell whether" not in told.err
    hint = "use a key or token that may push there"
    assert hint in told.err
    assert hint in checked.out + checked.err
    assert refs(project) == before


def test_a_read_only_key_is_reported(project: Shared, tmp_path: Path) -> None:
    a, words = project.clone("a"), f"remote: {DENIED}"
    steps(a, 1)
    only_for_readers(a, tmp_path / "server", words)
    before = refs(project)
    told = call(a, "run", "--max-steps", "1")
    assert told.code == 3
    assert "does not accept pushes" in told.err
    assert words.removeprefix("remote: ") in told.err
    assert "a key or token that may push there" in told.err
    assert "ls-remote" not in told.err
    assert refs(project) == before
    git(a, "config", "--unset", "remote.origin.receivepack")
    steps(a, 1)


def test_a_denial_is_not_final_while_an_earlier_push_may_land(
    held: tuple[Shared, Store, Server],
) -> None:
    shared, ours, server = held
    change, clone = ending(), shared.clone("ours")
    script = DENYING_LATER.format(folder=server.folder, words=DENIED)
    serve_by(script, "receive-pack", server.folder / "denying", clone)
    with pytest.raises(
        RemoteUnreachable, match="can't tell whether the change was accepted: an earlier push"
    ) as told:
        ours.update(change)
    assert told.value.is_denied
    assert "denied to deploy key" in told.value.message
    Server(server.folder).install(clone)
    server.release()
    assert ours.update(change).step_index == 1


def test_words_of_a_denial_after_a_lost_line_prove_nothing(shared: Shared, tmp_path: Path) -> None:
    ours = shared.store("ours")
    cases.begin(ours)
    token = cases.claim(ours).token
    server = tmp_path / "server"
    # It has moved the ref, and all that comes back is a word of a hook.
    script = (
        "import os, subprocess, sys\n"
        "argv = ['git', 'receive-pack', sys.argv[-1]]\n"
        "done = subprocess.Popen(argv, stdout=subprocess.PIPE)\n"
        "while (size := done.stdout.read(4)) != b'0000':\n"
        "    os.write(1, size + done.stdout.read(int(size, 16) - 4))\n"
        "os.write(1, b'0000')\n"
        "done.stdout.read()\n"
        "print('Permission denied', file=sys.stderr)\n"
    )
    server.with_suffix(".py").write_text(script)
    server.write_text(f'#!/bin/sh\nexec python3 -IS {server}.py "$@"\n')
    server.chmod(0o755)
    git(shared.clone("ours"), "config", "remote.origin.receivepack", str(server))
    tip = shared.tip()
    # Accepted, since it was looked at and not guessed.
    cases.commit(ours, token)
    assert shared.tip() != tip


# --- what is set or checked out here ----------------------------------------------------


def test_a_remote_of_any_name_accepts_the_pushes_of_a_run(project: Shared) -> None:
    a, name = project.clone("a"), "the.hub"
    git(a, "remote", "rename", "origin", name)
    path = a / "orchestration.yaml"
    path.write_text(path.read_text().replace("{kind: git}", f"{{kind: git, remote: {name}}}"))
    git(a, "commit", "-qam", "another remote")
    git(a, "config", f"remote.{name}.mirror", "true")
    git(a, "branch", "mine")
    steps(a, 1)
    assert project.tip()
    assert not project.tip("mine"), "all branches were pushed"
    assert "nothing is wrong" in call(a, "check", "--remote").out


def test_a_remote_address_is_not_used_as_a_setting_name(project: Shared) -> None:
    a = project.clone("a")
    path = a / "orchestration.yaml"
    address = f"file://{project.bare}"
    path.write_text(path.read_text().replace("{kind: git}", f"{{kind: git, remote: {address}}}"))
    git(a, "commit", "-qam", "an address")
    steps(a, 1)
    assert project.tip()


def test_a_stopped_rebase_is_reported(project: Shared) -> None:
    a = project.clone("a")
    git(a, "switch", "-q", "-c", "x")
    for branch, text in (("x", "1"), ("main", "2")):
        git(a, "switch", "-q", branch)
        (a / "f").write_text(text)
        git(a, "add", "f")
        git(a, "commit", "-q", "-m", text)
    git(a, "rebase", "-q", "x", check=False)
    told, checked = call(a, "run", "--max-steps", "1"), call(a, "check", "--remote")
    assert told.code == 3
    assert "a rebase is under way" in told.err
    assert "finish it or abort it" in told.err
    assert "git switch" not in told.err + checked.out + checked.err
    assert "a rebase is under way" in checked.out + checked.err


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("branch", [STATE, "sequencer-beats/default"])
def test_code_on_the_state_branch_is_refused_before_a_push(branch: str, project: Shared) -> None:
    a = project.clone("a")
    git(a, "switch", "-q", "-c", branch)
    before, words = refs(project), f"branch '{branch}' holds the run's state"
    told, checked = call(a, "run", "--max-steps", "1"), call(a, "check", "--remote")
    assert told.code == 3
    assert words in told.err
    assert words in checked.out + checked.err
    assert "set store.branch" in told.err
    assert refs(project) == before
    git(a, "switch", "-q", "main")
    steps(a, 1)


def test_code_is_not_pushed_to_a_checked_out_state_branch(project: Shared) -> None:
    a, b = project.clone("a"), project.clone("b")
    steps(a, 1)
    git(b, "fetch", "-q")
    git(b, "switch", "-q", STATE)
    git(b, "checkout", "-q", "origin/main", "--", ".")
    before = refs(project)
    told = call(b, "run", "--max-steps", "1")
    assert told.code == 3
    assert "holds the run's state" in told.err
    assert refs(project) == before
    assert call(b, "status").code == 0


# --- what the remote says ---------------------------------------------------------------


def refusing(shared: Shared, script: str, name: str = "pre-receive") -> None:
    hook = shared.bare / "hooks" / name
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ncat >/dev/null\n{script}\nexit 1\n")
    hook.chmod(0o755)


def test_the_reason_of_a_refusing_hook_is_shown(project: Shared) -> None:
    a = project.clone("a")
    refusing(project, "echo no pushes on Sunday >&2; echo ask Tess >&2")
    told = call(a, "run", "--max-steps", "1")
    assert told.code == 3
    assert "hook declined) (no pushes on Sunday / ask Tess)" in told.err


def test_words_of_a_hook_are_not_mistaken_for_gits(project: Shared) -> None:
    a = project.clone("a")
    # "lock" is a word of what another try may not get.
    refusing(project, "echo n >> pushes; echo 'main is unlocked on Monday' >&2")
    told = call(a, "run", "--max-steps", "1")
    assert "main is unlocked on Monday" in told.err
    assert "does not accept the state" in told.err
    assert (project.bare / "pushes").read_text().split() == ["n"], "it was tried again"


def test_words_of_a_hook_are_clean_short_and_without_secrets(
    project: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, secret = project.clone("a"), "sesame-0123456789"
    monkeypatch.setenv("MY_TOKEN", secret)
    long = "long " * SAID_CHARS
    refusing(project, rf"printf '\033[31mred\033]0;x\007 {secret} {long}\n' >&2")
    told = call(a, "run", "--max-steps", "1").err
    assert "(red" in told
    assert "[31m" not in told
    assert not {"\033", "\007"} & set(told)
    assert secret not in told
    assert told.count("long") <= SAID_CHARS / 5
    assert "…" in told


def test_the_reason_of_a_hook_against_the_code_is_shown(project: Shared) -> None:
    a = project.clone("a")
    steps(a, 1)
    (a / "more").write_text("x")
    git(a, "add", "more")
    git(a, "commit", "-q", "-m", "more")
    script = 'case "$1" in refs/heads/main) echo "sign it off" >&2; exit 1;; esac; exit 0'
    refusing(project, script, "update")
    told = call(a, "run", "--max-steps", "1")
    assert told.code == 3
    assert "main does not accept pushes" in told.err
    assert "(sign it off)" in told.err


def test_a_branch_in_the_way_is_named_by_check(project: Shared) -> None:
    a = project.clone("a")
    git(project.bare, "branch", "sequencer", "main")
    told, checked = call(a, "run", "--max-steps", "1"), call(a, "check", "--remote")
    assert told.code == 3
    assert "'sequencer check' shows which branch is in the way" in told.err
    assert "start again" not in told.err
    assert (
        "branches 'sequencer' and 'sequencer/default' can't both exist" in checked.out + checked.err
    )
