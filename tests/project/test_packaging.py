"""What others build on: the source distribution, the action, the container for development."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from sequencer import __version__
from tests.project.documents import ROOT

ACTION = ROOT / "packaging/action/action.yml"
TREES = ("bench", "docs", "examples", "packaging", "prompts", "sequencer", "tests")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def built(kind: str, folder: Path, to: Path) -> Path:
    """Build *kind* from *folder* with the installed setuptools, without a network."""
    build = f"from setuptools import build_meta as b; print(b.build_{kind}({str(to)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return to / done.stdout.split()[-1]


@pytest.mark.timeout(240)
def test_the_source_distribution_has_tests_and_documents_and_builds_offline(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("only a clone knows which files belong to it")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    files = [name for name in listed if (ROOT / name).is_file()]
    copy = tmp_path / "copy"
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    with tarfile.open(built("sdist", copy, tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [root] = (tmp_path / "unpacked").iterdir()
    assert root.name == f"step_sequencer-{__version__}"
    missing = [n for n in files if n.startswith(TREES) and not (root / n).is_file()]
    assert missing == []
    wheel = built("wheel", root, tmp_path)
    target = tmp_path / "target"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)  # noqa: S202 - built a moment ago
    packaged = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert {name for name in files if name.startswith("sequencer/")} <= packaged
    said = subprocess.run(
        [sys.executable, "-m", "sequencer", "--version"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said == f"sequencer {__version__}\n"


def action() -> dict[str, Any]:
    found = yaml.safe_load(ACTION.read_text())
    assert isinstance(found, dict)
    return found


def ticked(
    folder: Path, code: int, **variables: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the step 'Tick' as a runner does, where ``sequencer`` ends with *code*."""
    program = folder / "sequencer/bin/sequencer"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" "$SEQUENCER_TRUST" >> "{folder}/called"\n'
                       f'[ "$1" = tick ] && exit {code}; echo "# said"\n')  # fmt: skip
    program.chmod(0o755)
    script = next(step["run"] for step in action()["runs"]["steps"] if step.get("id") == "tick")
    environment = {
        "PATH": os.environ["PATH"],
        "RUNNER_TEMP": str(folder),
        "RUN": "",
        "FOLDER": ".",
        "IS_FORK": "",
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        **variables,
    }
    done = subprocess.run(
        # As GitHub calls it for `shell: bash`.
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    called = folder / "called"
    return done, called.read_text() if called.exists() else ""


@pytest.mark.parametrize(("code", "job"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (75, 0)])
def test_the_action_ends_as_the_tick_says(tmp_path: Path, code: int, job: int) -> None:
    done, called = ticked(tmp_path, code)
    assert done.returncode == job, done.stderr
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    assert called.splitlines()[:2] == ["tick", str(tmp_path)]
    assert (tmp_path / "summary").read_text() == "    # said\n"


def test_the_action_quotes_what_it_is_given_and_runs_nothing_of_a_fork(tmp_path: Path) -> None:
    done, called = ticked(tmp_path, 0, RUN="a b; touch owned", FOLDER=".")
    assert done.returncode == 0
    assert called.splitlines()[0] == "--run=a b; touch owned tick"
    assert not (tmp_path / "owned").exists()
    (tmp_path / "called").unlink()
    done, called = ticked(tmp_path, 0, IS_FORK="true")
    assert (done.returncode, called) == (2, "")
    # Inputs reach the scripts as variables: what is pasted into a script is run.
    assert not any("${{" in step["run"] for step in action()["runs"]["steps"])


def test_the_container_installs_extras_that_there_are() -> None:
    text = (ROOT / ".devcontainer/devcontainer.json").read_text()
    command = json.loads(text)["postCreateCommand"]
    named = command.partition("[")[2].partition("]")[0].split(",")
    assert set(named) <= set(EXTRAS)
