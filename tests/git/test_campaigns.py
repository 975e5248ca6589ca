"""Clones that race, are killed and are cut off, as on every push; and a look at the checks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from sequencer import Store
from tests.clones import ENVIRONMENT, Shared, git
from tests.concurrency import children
from tests.contract import store_cases as cases
from tests.contract.executor_cases import wait_until
from tests.git import turns
from tests.git.machines import impossible
from tests.git.transports import Deed, Server
from tests.long.__main__ import in_own_process
from tests.long.report import Size

pytestmark = pytest.mark.timeout(300)
"""Campaigns use up to 20 s of CPU each, which takes minutes on a busy machine."""

CAMPAIGNS = {
    "D12-clones": ("steps", 5),
    "D12-cut-lines": ("steps", 6),
    "D-git-kills": ("kills", 6),
    "D-git-points": ("crash points", 2),
}


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_clones_lose_and_double_nothing(name: str, tmp_path: Path) -> None:
    report = in_own_process(name, Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    what, least = CAMPAIGNS[name]
    assert report["counts"][what] >= least


@pytest.mark.slow
@pytest.mark.skipif(impossible() is not None, reason=impossible() or "")
def test_clones_survive_a_link_that_goes_down_and_comes_back(tmp_path: Path) -> None:
    report = in_own_process("D14-partition", Size.SHORT, tmp_path / "log")
    assert report["violations"] == []
    assert report["counts"] == {"partitions": 5}


# --- checks of the check ------------------------------------------------------------------


WITHOUT_LEASES = """#!{python} -IS
import os, sys, time
words = ["--force" if word.startswith("--force-with-lease") else word for word in sys.argv[1:]]
if "push" in words and os.getcwd() == {late!r} and not os.path.exists({mark!r} + "go"):
    open({mark!r} + "late", "w").close()
    while not os.path.exists({mark!r} + "go"):
        time.sleep(0.01)
os.execv({git!r}, ["git", *words])
"""


def test_a_push_without_a_lease_is_noticed(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs is accepted between what ours decides and its push, which moves the ref anyway."""
    program, mark = shared.folder / "bin" / "git", shared.folder / "push-is-"
    program.parent.mkdir()
    late = str(shared.clone("ours"))
    program.write_text(
        WITHOUT_LEASES.format(
            python=sys.executable, late=late, mark=str(mark), git=shutil.which("git")
        )
    )
    program.chmod(0o755)

    def turn(store: Store, name: str) -> None:
        claim = turns.note_granted(
            shared, store.update(cases.on_run(partial(cases.claiming, store)))
        )
        cases.commit(store, claim.token)
        children.append(shared.folder / "told", f"{claim.step_index} {claim.token} {name}")

    cases.begin(shared.store("ours"))
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as thread:
        patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        ours, theirs = shared.store("ours"), shared.store("theirs")
        ending = thread.submit(turn, ours, "ours")
        assert wait_until(Path(f"{mark}late").exists, 60)
        turn(theirs, "theirs")
        Path(f"{mark}go").touch()
        ending.result()
    wrong = turns.violations(shared, ["ours", "theirs"], least=None)
    assert any("tokens were granted twice" in text for text in wrong), wrong


@pytest.mark.slow
def test_a_reported_step_that_is_lost_is_detected(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    turns.turns(shared.store("ours"), shared.store("theirs"))
    told = tmp_path / "told"
    told.write_text("0 2 ours\n")
    assert turns.violations(shared, ["ours", "theirs"], least=3) == []
    told.write_text("0 7 ours\n")
    assert "ours has lost [(0, 7)]" in turns.violations(shared, ["ours"], least=3)
    told.write_text("0 2 ours\n0 2 ours\n")
    assert any("twice" in text for text in turns.violations(shared, ["ours"], least=3))
    assert any("instead of 4" in text for text in turns.violations(shared, ["ours"], least=4))
    (shared.bare / "objects" / shared.tip()[:2] / shared.tip()[2:]).unlink()
    assert "fsck of remote.git" in turns.unsound(shared, ["ours"])[0]
    shared.close()


def push(clone: Path, before: str, new: str) -> tuple[int | None, str]:
    """Push as a store does; return git's exit code, if it ends in time, and what it says."""
    argv = ["git", "push", f"--force-with-lease=main:{before}", "origin", f"{new}:refs/heads/main"]
    with subprocess.Popen(
        argv, cwd=clone, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, told = process.communicate(timeout=2.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""
    return process.returncode, told


@pytest.mark.parametrize("deed", Deed)
def test_the_test_server_acts_as_configured(deed: Deed, shared: Shared) -> None:
    server = Server(shared.folder.parent / "server", [deed], later_s=0.2)
    clone = shared.clone("ours")
    server.install(clone)
    git(clone, "commit", "-q", "--allow-empty", "-m", "x")
    new, before = git(clone, "rev-parse", "HEAD"), shared.tip("main")
    code, told = push(clone, before, new)
    assert (code == 0) == (deed is Deed.SERVE)
    assert "rejected" not in told
    if deed in (Deed.GONE_AFTER, Deed.GONE_BEFORE):
        server.back(shared.bare)
    at_once = deed in (Deed.SERVE, Deed.CUT_AFTER, Deed.GONE_AFTER)
    if deed is not Deed.HANG:
        assert shared.tip("main") == (new if at_once else before)
    server.release()
    never = deed in (Deed.CUT_BEFORE, Deed.GONE_BEFORE)
    assert shared.tip("main") == (before if never else new)
    assert server.deeds() == {deed: 1}
