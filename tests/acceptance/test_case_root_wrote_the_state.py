"""One command under sudo in somebody's project, and what the user's own commands do then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_process import CASES, STRANGER, cli, cli_as_stranger, strangers_copy

STEP = ("run", "--agent", "rehearsal", "--max-steps", "1")
GIVE_BACK = "give it back to you: 'sudo chown -R 12345 sync logs'"


@pytest.fixture
def folder() -> Iterator[Path]:
    with strangers_copy(CASES / "root-wrote-the-state") as made:
        yield made


def as_user(folder: Path, *arguments: str) -> tuple[int, str]:
    done = cli_as_stranger(folder, *arguments, SEQUENCER_TRUST="all", HOME=str(folder.parent))
    return done.returncode, done.stdout + done.stderr


def owners(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_uid for path in folder.rglob("*")}


@pytest.mark.slow
def test_files_root_creates_belong_to_the_folder_owner(folder: Path) -> None:
    # The first of all commands, and one between the user's own.
    for first, second in ((cli, as_user), (as_user, cli)):
        for name in ("sync", "logs"):
            shutil.rmtree(folder / name, ignore_errors=True)
        first(folder, *STEP)
        second(folder, *STEP)
        code, said = as_user(folder, *STEP)
        assert code == 0, said
        assert set(owners(folder).values()) == {STRANGER}
        code, said = as_user(folder, "status")
        assert code == 0, said
        assert "3 steps" in said


@pytest.mark.parametrize("given", ["sync/state.json", "sync"])
def test_files_owned_by_root_are_reported_with_owner_and_fix(folder: Path, given: str) -> None:
    code, said = as_user(folder, *STEP)
    assert code == 0, said
    for path in (folder / given, *(folder / given).rglob("*")):
        os.chown(path, 0, 0)
        path.chmod(0o700 if path.is_dir() else 0o600)
    for words in (["status"], STEP):
        code, said = as_user(folder, *words)
        assert code == 3, said
        assert "belongs to root, and you are 12345" in said
        assert GIVE_BACK in said
    code, said = as_user(folder, "check")
    assert "belongs to root, and you are 12345" in said
    assert GIVE_BACK in said


def test_logs_of_root_are_named_too(folder: Path) -> None:
    code, said = as_user(folder, *STEP)
    assert code == 0, said
    for path in (folder / "logs", *(folder / "logs").rglob("*")):
        os.chown(path, 0, 0)
        path.chmod(0o700 if path.is_dir() else 0o600)
    for words, expected in ((STEP, 3), (["log"], 3), (["check"], 2)):
        code, said = as_user(folder, *words)
        assert code == expected, said
        assert "belongs to root, and you are 12345" in said
        assert GIVE_BACK in said
