"""A prompt is read once, and again whenever anything on the way to it has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.errors import UnknownName, UnsafePath
from sequencer.workflows import prompts
from sequencer.workflows.prompts import PromptReader

LONG_AGO = 1_700_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # The tests' own files are younger than any file that is worth remembering.
    monkeypatch.setattr(prompts, "SETTLED_NS", -1_000_000_000)
    made = tmp_path / "prompts"
    (made / "team").mkdir(parents=True)
    (made / "main.md").write_text("one")
    (made / "team" / "plan.md").write_text("plan")
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every name that was really read."""
    names: list[str] = []
    real = prompts._read_regular

    def counted(path: Path, name: str) -> bytes:
        names.append(name)
        return real(path, name)

    monkeypatch.setattr(prompts, "_read_regular", counted)
    return names


def test_what_has_not_changed_is_read_once(folder: Path, reads: list[str]) -> None:
    reader = PromptReader(folder)
    assert [reader.read("main") for _ in range(3)] == ["one"] * 3
    assert [reader.read("team/plan.md") for _ in range(3)] == ["plan"] * 3
    assert reads == ["main", "team/plan.md"]


@pytest.mark.parametrize("text", ["two!", "two"])
def test_an_edit_is_seen(folder: Path, text: str) -> None:
    reader = PromptReader(folder)
    assert reader.read("main") == "one"
    (folder / "main.md").write_text(text)
    assert reader.read("main") == text


def test_an_edit_that_hides_its_time_is_seen(folder: Path) -> None:
    reader = PromptReader(folder)
    os.utime(folder / "main.md", (LONG_AGO, LONG_AGO))
    assert reader.read("main") == "one"
    (folder / "main.md").write_text("two")
    os.utime(folder / "main.md", (LONG_AGO, LONG_AGO))
    assert reader.read("main") == "two"


def test_a_folder_that_replaces_its_folder_is_seen(folder: Path) -> None:
    reader = PromptReader(folder)
    assert reader.read("team/plan") == "plan"
    (folder / "team").rename(folder / "old")
    (folder / "team").mkdir()
    (folder / "team" / "plan.md").write_text("new plan")
    assert reader.read("team/plan") == "new plan"
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(UnknownName):
        reader.read("team/plan")


def test_a_link_that_is_turned_outside_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("secret")
    (folder / "alias.md").symlink_to("main.md")
    reader = PromptReader(folder)
    assert reader.read("alias") == "one"
    (folder / "alias.md").unlink()
    (folder / "alias.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(UnsafePath):
        reader.read("alias")


def test_a_file_of_this_moment_is_not_remembered(
    folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two edits within one tick of the file system's clock leave the same marks."""
    monkeypatch.setattr(prompts, "SETTLED_NS", 2_000_000_000)
    reader = PromptReader(folder)
    assert [reader.read("main") for _ in range(3)] == ["one"] * 3
    (folder / "main.md").write_text("two")
    os.utime(folder / "main.md", (LONG_AGO, LONG_AGO))
    assert reader.read("main") == "two"
    assert reads == ["main"] * 4
