"""A folder of a run that is a link is refused, and nothing behind it is read or changed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, done, scripted_project

BELOW = ("beats", "results", "runs", "activity")
"""What lies in a run's folder beside its files."""
STRANGERS = (
    *("id_rsa", "known_hosts", "1", "2.77.tmp", "3.seen-0a1b2c3d", "note.tmp", "x.json.tmp"),
    *(".state.json.77.tmp", "journal.jsonl.77.tmp", "journal-000001.jsonl", "idle.json"),
    *("0-1/output.txt", "1-2/result.json", "2-3-0123456789abcdef/output.txt"),
    *("steps/iter-00001_supervisor.log", "local/steps/note.txt"),
)
"""Names of a stranger's that look like our own."""
CHANGING = (("tick",), ("stop", "--pause"), ("resume",), ("run", "--max-steps", "1"))
LOOKING = (
    ("status",),
    ("plan",),
    ("history",),
    ("status", "--all"),
    ("log",),
    ("report", "--metrics", "--all-runs"),
)


def seen(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time of change and content of everything in *folder*."""
    return {str(path.relative_to(folder)): _look(path) for path in _walk(folder)}


def _look(path: Path) -> tuple[int, int, bytes]:
    found = path.lstat()
    return found.st_mode, found.st_mtime_ns, path.read_bytes() if path.is_file() else b""


def _walk(folder: Path) -> Iterator[Path]:
    yield folder
    yield from sorted(folder.rglob("*"))


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = scripted_project(tmp_path_factory.mktemp("worked"))
    agent = made / "agent.py"
    agent.write_text(f"{agent.read_text()}print('x' * 5000)\n")
    assert cli(made, "run", "--max-steps", "2").returncode == 0
    assert cli(made, "--run", "other", "tick").returncode == 0
    for name in BELOW:
        (made / "sync" / name).mkdir(exist_ok=True)
    return made


@pytest.fixture
def project(worked: Path, tmp_path: Path) -> Path:
    return shutil.copytree(worked, tmp_path / "project")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder full of a stranger's files."""
    for name in STRANGERS:
        path = tmp_path / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a stranger's")
    return tmp_path / "home"


def put_link(project: Path, name: str, home: Path) -> None:
    """Let *name* in *project* be a link to *home*, which then has what was there as well."""
    path = project / name
    shutil.copytree(path, home, dirs_exist_ok=True)
    shutil.rmtree(path)
    path.symlink_to(home)


def refused(ended: subprocess.CompletedProcess[str], name: str) -> None:
    assert ended.returncode == 3, (ended.args, ended.stderr)
    assert f"{name}: is a link, but it has to be a folder of the run" in ended.stderr


LINKED = {
    "sync": (*CHANGING, ("status",), ("plan",), ("history",), ("status", "--all")),
    "sync/beats": CHANGING,
    "sync/results": (("run", "--max-steps", "1"),),
    "sync/runs": (
        ("--run", "other", "tick"),
        ("status", "--all"),
        ("report", "--metrics", "--all-runs"),
    ),
    "sync/runs/other": (("--run", "other", "tick"), ("--run", "other", "status")),
    "logs": (("tick",), ("log",)),
    "logs/local": (("tick",), ("log",)),
    "logs/local/steps": (("tick",), ("log",)),
}
"""Each folder, and the commands that come by it."""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", LINKED)
def test_a_link_in_a_folders_place_is_refused(project: Path, home: Path, name: str) -> None:
    put_link(project, name, home)
    before, worked = seen(home), done(project)
    for command in LINKED[name]:
        refused(cli(project, *command), name)
    for command in (*CHANGING, *LOOKING, ("repair", "--apply"), ("check",)):
        if command not in LINKED[name]:
            assert cli(project, *command).returncode in (0, 2, 3)
    assert seen(home) == before
    if name in ("sync", "sync/beats", "logs"):
        assert done(project) == worked


SWAP = """\
import os, sys, time
sys.stdin.read()
if os.environ["SEQUENCER_STEP_INDEX"] == "3":
    os.rename("{name}", "aside")
    os.symlink("{home}", "{name}")
    time.sleep({sleep})
print("y" * 5000)
"""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", ["sync", "sync/beats", "sync/results", "logs", "logs/local"])
def test_a_link_created_during_a_run_is_refused(project: Path, home: Path, name: str) -> None:
    shutil.copytree(project / name, home, dirs_exist_ok=True)
    sleep = 3 if name.endswith("beats") else 0
    (project / "agent.py").write_text(SWAP.format(name=name, home=home, sleep=sleep))
    with (project / "orchestration.yaml").open("a") as file:
        file.write("store: {ttl_s: 3}\n")
    before = seen(home)
    refused(cli(project, "run", "--max-steps", "4"), name)
    refused(cli(project, "run", "--max-steps", "1"), name)
    assert seen(home) == before


FORGED = """\
import json, os, pathlib, sys
sys.stdin.read()
index, token = int(os.environ["SEQUENCER_STEP_INDEX"]), int(os.environ["SEQUENCER_TOKEN"])
mine = pathlib.Path(os.environ["SEQUENCER_RESULT"])
if index == 0:
    rest = mine.parent.name.removeprefix("0-%d" % token)
    for name in ("1-%d" % (token + 1), "1-%d%s" % (token + 1, rest)):
        ahead = mine.parent.parent / name
        ahead.mkdir()
        answer = {"status": "ok", "output": "FORGED PASS"}
        (ahead / "result.json").write_text(json.dumps(answer))
else:
    mine.write_text(json.dumps({"status": "failed", "output": "TRUE FAIL"}))
"""


def test_a_step_cannot_answer_for_the_next_one(tmp_path: Path) -> None:
    folder = scripted_project(tmp_path / "project")
    (folder / "agent.py").write_text(FORGED)
    ran = cli(folder, "run", "--max-steps", "2")
    assert ran.returncode == 1, ran.stderr
    assert "TRUE FAIL" in cli(folder, "history", "--json").stdout
