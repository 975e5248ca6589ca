from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.acceptance.flow_projects import make_project, write_flow
from tests.unit.cli.calling import Called, call, project

CHART = """\
  plan --> parser & tests
  parser & tests --> join((All)) --> publish
"""
PROMPTS = {name: f"Say {name}" for name in ("plan", "parser", "tests", "publish")}


# What has no encoding of its own, as here, is written to in ASCII.


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """Make a project with the finished run ``f``."""
    folder = make_project(tmp_path)
    write_flow(folder, "f", CHART, **PROMPTS)
    assert call(folder, "run", "f", "--quiet").code == 0
    return folder


def gantt(folder: Path, *arguments: str) -> Called:
    ended = call(folder, "gantt", *arguments)
    assert ended.code == 0, ended.err
    return ended


def as_json(folder: Path, *arguments: str) -> Any:
    return json.loads(gantt(folder, "--json", *arguments).out)


def test_attempts_are_as_precise_as_what_they_waited_for(finished: Path) -> None:
    """Whole seconds would let the tasks behind the plan begin before its end."""
    told = as_json(finished, "--run", "f")
    spans = {one["step"]: one["spans"][0] for one in told["executions"] if one["spans"]}
    for before, after in (("plan", "parser"), ("plan", "tests"), ("tests", "publish")):
        # A millisecond is what the record of a beginning cuts off.
        assert spans[before]["end_s"] <= spans[after]["begin_s"] + 0.001


def test_pictures(finished: Path) -> None:
    ended = gantt(finished, "--run", "f", "--svg", "f.svg", "--png", "f.png")
    assert ended.out == ""
    assert "f.svg was written" in ended.err
    root = ET.parse(finished / "f.svg").getroot()  # noqa: S314 - our own
    assert any("wall-clock time" in (element.text or "") for element in root.iter())
    assert (finished / "f.png").read_bytes().startswith(b"\x89PNG")
    again = call(finished, "gantt", "--run", "f", "--svg", "orchestration.yaml")
    assert again.code == 2
    assert "something else than a picture" in again.err


def test_what_is_refused(finished: Path) -> None:
    assert call(finished, "gantt", "--run", "nobody").code == 2
    for more in (("--svg", "x.svg"), ("--png", "x.png"), ("--width", "80")):
        ended = call(finished, "gantt", "--run", "f", "--json", *more)
        assert ended.code == 2
        assert "a drawing is no JSON" in ended.err


def test_a_run_that_was_never_begun(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    ended = gantt(folder)
    assert ended.out == ""
    assert "nothing has happened yet" in ended.err
    told = as_json(folder)
    assert (told["executions"], told["began_at"], told["workflow"]) == ([], None, None)


def test_a_flow_that_was_changed_is_still_shown(finished: Path) -> None:
    write_flow(finished, "f", CHART.replace("publish", "announce"), **PROMPTS)
    ended = gantt(finished, "--run", "f")
    assert "* publish" in ended.out


@pytest.mark.parametrize(
    "options",
    [
        ("--run", "f", "gantt", "--svg", "-"),
        ("--run", "f", "gantt", "--svg", "f.svg", "--png", "-"),
        ("show", "f", "--svg", "-"),
        ("show", "f", "--png", "-"),
        ("--run", "f", "metrics", "--output", "-"),
    ],
)
def test_a_dash_is_no_file(finished: Path, options: tuple[str, ...]) -> None:
    before = sorted(finished.iterdir())
    ended = call(finished, *options)
    assert ended.code == 2
    assert "'-' is no file; './-' would be one of that name" in ended.err
    assert ended.out == ""
    assert sorted(finished.iterdir()) == before


def test_a_file_may_be_called_so_all_the_same(finished: Path) -> None:
    gantt(finished, "--run", "f", "--svg", "./-")
    assert (finished / "-").read_bytes().startswith(b"<svg")
