"""What others build on: the source distribution, the action, the container for development."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from sequencer import __version__
from tests.clones import git
from tests.project.documents import ROOT
from tests.project.shared_files import COMMAND, FILES, FOLDER, printed

ACTION = ROOT / "packaging/action/action.yml"
TREES = ("docs", "examples", "packaging", "prompts", "sequencer", "skills")
"""Of the repository, what a source distribution has; pictures of documents are left out."""
MAX_BYTES = 2_000_000
PICTURES = (".gif", ".jpg", ".png", ".webp")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def built(kind: str, folder: Path, to: Path) -> Path:
    """Build *kind* from *folder* with the installed setuptools, without a network."""
    build = f"from setuptools import build_meta as b; print(b.build_{kind}({str(to)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return to / done.stdout.split()[-1]


def unpack(path: Path, to: Path) -> None:
    """Write the files of the archive at *path* into *to*, and nothing outside of it.

    The filters of `tarfile` came with patch releases: 3.11.4 has them, 3.11.2 does not.
    """
    with tarfile.open(path) as archive:
        for member in archive:
            assert member.isfile() or member.isdir(), member.name
            target = Path(os.path.normpath(to / member.name))
            assert target.is_relative_to(to), member.name
            if (content := archive.extractfile(member)) is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_an_archive_is_unpacked_only_into_its_folder(name: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(AssertionError, match="outside"):
        unpack(tmp_path / "evil.tar", tmp_path / "to")


class Built(NamedTuple):
    """A clone with one commit, and what was built from it."""

    files: list[str]
    commit: str
    sdist: Path
    unpacked: Path
    wheel: Path


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a source distribution of a clone, and a wheel that was built from it without git."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a clone knows which files belong to it")
    folder = tmp_path_factory.mktemp("packages")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    files = [name for name in listed if (ROOT / name).is_file()]
    clone = folder / "clone"
    for name in files:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes((ROOT / name).read_bytes())
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "All of it")
    commit = git(clone, "log", "-1", "--abbrev=12", "--format=%h of %cs")
    sdist = built("sdist", clone, folder)
    unpack(sdist, folder / "unpacked")
    [unpacked] = (folder / "unpacked").iterdir()
    # In another repository, whose commit is not the package's.
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "Another")
    return Built(files, commit, sdist, unpacked, built("wheel", unpacked, folder))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_source_distribution_has_no_tests_and_no_pictures(
    packages: Built,
) -> None:
    root = packages.unpacked
    assert root.name == f"step_sequencer-{__version__}"
    drawn = re.compile(r"docs/.*\.(png|svg)")
    wanted = [n for n in packages.files if n.startswith(TREES) and not drawn.fullmatch(n)]
    assert [name for name in wanted if not (root / name).is_file()] == []
    packed = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    assert [path for path in packed if path.parts[0] in ("tests", "bench")] == []
    assert [path for path in packed if path.suffix in PICTURES] == []
    assert packages.sdist.stat().st_size < MAX_BYTES


@pytest.mark.timeout(240)
def test_the_wheel_has_only_the_program_its_manual_and_completions(
    packages: Built, tmp_path: Path
) -> None:
    with zipfile.ZipFile(packages.wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        archive.extractall(tmp_path)  # noqa: S202 - built a moment ago
    own = {name for name in packages.files if name.startswith("sequencer/")}
    assert own | {"sequencer/built.txt"} <= names
    shared = f"step_sequencer-{__version__}.data/data/share/"
    assert {name for name in names if name.startswith(shared)} == {shared + one for one in FILES}
    for name in FILES:
        assert (tmp_path / shared / name).read_text() == (FOLDER / name).read_text()
    packed = {Path(name).parts[0] for name in names}
    of_wheel = {f"step_sequencer-{__version__}.{kind}" for kind in ("data", "dist-info")}
    assert packed == {"sequencer"} | of_wheel
    pictures = [name for name in names if name.endswith(PICTURES)]
    assert pictures == []
    assert packages.wheel.stat().st_size < MAX_BYTES


@pytest.mark.timeout(240)
def test_a_package_names_its_commit_also_when_built_from_the_sdist(
    packages: Built, tmp_path: Path
) -> None:
    with zipfile.ZipFile(packages.wheel) as archive:
        archive.extractall(tmp_path)  # noqa: S202 - built a moment ago
    said = subprocess.run(
        [sys.executable, "-m", "sequencer", "--version"],
        # No git is asked where the package is.
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path), "PATH": "/nowhere"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said == f"sequencer {__version__} (commit {packages.commit})\n"


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", FILES)
def test_the_manual_and_the_completions_match_what_the_program_prints(name: str) -> None:
    assert (FOLDER / name).read_text() == printed(FILES[name]), f"run: {COMMAND}"


def test_the_package_metadata_has_only_known_facts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [one["name"] for one in project["authors"]] == ["The Sequencer developers"]
    assert "The Sequencer developers" in (ROOT / "LICENSE").read_text()
    assert not any("example." in url for url in project.get("urls", {}).values())
    assert project["classifiers"] == sorted(set(project["classifiers"]))


def action() -> dict[str, Any]:
    found = yaml.safe_load(ACTION.read_text())
    assert isinstance(found, dict)
    return found


def played(
    folder: Path, name: str, variables: dict[str, str], path: str = os.environ["PATH"]
) -> subprocess.CompletedProcess[str]:
    """Run the shell of the step *name* as a runner does; what its event has not is empty."""
    step = next(step for step in action()["runs"]["steps"] if step["name"] == name)
    environment = {
        **dict.fromkeys(step["env"], ""), "PATH": path, "RUNNER_TEMP": str(folder), **variables
    }  # fmt: skip
    return subprocess.run(
        # As GitHub calls it for `shell: bash`.
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def ticked(
    folder: Path, code: int, **variables: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the step 'Tick' as a runner does, where ``sequencer`` ends with *code*."""
    program = folder / "sequencer/bin/sequencer"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" "$SEQUENCER_TRUST" >> "{folder}/called"\n'
                       'say() { printf "::add-path::/evil\\nno end" >&2; }\n'
                       f'[ "$1" = tick ] && say && exit {code}\n'
                       'echo "# said"\n')  # fmt: skip
    program.chmod(0o755)
    files = {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": f"{folder}/summary"}
    done = played(folder, "Tick", {"FOLDER": ".", **files, **variables})
    called = folder / "called"
    return done, called.read_text() if called.exists() else ""


@pytest.mark.parametrize(("code", "job"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (75, 0)])
def test_the_action_ends_with_the_result_of_the_tick(tmp_path: Path, code: int, job: int) -> None:
    done, called = ticked(tmp_path, code)
    assert done.returncode == job, done.stderr
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    assert called.splitlines()[:2] == ["tick", str(tmp_path)]
    assert (tmp_path / "summary").read_text() == "    # said\n"


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({}, 0),
        ({"PULL_REQUEST": "7", "PULL_REQUEST_HEAD": "we/ours"}, 0),
        ({"PULL_REQUEST": "7", "PULL_REQUEST_HEAD": "they/ours"}, 2),
        ({"PULL_REQUEST": "7"}, 2),
        ({"WORKFLOW_RUN": "9", "WORKFLOW_RUN_HEAD": "we/ours"}, 0),
        ({"WORKFLOW_RUN": "9", "WORKFLOW_RUN_HEAD": "they/ours"}, 2),
        ({"WORKFLOW_RUN": "9"}, 2),
        ({"COMMENTED": "https://api.github.com/repos/we/ours/pulls/7"}, 2),
    ],
    ids=str,
)
def test_the_action_refuses_a_fork_before_anything_runs(
    tmp_path: Path, event: dict[str, str], code: int
) -> None:
    first = action()["runs"]["steps"][0]
    done = played(tmp_path, first["name"], {"OWN": "we/ours", **event}, path="/nowhere:/bin")
    assert done.returncode == code, done.stderr
    assert ("Nothing of it was run." in done.stderr) == bool(code)


def test_the_action_installs_nothing_from_the_checkout(tmp_path: Path) -> None:
    checkout, temp = tmp_path / "checkout", tmp_path / "temp"
    tools, bins = tmp_path / "tools", temp / "sequencer/bin"
    for folder in (checkout, tools, bins):
        folder.mkdir(parents=True)
    for program in (tools / "python3", bins / "python"):
        program.write_text(f'#!/bin/sh\necho "$PWD $*" >> "{tmp_path}/called"\n')
        program.chmod(0o755)
    done = played(checkout, "Install",
                  {"RUNNER_TEMP": str(temp), "GITHUB_ACTION_PATH": "/a/b/c", "EXTRAS": "fleet"},
                  path=f"{tools}:/bin:/usr/bin")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "called").read_text().splitlines() == [
        f"{temp} -I -m venv {temp}/sequencer",
        f"{temp} -I -m pip install --quiet /a/b/c/../..[fleet]",
    ]


def test_the_runner_accepts_no_command_from_an_agents_output(tmp_path: Path) -> None:
    first, again = (ticked(tmp_path, 4)[0] for _ in range(2))
    for done in (first, again):
        assert done.stderr == ""
        begin, said, *rest, end, notice = done.stdout.splitlines()
        token = begin.removeprefix("::stop-commands::")
        assert (len(token), said, end) == (32, "::add-path::/evil", f"::{token}::")
        assert not any(line.startswith(f"::{token}") for line in rest)
        assert notice.startswith("::notice::")
    assert first.stdout != again.stdout


def test_the_action_quotes_its_inputs(tmp_path: Path) -> None:
    done, called = ticked(tmp_path, 0, RUN="a b; touch owned", FOLDER=".")
    assert done.returncode == 0
    assert called.splitlines()[0] == "--run=a b; touch owned tick"
    assert not (tmp_path / "owned").exists()
    # Inputs reach the scripts as variables: what is pasted into a script is run.
    assert not any("${{" in step["run"] for step in action()["runs"]["steps"])


def test_the_container_installs_existing_extras() -> None:
    text = (ROOT / ".devcontainer/devcontainer.json").read_text()
    command = json.loads(text)["postCreateCommand"]
    named = command.partition("[")[2].partition("]")[0].split(",")
    assert set(named) <= set(EXTRAS)
