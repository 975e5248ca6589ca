"""A run moves to a real Temporal server and back, and is never in two places."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ClaimHeld
from tests.clones import git
from tests.fleet.fleet_projects import AGENTS, CYCLE, FLOW, PROCEDURE, FleetProject, until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
Make = Callable[[str], FleetProject]
CLOSE = """\
import sys
from datetime import UTC, datetime
from functools import partial
from sequencer.plugins.temporal import store_move
from sequencer import open_project
here = open_project(trust=True)
to = sys.argv[1]
origin = "file" if to == "temporal" else "temporal"
source, target = (here.with_store_kind(kind).store(None) for kind in (origin, to))
words = store_move.Side(target, to).words
source.update(partial(store_move._make_closing, where=words))
sys.stdout.flush()
import os
os._exit(0)
"""


def keep_in(here: FleetProject, kind: str) -> None:
    """Let the configuration of *here* name this *kind* of store."""
    path = here.folder / "orchestration.yaml"
    path.write_text(re.sub("kind: (file|git|temporal),", f"kind: {kind},", path.read_text()))


def moves(here: FleetProject, to: str, *more: str) -> dict[str, Any]:
    """Move the run of *here*, and let the configuration follow it."""
    ended = here.cli(*more, "sync", "--to", to, "--json")
    assert ended.returncode == 0, ended.stderr
    keep_in(here, to)
    # The server lists a run some time after it has begun.
    until(lambda: here.cli(*more, "status").returncode == 0)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def works(here: FleetProject, steps: int) -> None:
    ended = here.cli("run", "--max-steps", str(steps))
    assert ended.returncode == 0, ended.stderr


def ensure_whole(here: FleetProject, steps: int) -> None:
    """Check that the history is whole, and that each step was accepted once."""
    facts = here.facts("history")
    revisions = sorted({one["revision"] for one in facts})
    assert revisions == list(range(1, revisions[-1] + 1))
    accepted = [one for one in facts if one["event"] == "succeeded"]
    assert [one["step_index"] for one in accepted] == list(range(steps))
    assert all(one["outcome"]["output"] for one in accepted)
    assert [one[1:3] for one in here.done] == [[str(i), str(i + 1)] for i in range(steps)]
    assert here.facts("status")["usage"]["steps"] == steps


def test_a_cycle_moves_there_and_back_and_there_again(project: Make) -> None:
    here = project(CYCLE)
    keep_in(here, "file")
    works(here, 3)
    told = moves(here, "temporal")
    assert (told["from"], told["to"], told["step_index"]) == ("file", "temporal", 3)
    works(here, 2)
    ensure_whole(here, 5)
    moves(here, "file")
    works(here, 2)
    ensure_whole(here, 7)
    moves(here, "temporal")
    works(here, 1)
    ensure_whole(here, 8)


def test_the_old_place_is_closed_and_names_the_new_one(project: Make) -> None:
    here = project(CYCLE)
    keep_in(here, "file")
    works(here, 1)
    moves(here, "temporal")
    keep_in(here, "file")
    for words in ("run", "resume", "rewind 0", "sync --to temporal"):
        refused = here.cli(*words.split())
        assert refused.returncode == 3, (words, refused.stderr)
        assert f"seq/{here.folder.name}/default" in refused.stderr
    # Whatever the configuration says, it can come back.
    moves(here, "file")
    works(here, 1)
    keep_in(here, "temporal")
    for words in ("run", "resume"):
        refused = here.cli(*words.split())
        assert refused.returncode == 3, (words, refused.stderr)
        assert "moved to file: sync on " in refused.stderr
    keep_in(here, "file")
    ensure_whole(here, 2)


def test_a_move_is_refused_during_a_step_and_onto_an_existing_run(project: Make) -> None:
    here = project(CYCLE)
    keep_in(here, "file")
    gate = here.hold()
    with here.process("run", "--max-steps", "1") as run:
        until(lambda: here.done)
        refused = here.cli("sync", "--to", "temporal")
        assert refused.returncode == ClaimHeld.exit_code, refused.stderr
        gate.unlink()
        assert run.wait(60) == 0
    keep_in(here, "temporal")
    works(here, 2)
    keep_in(here, "file")
    refused = here.cli("sync", "--to", "temporal")
    assert refused.returncode == 3
    assert "already" in refused.stderr
    works(here, 1)
    assert here.facts("status")["step_index"] == 2


@pytest.mark.parametrize("to", ["temporal", "file"])
def test_an_interrupted_move_can_be_repeated(project: Make, to: str) -> None:
    here = project(CYCLE)
    origin = "file" if to == "temporal" else "temporal"
    keep_in(here, origin)
    works(here, 2)
    command = [sys.executable, "-c", CLOSE, to]
    subprocess.run(command, cwd=here.folder, check=True, timeout=60)
    assert here.cli("run", "--max-steps", "1").returncode == 3
    moves(here, to)
    works(here, 1)
    ensure_whole(here, 3)


def test_a_run_in_git_moves_to_the_server_and_its_clones_report_it(
    project: Make, tmp_path: Path
) -> None:
    here = project(CYCLE)
    keep_in(here, "git")
    (here.folder / ".gitignore").write_text("logs/\nsync/\ndone.txt\n")
    git(here.folder, "init", "-q", "-b", "main")
    git(here.folder, "add", "-A")
    git(here.folder, "commit", "-q", "-m", "A project")
    git(tmp_path, "clone", "-q", "--bare", str(here.folder), "shared.git")
    git(here.folder, "remote", "add", "origin", str(tmp_path / "shared.git"))
    works(here, 2)
    git(tmp_path, "clone", "-q", str(tmp_path / "shared.git"), "clone")
    clone = tmp_path / "clone"
    told = moves(here, "temporal")
    assert (told["from"], told["step_index"]) == ("git", 2)
    git(here.folder, "commit", "-qam", "On the server")
    works(here, 1)
    ensure_whole(here, 3)
    refused = subprocess.run(
        [sys.executable, "-m", "sequencer", "run"],
        cwd=clone,
        env={**os.environ, "SEQUENCER_TRUST": "all"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 3, refused.stderr
    assert "was moved to temporal" in refused.stderr


def test_a_procedure_moves_at_its_gate(project: Make) -> None:
    here = project(PROCEDURE)
    keep_in(here, "file")
    assert here.cli("run").returncode == 4
    moves(here, "temporal")
    assert here.cli("answer", "once again").returncode == 0
    assert here.cli("run").returncode == 4
    moves(here, "file")
    assert here.cli("answer", "approve").returncode == 0
    assert here.cli("run").returncode == 0
    assert here.facts("status")["status"] == "complete"
    assert [one[0] for one in here.done] == ["plan", "plan", "build"]


def test_a_flow_moves_with_the_outputs_of_its_nodes(project: Make) -> None:
    here = project(AGENTS)
    (here.folder / "flows").mkdir()
    (here.folder / "flows" / "review.md").write_text(FLOW)
    keep_in(here, "file")
    assert here.cli("run", "flows/review.md", "--state", "who=Ann").returncode == 4
    moves(here, "temporal", "--run", "review")
    assert here.cli("--run", "review", "answer", "fine", "send back").returncode == 0
    assert here.cli("run", "flows/review.md").returncode == 4
    moves(here, "file", "--run", "review")
    assert here.cli("--run", "review", "answer", "fine", "approve").returncode == 0
    assert here.cli("run", "flows/review.md").returncode == 0
    facts = here.facts("--run", "review", "history")
    published = [one for one in facts if (one["event"], one["step"]) == ("succeeded", "publish")]
    assert published[0]["outcome"]["output"] == "published: prose of a draft for Ann"
    assert sorted(one[0] for one in here.done) == sorted(
        ["draft", "prose", "facts", "draft", "prose", "facts", "publish"]
    )


def test_a_copy_of_a_run_on_the_server_reads_as_its_files(project: Make, tmp_path: Path) -> None:
    here = project(CYCLE)
    works(here, 3)
    copy = tmp_path / "copy"
    assert here.cli("sync", "--copy", str(copy)).returncode == 0
    head = json.loads((copy / "state.json").read_text())
    status = here.facts("status")
    assert (head["step_index"], head["revision"]) == (3, status["revision"])
    lines = [json.loads(line) for line in (copy / "journal.jsonl").read_text().splitlines()]
    assert [one["revision"] for one in lines] == list(range(1, status["revision"] + 1))
    assert lines[-1]["head"]["step_index"] == 3
    assert here.cli("sync", "--copy", str(copy)).returncode == 2
    works(here, 1)
