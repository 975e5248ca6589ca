"""Each story in each way: what a run does is the same, however people ask for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer.testing import ScratchProject
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


@pytest.mark.slow(sample=9)
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


def flow_of(story: dict[str, Any]) -> str | None:
    """Return the file of the story's flowchart, if a simulation can say what its run does."""
    verbs = {step["do"] for step in story["steps"] if "do" in step}
    files = [name for name in story.get("files", ()) if name.endswith(".md")]
    return files[0] if files and verbs <= {"answer"} else None


def script_of(story: dict[str, Any]) -> dict[str, Any]:
    """Return the script of a simulation in which agents and people answer as in *story*."""
    answers: dict[str, list[Any]] = {}
    for fact in story["trace"]:
        event, _, node = fact.partition(" ")
        if event in ("claimed", "asked"):
            answers[node] = []
    for node, given in answers.items():
        for outcome in story.get("outcomes", ()):
            entry = {"output": outcome} if isinstance(outcome, str) else outcome
            if entry.get("step", node) == node:
                error = entry.get("error")
                given.append(entry["output"] if error is None else {"error": error})
        given += [step["text"] for step in story["steps"] if step.get("node") == node]
    return {"nodes": {node: {"out": given} for node, given in answers.items() if given}}


def what_happened(project: ScratchProject) -> list[str]:
    """Return what `history` says of a flow's run, without its start and its end."""
    head, *lines = project.run_command("history").stdout.splitlines()
    facts = [re.split("  +", line[head.index("WHAT") :])[0].rstrip() for line in lines]
    assert facts[0].startswith("initialised ")
    assert facts[-1].startswith("completed")
    return facts[1:-1]


FLOWS = [path for path in sorted(STORIES.glob("*.yaml")) if flow_of(read(path))]


@pytest.mark.parametrize("path", FLOWS, ids=lambda path: path.stem)
def test_a_simulation_says_what_a_flow_will_do(path: Path, tmp_path: Path) -> None:
    story = read(path)
    project = project_of(story, tmp_path)
    script = tmp_path / "script.json"
    script.write_text(json.dumps(script_of(story)), encoding="utf-8")
    simulated = project.run_command(
        "plan", str(flow_of(story)), "--simulate", "--script", str(script)
    )
    play(story, Library(project, story.get("run")))
    predicted = [line.partition(" ")[2] for line in simulated.stdout.splitlines()]
    assert predicted == what_happened(project)


def test_the_simulated_flows_ask_loop_join_and_fail() -> None:
    facts = {fact.partition(" ")[0] for path in FLOWS for fact in read(path)["trace"]}
    assert {"asked", "looped", "exhausted", "diverted", "failed", "succeeded"} <= facts
