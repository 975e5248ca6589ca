"""The README's two commands can be typed, and the second is the one that CI ends with."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from sequencer.errors import WaitsForPerson
from tests.project.documents import ROOT, Fence, fences, run_fences

README = ROOT / "README.md"
TEST_COMMAND = "python -m pytest -q -n 3"


def setup_blocks() -> list[Fence]:
    return [fence for fence in fences(README) if fence.language == "sh"]


def test_there_are_two_commands_of_one_line_each() -> None:
    assert [len(fence.lines) for fence in setup_blocks()] == [1, 1]


@pytest.mark.parametrize("fence", setup_blocks(), ids=["main job", "tests"])
def test_a_command_is_right_in_every_shell_that_people_have(fence: Fence) -> None:
    shells = [shell for shell in ("bash", "dash", "zsh") if shutil.which(shell)]
    assert "bash" in shells
    for shell in shells:
        subprocess.run([shell, "-n", "-c", fence.text], check=True, timeout=10)
    # zsh takes a bare [test] for a pattern.
    assert "'.[test]'" in fence.text or "[" not in fence.text


def test_a_command_needs_nothing_but_python_git_and_pip() -> None:
    for fence in setup_blocks():
        programs = [shlex.split(part)[0] for part in fence.text.split("&&")]
        made = {".", ".venv/bin/pip", ".venv/bin/sequencer", "pip", "python"}
        assert programs[0] == "python3", programs
        assert set(programs[1:]) <= made, programs


def test_the_main_job_is_the_demo_of_an_installed_package() -> None:
    parts = [part.strip() for part in setup_blocks()[0].text.split("&&")]
    assert parts[1:] == [".venv/bin/pip install .", ".venv/bin/sequencer demo"]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"sequencer": "sequencer.cli:main"}


def test_the_extra_that_the_tests_need_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert "test" in extras
    assert any(name.startswith("pytest-xdist") for name in extras["test"]), "for -n 3"


def test_ci_ends_with_the_readmes_test_command() -> None:
    last = setup_blocks()[1].text.strip().split("&&")[-1].strip()
    script = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.strip()]
    assert last == TEST_COMMAND
    assert script[-1] == TEST_COMMAND
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True, timeout=10)


def test_the_quick_start_is_short() -> None:
    shown = [fence for fence in fences(README) if fence.is_run]
    assert 5 <= sum(len(fence.lines) for fence in shown) <= 20


def test_the_section_about_flowcharts_works_as_printed(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    left = shutil.ignore_patterns("sync", "logs")
    shutil.copytree(ROOT / "examples", clone / "examples", ignore=left)
    (shown,) = [one for one in fences(README) if "sequencer run code-review" in one.text]
    ran = run_fences([shown], clone)
    waits = [one.command.text for one in ran if one.exit_code == WaitsForPerson.exit_code]
    assert [one.command.text for one in ran if one.exit_code not in (0, 4)] == []
    assert waits == ["sequencer run code-review --state base=main", "sequencer run code-review"]
    assert "the run is completed after 7 steps" in ran[-1].output
    assert "Is the report right?" in ran[-3].output


def test_the_promise_comes_first() -> None:
    text = README.read_text()
    promise = text.index("exactly-once; agent runs are at-least-once")
    assert promise < text.index("Not promised") < text.index("## Two commands")
    for sentence in ("No state is ever guessed", "Nothing runs for ever by accident", "Rest costs"):
        assert promise < text.index(sentence) < text.index("Not promised")


def test_the_markers_are_explained() -> None:
    page = (ROOT / "docs" / "how-to" / "develop.md").read_text()
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    markers = [marker.partition(":")[0] for marker in options["markers"]]
    assert [m for m in markers if f"python -m pytest -m {m}" not in page] == []


def test_the_license_is_the_one_that_the_package_names() -> None:
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
    assert "MIT licence" in README.read_text()
    assert Path(ROOT / "pyproject.toml").read_text().count('license = "MIT"') == 1
