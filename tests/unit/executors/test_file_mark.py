"""By which file an agent has done its work, and by which it has not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.executors import file_watch as file_mark
from sequencer.executors.file_watch import FileWatch
from sequencer.frozen.fields import ValidationError
from sequencer.model.step import Step


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_mark, "LOOK_S", 0.0)
    monkeypatch.setattr(file_mark, "SETTLED_S", 0.0)


def test_a_file_that_appears_or_changes_is_a_mark(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "done.md"
    watch = FileWatch(tmp_path, "out/done.md")
    assert not watch.has_appeared()
    path.write_text("")
    assert watch.has_appeared()
    watch = FileWatch(tmp_path, "out/done.md")
    assert not watch.has_appeared(), "it is the one of the step before"
    path.write_text("more")
    assert watch.has_appeared()
    path.unlink()
    assert not watch.has_appeared()


def test_a_file_that_is_being_written_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = FileWatch(tmp_path, "done")
    monkeypatch.setattr(file_mark, "SETTLED_S", 60.0)
    (tmp_path / "done").write_text("half")
    assert not watch.has_appeared()
    monkeypatch.setattr(file_mark, "SETTLED_S", 0.0)
    assert watch.has_appeared()


def test_a_link_a_folder_and_a_pipe_are_not_marks(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "done").write_text("x")
    project = tmp_path / "project"
    project.mkdir()
    marks = [FileWatch(project, name) for name in ("link", "folder", "pipe", "way/done")]
    (project / "link").symlink_to(outside / "done")
    (project / "folder").mkdir()
    os.mkfifo(project / "pipe")
    (project / "way").symlink_to(outside)
    assert [mark.has_appeared() for mark in marks] == [False] * 4


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "a/..", ".", "a/", "a//b", "", "a\nb", "./a"]
)
def test_a_path_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=r"complete_when"):
        Step.model_validate({"name": "main", "complete_when": {"file": name}})


@pytest.mark.parametrize("value", [5, ["a"], "", {"files": "a"}, {}, {"file": 3}])
def test_other_forms_are_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        Step.model_validate({"name": "main", "complete_when": value})
