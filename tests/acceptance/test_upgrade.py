"""The version before and this one work on one run at the same time, as during an upgrade."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from tests.storage.commands import accepted, environment, facts

ROOT = Path(__file__).parents[2]
BEFORE = "b6036c7f"
"""A commit of the version before this one."""
STEPS = 20
AGENT = """\
import os, sys
sys.stdin.read()
with open("done.txt", "a") as file:
    file.write(f"{os.environ['SEQUENCER_STEP']} {os.environ['SEQUENCER_STEP_INDEX']}\\n")
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the program of the version before; skip where it is not known."""
    made = subprocess.run(
        ["git", "archive", BEFORE, "sequencer"], cwd=ROOT, capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"commit {BEFORE} is not here: fetch the whole history (git fetch --unshallow)")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(folder)  # noqa: S202 - our own repository's
    return folder


@contextmanager
def working(program: Path, folder: Path, position: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the steps at *position* with the package in *program*."""
    # Not the installed package: the first folder of the path wins.
    code = (
        f"import sys; sys.path.insert(0, {str(program)!r}); sys.argv[0] = 'sequencer'; "
        "from sequencer.cli import main; sys.exit(main())"
    )
    argv = ["run", "--mode", "sync", "--position", position, "--max-steps", str(STEPS)]
    with (folder / "said.txt").open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *argv],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_versions_on_one_run_lose_repeat_and_reorder_nothing(
    earlier: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts").mkdir()
    for name in ("supervisor", "main"):
        (tmp_path / "prompts" / f"{name}.md").write_text(f"Do {name}.\n")
    argv = [sys.executable, "-IS", "agent.py"]
    document = {
        "workflow": {"name": "standard"},
        "agent": {"default": "script"},
        "agents": {"script": {"kind": "command", "argv": argv, "free": True}},
        "store": {"ttl_s": 2},
    }
    (tmp_path / "orchestration.yaml").write_text(json.dumps(document))
    (tmp_path / "agent.py").write_text(AGENT)
    chance = random.Random(34)  # noqa: S311 - chance, no secret
    # Each version has each position: whoever is killed is followed by the other one.
    programs = {"supervisor": earlier, "main": ROOT}
    deadline, kills = time.monotonic() + 200, 0
    while len(accepted(facts(tmp_path))) < STEPS:
        assert time.monotonic() < deadline, (tmp_path / "said.txt").read_text()[-3000:]
        with (
            working(programs["supervisor"], tmp_path, "supervisor") as one,
            working(programs["main"], tmp_path, "main") as other,
        ):
            target = len(accepted(facts(tmp_path))) + chance.randint(1, 5)
            until = min(time.monotonic() + 60, deadline)
            while len(accepted(facts(tmp_path))) < min(target, STEPS) and time.monotonic() < until:
                time.sleep(0.05)
            victim = chance.choice((one, other))
            victim.kill()
            kills += 1
            programs = {"supervisor": programs["main"], "main": programs["supervisor"]}
    told = facts(tmp_path)
    done = accepted(told)
    assert done == [*range(len(done))], done
    assert kills >= STEPS // 5
    revisions = [one["revision"] for one in told]
    assert revisions == sorted(revisions)
    # Each accepted step was made; one that was made twice was made again after a kill.
    made = [int(line.split()[1]) for line in (tmp_path / "done.txt").read_text().splitlines()]
    assert sorted(set(made))[: len(done)] == done
    assert len(made) <= len(done) + 2 * kills + 2
    said = (tmp_path / "said.txt").read_text()
    # Both have worked: each says in its own words that a step is done.
    assert ": ok after " in said
    assert ": accepted" in said
    assert "Traceback" not in said
    assert "bug" not in said
