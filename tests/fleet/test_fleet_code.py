"""Code that travels between machines whose runs are on a Temporal server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clones import git
from tests.fleet.conftest import TTL_S
from tests.fleet.fleet_projects import CODE, FleetProject, clones, code, started_by, until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
Clones = Callable[..., list[FleetProject]]


@pytest.fixture
def make(tmp_path: Path, address: str) -> Clones:
    """Return what makes clones of a project on the server."""
    name = tmp_path.name
    store = f'store: {{kind: temporal, address: "{address}", ttl_s: {TTL_S}, project: {name}}}'
    return lambda *names, **more: clones(tmp_path, CODE, store, *names, **more)


def done(here: FleetProject) -> list[list[str]]:
    """Return step, step_index, token, process and clone of every agent that has begun."""
    path = here.folder.parent / "done.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_two_clones_share_the_steps_that_change_code(make: Clones, tmp_path: Path) -> None:
    a, b = make("a", "b")
    with a.worker(), b.worker():
        ended = b.cli("run", "--max-steps", "8")
        assert ended.returncode == 0, ended.stderr
        assert code(tmp_path) == list(range(8))
        assert a.cli("run", "--max-steps", "2", "--detach").returncode == 0
        until(lambda: code(tmp_path) == list(range(10)))
    assert [int(one[1]) for one in done(a)] == list(range(10))
    left = git(tmp_path / "remote.git", "for-each-ref", "--format=%(refname)").splitlines()
    assert len(left) == 2, left


def test_a_killed_worker_and_a_dirty_clone_lose_and_double_nothing(
    make: Clones, tmp_path: Path
) -> None:
    a, b = make("a", "b")
    hold = a.hold()
    with a.worker("--max-parallel", "1"):
        assert b.cli("run", "--max-steps", "4", "--detach").returncode == 0
        until(lambda: done(a))
        until(lambda: "step 0" in git(a.folder, "log", "--format=%s"))
        os.kill(started_by(int(done(a)[0][3])), signal.SIGKILL)
    hold.unlink()
    # What the dead one had begun is in no branch that anybody shares.
    assert code(tmp_path) == []
    (b.folder / "mine.txt").write_text("not committed")
    with b.worker("--max-parallel", "1"):
        until(lambda: "mine.txt" in json.dumps(a.facts("history")), timeout_s=60)
        assert code(tmp_path) == []
        assert (b.folder / "mine.txt").read_text() == "not committed"
        (b.folder / "mine.txt").unlink()
        until(lambda: code(tmp_path) == [0, 1, 2, 3], timeout_s=60)
    subjects = git(tmp_path / "remote.git", "log", "--reverse", "--format=%s", "main").splitlines()
    assert subjects == ["first", "step 0", "step 1", "step 2", "step 3"]
    assert [one[4] for one in done(a)] == ["a", "b", "b", "b", "b"]


FLOW = """\
```mermaid
flowchart TD
  draft --> prose & facts --> publish
```

### draft
draft
### prose
prose
### facts
facts
### publish
publish
"""


def test_parallel_nodes_work_in_separate_clones(make: Clones, tmp_path: Path) -> None:
    a, b = make("a", "b", flow=FLOW)
    hold = tmp_path / "hold-prose"
    hold.touch()
    with b.worker("--max-parallel", "1"), a.process("run", "flow.md") as run:
        until(lambda: {"prose", "facts"} <= {one[0] for one in done(a)})
        assert len({one[2] for one in done(a) if one[0] in ("prose", "facts")}) == 2
        hold.unlink()
        said, _ = run.communicate(timeout=60)
        assert run.returncode == 0, said
    shown = git(tmp_path / "remote.git", "show", "main:publish.txt")
    assert shown == "draft.txt facts.txt prose.txt publish.txt", shown
    assert sorted(one[0] for one in done(a)) == ["draft", "facts", "prose", "publish"]
    merges = git(tmp_path / "remote.git", "log", "--merges", "--format=%s", "main").splitlines()
    assert len(merges) == 1


TEAM = """\
workflow: {name: team}
agent: {default: script}
agents:
  script:
    kind: command
    argv: ["{python}", -IS, agent.py]
    pass_env: [GIT_CONFIG_GLOBAL, GIT_AUTHOR_NAME, GIT_AUTHOR_EMAIL, GIT_COMMITTER_NAME,
               GIT_COMMITTER_EMAIL]
teams:
  roles: {builder: {writes: true, worktree: true}}
workflows:
  team:
    size: 2
    tasks:
    - {id: one, subject: One, role: builder}
    - {id: two, subject: Two, role: builder}
    - {id: lead, subject: Lead, adds: tasks}
    - {id: three, subject: Three, role: builder, blocked_by: [one, two, lead]}
"""
TEAM_AGENT = """\
import json, os, sys, time
sys.stdin.read()
name = os.environ["SEQUENCER_STEP"]
if name == "lead":
    four = {"id": "four", "subject": "Four", "description": "x", "role": "builder"}
    sys.exit(print(json.dumps({"tasks": [four]})))
open(f"{name}.txt", "w").write(" ".join(sorted(o for o in os.listdir(".") if o.endswith(".txt"))))
time.sleep(1)
print(name)
"""


def test_the_tasks_of_a_team_are_shared_out(tmp_path: Path, address: str) -> None:
    name = tmp_path.name
    store = f'store: {{kind: temporal, address: "{address}", ttl_s: {TTL_S}, project: {name}}}'
    a, b = clones(tmp_path, TEAM, store, "a", "b", agent=TEAM_AGENT)
    with b.worker("--max-parallel", "1"):
        ended = a.cli("run")
        assert ended.returncode == 0, ended.stdout + ended.stderr
    shown = git(tmp_path / "remote.git", "show", "main:three.txt")
    assert shown == "four.txt one.txt three.txt two.txt"
    assert a.facts("status")["status"] == "complete"
    assert "worktrees" not in git(a.folder, "worktree", "list")


def test_each_position_runs_in_its_own_clone_even_with_other_workers(
    make: Clones, tmp_path: Path
) -> None:
    a, b, c = make("a", "b", "c")
    sync = ("run", "--mode", "sync", "--max-steps", "4", "--position")
    with (
        c.worker(),
        b.process(*sync, "main") as second,
        a.process(*sync, "supervisor") as first,
    ):
        assert (first.wait(90), second.wait(90)) == (0, 0)
        until(lambda: code(tmp_path) == list(range(8)))
    # Reviews are at both positions.
    assert [one[4] for one in done(a)] == ["a", "b"] * 4


def test_a_position_of_a_killed_process_goes_to_the_next_process(
    make: Clones, tmp_path: Path
) -> None:
    a, b = make("a", "b")
    sync = ("run", "--mode", "sync", "--max-steps")
    with b.worker(), a.process(*sync, "4", "--position", "supervisor") as first:
        until(lambda: code(tmp_path) == [0])
        first.kill()
        first.wait()
        # The other position's step, after which the killed one is due.
        assert b.cli(*sync, "1", "--position", "main").returncode == 0
        again = a.cli(*sync, "1", "--position", "supervisor")
        assert again.returncode == 0, again.stderr
    assert code(tmp_path) == [0, 1, 2]
    assert [one[4] for one in done(a)] == ["a", "b", "a"]
