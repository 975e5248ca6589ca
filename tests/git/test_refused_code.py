"""Code that the remote has refused: it never lands later, and none of it is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.two_clones import code, configuration, ended, none_left, shared_project, start
from tests.clones import Shared, git

KEPT = "sequencer-kept/default/0-1"
DECLARED = configuration('commit: {paths: ["notes/**"]}\n')
ONCE = """\
#!/bin/sh
[ "$1" = refs/heads/main ] || exit 0
[ -e {folder}/said ] && exit 0
touch {folder}/said
echo "not on a Monday"
exit 1
"""


def told_apart(folder: Path, text: str = "") -> Shared:
    """Make a project whose attempts never write the very same commit, however quick they are."""
    shared = shared_project(folder, text)
    a = shared.clone("a")
    agent = a / "agent.py"
    line = 'f"step {index}"]'
    assert line in agent.read_text()
    more = 'f"step {index}", "-m", os.environ["SEQUENCER_TOKEN"]]'
    agent.write_text(agent.read_text().replace(line, more))
    git(a, "commit", "-qam", "an agent")
    git(a, "push", "-q", "origin", "main")
    git(shared.clone("b"), "pull", "-q", "origin", "main")
    return shared


def refuse_once(shared: Shared, name: str = "update") -> None:
    hook = shared.bare / "hooks" / name
    hook.parent.mkdir(exist_ok=True)
    text = ONCE.format(folder=shared.folder)
    if name == "pre-receive":
        text = text.replace(
            '[ "$1" = refs/heads/main ] || exit 0', "grep -q refs/heads/main || exit 0"
        )
    hook.write_text(text)
    hook.chmod(0o755)


def run(clone: Path, *options: str, **variables: str) -> tuple[int, str]:
    with none_left() as started:
        started.append(start(clone, "run", "--max-steps", "1", *options, **variables))
        return ended(started[0])


def main(folder: Path, ref: str = "main") -> list[str]:
    return git(folder, "log", "--format=%s", ref).splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("hook", "declared"), [("update", False), ("pre-receive", True)])
def test_refused_code_does_not_land_with_the_next_attempt(
    tmp_path: Path, hook: str, declared: bool
) -> None:
    shared = told_apart(tmp_path, DECLARED if declared else "")
    refuse_once(shared, hook)
    a, notes = shared.clone("a"), "notes/first" if declared else ""
    before = git(a, "rev-parse", "main")
    status, said = run(a, NOTES=notes)
    assert status == 3
    assert f"what the step did is on branch {KEPT}" in said
    if hook == "update":
        assert "not on a Monday" in said
    # Nothing has moved: here, there and in the files.
    assert git(a, "rev-parse", "main") == shared.tip("main") == before
    assert git(a, "status", "--porcelain") == ""
    assert not (a / "code.txt").exists()
    refused = git(a, "rev-parse", KEPT)
    assert shared.tip(KEPT) == refused
    assert main(a, KEPT)[:-3] == (["supervisor: iteration 1 (run default)"] if declared else []) + [
        "step 0"
    ]
    status, said = run(a, NOTES=notes.replace("first", "second"))
    assert (status, code(shared)) == (0, [0])
    landed = git(shared.bare, "rev-list", f"{before}..main").split()
    assert len(landed) == 1 + declared
    assert refused not in landed
    assert git(a, "rev-parse", f"{refused}~{int(declared)}") not in landed
    if declared:
        assert git(shared.bare, "ls-tree", "--name-only", "main:notes") == "second"
    # Another clone goes on from it.
    assert run(shared.clone("b"))[0] == 0
    assert code(shared) == [0, 1]


@pytest.mark.slow
def test_a_persons_own_commits_are_untouched(tmp_path: Path) -> None:
    shared = shared_project(tmp_path)
    refuse_once(shared)
    a = shared.clone("a")
    (a / "mine.txt").write_text("mine\n")
    git(a, "add", "mine.txt")
    git(a, "commit", "-qm", "mine")
    assert run(a)[0] == 3
    assert main(a)[0] == "mine"
    assert run(a)[0] == 0
    assert main(shared.bare)[:2] == ["step 0", "mine"]


def test_a_work_tree_with_other_changes_is_left_alone(tmp_path: Path) -> None:
    """The files of an agent that goes on writing after its commit are not overwritten."""
    shared = shared_project(tmp_path)
    a = shared.clone("a")
    agent = a / "agent.py"
    agent.write_text(agent.read_text() + 'open("code.txt", "a").write("more")\n')
    git(a, "commit", "-qam", "an agent")
    git(a, "push", "-q", "origin", "main")
    refuse_once(shared)
    before = git(a, "rev-parse", "main")
    assert run(a)[0] == 3
    assert git(a, "rev-parse", "main") == before
    assert (a / "code.txt").read_text() == "0\nmore"
    assert git(a, "show", f"{KEPT}:code.txt") == "0"


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert process.poll() is None, "it has ended before"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("is_refused", [True, False])
def test_a_kill_while_the_remote_decides_lands_no_refused_code(
    tmp_path: Path, is_refused: bool
) -> None:
    """Between the commit and the answer; whichever it is, no refused commit lands later."""
    shared = told_apart(tmp_path, DECLARED)
    hook, asked = shared.bare / "hooks" / "update", tmp_path / "asked"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        f'#!/bin/sh\n[ "$1" = refs/heads/main ] || exit 0\n[ -e {asked} ] && exit 0\n'
        f"echo $$ > {asked}.new; mv {asked}.new {asked}\n"
        f"while [ ! -e {tmp_path}/decided ]; do sleep 0.02; done\nexit {int(is_refused)}\n"
    )
    hook.chmod(0o755)
    a = shared.clone("a")
    before = shared.tip("main")
    with none_left() as started:
        started.append(start(a, "run", "--max-steps", "1", NOTES="notes/first"))
        wait_for(asked, started[0])
        os.kill(started[0].pid, signal.SIGKILL)
        started[0].wait()
    pushed = git(a, "rev-parse", "main")
    (tmp_path / "decided").touch()
    # The push goes on without who has begun it.
    deadline = time.monotonic() + 30
    while Path(f"/proc/{asked.read_text().strip()}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if not is_refused:
        while shared.tip("main") == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    status, said = run(a, "--max-wait", "60", NOTES="notes/second")
    assert status == 0, said
    landed = git(shared.bare, "rev-list", f"{before}..main").split()
    if is_refused:
        assert f"the work that was not accepted is on branch {KEPT}" in said
        assert git(a, "rev-parse", KEPT) == pushed
        assert pushed not in landed
        assert (len(landed), code(shared)) == (2, [0])
    else:
        assert pushed in landed
        assert (len(landed), code(shared)) == (4, [0, 1])
    assert git(a, "rev-parse", "main") == shared.tip("main")
