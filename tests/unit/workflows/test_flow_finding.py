from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.workflows.finding import AmbiguousName, find_flow, flow_files

CHART = "```mermaid\nflowchart TD\na\n```\n### a\nGo.\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project's folder; the current folder is another one, and so is the home."""
    for name in ("project", "home", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "project"


@pytest.fixture
def home(project: Path) -> Path:
    return project.parent / "home"


def written(path: Path, text: str = CHART) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


PLACES = [
    "project",
    "project/flows",
    "project/.opencode/workflows",
    "home/.config/opencode/workflows",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["review", "review.md"])
def test_a_name_is_looked_for_in_each_folder(
    project: Path, home: Path, place: str, name: str
) -> None:
    path = written(project.parent / place / "review.md")
    assert find_flow(name, project, home) == path


@pytest.mark.parametrize("name", ["review", "review.md"])
def test_a_name_with_several_files_is_ambiguous(project: Path, home: Path, name: str) -> None:
    one = written(project / "flows" / "review.md")
    other = written(home / ".config/opencode/workflows" / "review.md")
    with pytest.raises(AmbiguousName) as refused:
        find_flow(name, project, home)
    assert refused.value.files == (one, other)
    assert refused.value.exit_code == 2
    assert isinstance(refused.value, ConfigurationError)
    assert str(refused.value) == (
        f"several workflows are called {name!r}: {one}, {other}\n  name one of them by its path"
    )
    assert find_flow(str(other), project, home) == other
    assert find_flow("flows/review.md", project, home) == one
    assert find_flow("flows/review", project, home) == one


def test_a_path_is_taken_as_it_is(project: Path, home: Path) -> None:
    written(project / "flows" / "review.md")
    here = written(Path.cwd() / "review.md")
    assert find_flow("review.md", project, home) == here
    assert find_flow("./review.md", project, home) == here
    chart = written(Path.cwd() / "chart.mmd", "graph TD\na\n")
    assert find_flow("chart.mmd", project, home) == chart
    assert find_flow(str(chart), project, home) == chart


@pytest.mark.parametrize("name", ["", " ", "a\0b", "nightly"])
def test_an_unknown_name_lists_the_known_ones(project: Path, home: Path, name: str) -> None:
    written(project / "flows" / "nightlies.md")
    written(project / "triage.md")
    written(project / "README.md", "# About\n")
    with pytest.raises(UnknownName) as refused:
        find_flow(name, project, home)
    assert refused.value.known == ("nightlies", "triage")
    assert (refused.value.kind, refused.value.name) == ("flow", name)


def test_only_files_with_charts_are_listed(project: Path, home: Path) -> None:
    flows = [
        written(project / "b.md"),
        written(project / "flows" / "a.md", "~~~ mermaid\nflowchart TD\n~~~\n"),
        written(home / ".config/opencode/workflows" / "c.MD"),
    ]
    written(project / "README.md", "# About\n")
    written(project / "flows" / "d.txt")
    written(project / "flows" / "deeper" / "e.md")
    os.mkfifo(project / "flows" / "pipe.md")
    (project / "flows" / "gone.md").symlink_to("nowhere")
    assert flow_files(project, home) == tuple(flows)


def test_a_relative_path_outside_the_project_is_found(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = written(project.parent / "other" / "fix.md")
    monkeypatch.chdir(project)
    assert find_flow("../other/fix.md", project, home).samefile(outside)
    # The target of a link has another folder above it than the link.
    (project / "sub").symlink_to(written(project.parent / "far" / "in" / "x.md").parent)
    written(project.parent / "far" / "fix.md")
    written(project / "fix.md")
    with pytest.raises(UnsafePath, match="a link leads out"):
        find_flow("sub/../fix.md", project, home)


@pytest.mark.parametrize("name", ["away", "flows/away.md", "linked", "sub/linked.md"])
def test_a_link_out_of_the_project_is_not_one_of_its_workflows(
    project: Path, home: Path, name: str
) -> None:
    outside = written(project.parent / "other" / "linked.md")
    (project / "flows").mkdir()
    (project / "flows" / "away.md").symlink_to(outside)
    (project / "sub").symlink_to(outside.parent)
    assert flow_files(project, home) == ()
    with pytest.raises((UnsafePath, UnknownName)):
        find_flow(name, project, home)
    written(project / "kept" / "here.md")
    (project / "flows" / "here.md").symlink_to(project / "kept" / "here.md")
    assert find_flow("here", project, home) == project / "flows" / "here.md"


@pytest.mark.parametrize("name", ["README.md", "Readme.md"])
def test_a_readme_is_not_a_workflow(tmp_path: Path, name: str) -> None:
    (tmp_path / "flows").mkdir()
    path = tmp_path / "flows" / name
    path.write_text("```mermaid\nflowchart TD\n  a --> b\n```\n")
    assert flow_files(tmp_path, tmp_path / "home") == ()
    for asked in (path.stem, str(path)):
        with pytest.raises(ConfigurationError, match="is not a workflow"):
            find_flow(asked, tmp_path, tmp_path / "home")
