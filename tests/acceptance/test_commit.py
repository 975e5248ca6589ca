"""`sequencer plan --commit` as a child process, in real repositories."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, scripted_project
from tests.unit.git.clones import SECRET, everything, git, write

DECLARED = "commit: {paths: [docs/], report_extensions: [.png], max_file_bytes: 100}\n"


def project(folder: Path, configuration: str = DECLARED) -> Path:
    """Make a project in a repository, all of it committed."""
    scripted_project(folder)
    with (folder / "orchestration.yaml").open("a") as file:
        file.write(configuration)
    git(folder, "init", "-q", "-b", "main")
    write(
        folder, {"docs/old.md": "1", "docs/gone.md": "1", "main.py": "1", ".gitignore": "*.tmp\n"}
    )
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def shown(folder: Path, *arguments: str) -> dict[str, Any]:
    done = cli(folder, "plan", "--commit", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_plan_lists_committed_and_excluded_files_with_reasons(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    write(folder, {"docs/old.md": "22", "docs/new.md": "3", "main.py": "2", "a.png": "4444"})
    write(folder, {"docs/large": "x" * 101, "docs/key": SECRET, "docs/.env": "x", "x.tmp": "x"})
    (folder / "docs" / "gone.md").unlink()
    write(folder, {"docs/staged.md": "1"})
    git(folder, "add", "docs/staged.md")
    before = everything(folder)
    found = shown(folder)
    assert found["branch"] == "main"
    assert found["open"] is True
    assert found["bytes"] == 7
    assert found["committed"] == [
        {"path": "a.png", "change": "added", "key": "report_extensions", "bytes": 4},
        {"path": "docs/gone.md", "change": "deleted", "key": "paths", "bytes": 0},
        {"path": "docs/new.md", "change": "added", "key": "paths", "bytes": 1},
        {"path": "docs/old.md", "change": "modified", "key": "paths", "bytes": 2},
    ]
    assert {one["path"]: one["reason"] for one in found["skipped"]} == {
        "docs/.env": "has a name that is used for secrets",
        "docs/key": "contains what looks like a key",
        "docs/large": "has 101 bytes, more than 100",
        "docs/staged.md": "has staged changes",
        "main.py": "is not declared in 'commit'",
    }
    assert {one["path"] for one in found["skipped"] if not one["declared"]} == {"main.py"}
    assert everything(folder) == before


def test_the_table_for_people(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    write(folder, {"docs/new.md": "123", "main.py": "2", "docs/\x1b[31mred\nline": "x"})
    done = cli(folder, "plan", "--commit")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["CHANGE", "BYTES", "PATH", "WHY"]
    assert ["added", "3", "docs/new.md", "commit.paths"] in lines
    assert ["-", "main.py", "is", "not", "declared", "in", "'commit'"] in lines
    assert len(lines) == 4
    assert "\x1b" not in done.stdout
    assert "2 would be committed (4 bytes), 1 would not" in done.stderr


def test_nothing_has_changed(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    done = cli(folder, "plan", "--commit")
    assert (done.returncode, done.stdout) == (0, "nothing changed in the work tree\n")


def test_without_declared_paths_nothing_is_committed(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "")
    write(folder, {"docs/new.md": "1"})
    done = cli(folder, "plan", "--commit")
    assert done.returncode == 0
    assert "commit.paths" in done.stderr
    assert shown(folder)["committed"] == []
    assert shown(folder)["open"] is False


def test_a_folder_without_git(tmp_path: Path) -> None:
    folder = scripted_project(tmp_path / "p")
    done = cli(folder, "plan", "--commit", GIT_CEILING_DIRECTORIES=str(tmp_path))
    assert done.returncode == 3
    assert "is not in a git work tree" in done.stderr
    assert "Traceback" not in done.stderr


def test_secrets_of_the_environment(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    write(folder, {"docs/a.md": "my value is correct-horse", "docs/correct-horse.md": "x"})
    done = cli(folder, "plan", "--commit", "--json", MY_API_KEY="correct-horse")
    assert json.loads(done.stdout)["committed"] == []
    assert "correct-horse" not in done.stdout + done.stderr


def test_from_a_folder_below(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    write(folder, {"docs/new.md": "1"})
    assert [one["path"] for one in shown(folder / "docs")["committed"]] == ["docs/new.md"]


def test_the_files_of_a_run_and_of_its_sinks(tmp_path: Path) -> None:
    sinks = "activity: {sinks: {file: {kind: jsonl, path: told/all.jsonl}}}\n"
    folder = project(tmp_path / "p", "commit: {paths: ['**']}\n" + sinks)
    # Folders that are there already: git ignores those that a run makes.
    for name in ("told", "sync", "logs"):
        (folder / name).mkdir()
    ran = cli(folder, "run", "--max-steps", "2", "--quiet")
    assert ran.returncode == 0, ran.stderr
    assert (folder / "told" / "all.jsonl").exists()
    found = shown(folder)
    assert [one["path"] for one in found["committed"]] == ["done.txt"]
    own = {one["path"] for one in found["skipped"] if one["reason"] == "is a file of the run"}
    assert "told/all.jsonl" in own
    assert "sync/state.json" in own
    assert any(path.startswith("logs/") for path in own)


def test_keys_of_the_older_program_are_understood(tmp_path: Path) -> None:
    old = """\
doc_whitelist: [docs/*.md, plans/**/*.md]
max_autocommit_bytes: 2
report_extensions: [.txt]
report_path_globs: [reports/**]
tracked_output_globs: ["*.py"]
store: {kind: git}
"""
    folder = project(tmp_path / "p", old)
    write(folder, {"docs/old.md": "22", "docs/new.md": "333", "plans/a.md": "1", "main.py": "2"})
    write(folder, {"reports/a.txt": "1", "b.txt": "1", "new.py": "1", "tmp/reports/a.txt": "1"})
    found = shown(folder)
    assert {one["path"]: one["key"] for one in found["committed"]} == {
        "docs/old.md": "doc_whitelist",
        "main.py": "tracked_output_globs",
        "plans/a.md": "doc_whitelist",
        "reports/a.txt": "report_extensions",
    }


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_a_project_behind_a_link(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    (tmp_path / "link").symlink_to(folder)
    write(folder, {"docs/new.md": "1"})
    assert [one["path"] for one in shown(tmp_path / "link")["committed"]] == ["docs/new.md"]
