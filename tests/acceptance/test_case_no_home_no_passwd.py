"""A numeric user without an entry in passwd and without HOME: a container, or a systemd unit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_process import CASES, cli_as_stranger, strangers_copy

UNKNOWN = "there is no place for your own records: your home folder is unknown"
HINT = "set HOME or XDG_STATE_HOME to a folder of yours"


@pytest.fixture
def folder() -> Iterator[Path]:
    with strangers_copy(CASES / "no-home-no-passwd") as made:
        yield made


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "words",
    ["trust --yes", "check", "tick", "run --max-steps 1", "start hello --no-run", "trust --list"],
)
def test_commands_that_need_the_trust_record_name_the_variable_to_set(
    folder: Path, words: str
) -> None:
    done = cli_as_stranger(folder, *words.split())
    assert done.returncode == 2, done.stderr
    said = done.stdout + done.stderr
    assert UNKNOWN in said
    assert HINT in said
    assert "bug" not in said


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME"])
def test_either_variable_is_enough(folder: Path, variable: str) -> None:
    trusted = cli_as_stranger(folder, "trust", "--yes", **{variable: str(folder.parent)})
    assert trusted.returncode == 0, trusted.stderr
    done = cli_as_stranger(folder, "run", "--max-steps", "1", **{variable: str(folder.parent)})
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("home", [{}, {"HOME": ""}])
def test_a_vouched_for_project_needs_no_home(folder: Path, home: dict[str, str]) -> None:
    for words in (
        *("check", "tick", "run --max-steps 1", "status", "plan", "clean", "report", "history"),
        "start hello --no-run",
    ):
        done = cli_as_stranger(folder, *words.split(), SEQUENCER_TRUST="all", **home)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("help --completion bash --install", "set HOME or XDG_DATA_HOME to a folder of yours"),
        ("schedule show --with systemd", "set HOME or XDG_CONFIG_HOME to a folder of yours"),
        ("schedule show --with launchd", "set HOME to a folder of yours"),
    ],
)
def test_commands_that_write_to_the_home_folder_name_the_variable_to_set(
    folder: Path, words: str, hint: str
) -> None:
    done = cli_as_stranger(folder, *words.split(), SEQUENCER_TRUST="all")
    assert done.returncode == 2, done.stderr
    assert "your home folder is unknown" in done.stderr
    assert hint in done.stderr


def test_a_home_path_in_the_configuration_is_refused(folder: Path) -> None:
    with (folder / "orchestration.yaml").open("a") as file:
        file.write("\nprompts_dir: ~/prompts\n")
    done = cli_as_stranger(folder, "run", "--max-steps", "1", SEQUENCER_TRUST="all")
    assert done.returncode == 2
    where = "orchestration.yaml:4:1: prompts_dir"
    assert f"{where}: '~/prompts': your home folder is unknown" in done.stderr
    assert "set HOME to a folder of yours, or write a path without ~" in done.stderr
