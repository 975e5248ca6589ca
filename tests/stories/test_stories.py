"""Each story in each way: what a run does is the same, however people ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stories.remote_ways import MCP_VERBS, WEB_VERBS, McpClient, WebForm
from tests.stories.story import STORIES, CommandLine, Library, play, project_of, read


def ways_of(story: dict[str, Any]) -> Iterator[str]:
    """Yield the ways in which *story* can be told: the web and MCP have only some commands."""
    yield from ("command line", "library")
    verbs = {step["do"] for step in story["steps"] if "do" in step}
    if verbs and verbs <= WEB_VERBS:
        yield "web form"
    if verbs and verbs <= MCP_VERBS:
        yield "MCP"


CASES = [
    pytest.param(path, way, id=f"{path.stem} by {way}")
    for path in sorted(STORIES.glob("*.yaml"))
    for way in ways_of(read(path))
]


@pytest.mark.parametrize(("path", "way"), CASES)
def test_a_story_plays_the_same_in_every_way(path: Path, way: str, tmp_path: Path) -> None:
    story = read(path)
    project, run = project_of(story, tmp_path), story.get("run")
    match way:
        case "command line":
            play(story, CommandLine(project, run))
        case "library":
            play(story, Library(project, run))
        case "web form":
            with WebForm(project, run) as web:
                play(story, web)
        case "MCP":
            play(story, McpClient(project, run))


def test_every_story_has_a_name_and_at_least_two_ways() -> None:
    stories = [read(path) for path in STORIES.glob("*.yaml")]
    assert stories
    assert all(story["story"] and len(list(ways_of(story))) > 1 for story in stories)
