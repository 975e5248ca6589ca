"""One story, told on files, on git and on Temporal: the same commands say and do the same."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.acceptance import cli_process, flow_projects, team_projects
from tests.acceptance import test_procedures as procedures
from tests.clones import ENVIRONMENT, Shared, git
from tests.fleet.conftest import TTL_S
from tests.fleet.fleet_projects import FleetProject, steady, told

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(300)]
IDENTITY = {key: value for key, value in ENVIRONMENT.items() if key.startswith("GIT_")}
OWN_FILES = "/sync/\n/logs/\n/seen/\n/agent.*\n/done.txt\n/asked.txt\n/prompt-*\n/fixed\n"
"""Which the agents leave behind to be looked at: no code."""


class Story(Struct, frozen=True):
    """What a person types in a project, and how each command ends."""

    make: Callable[[Path], object]
    commands: tuple[tuple[int, str], ...]
    run: str = ""


def _bug(folder: Path) -> None:
    (folder / "agent.py").write_text(procedures.AGENT)
    (folder / "orchestration.yaml").write_text(procedures.CONFIGURATION)


def _team(folder: Path) -> None:
    tasks: list[dict[str, Any]] = [
        {"id": "one", "subject": "One", "role": "implementer"},
        {"id": "two", "subject": "Two", "role": "implementer"},
        {"id": "sum", "subject": "Sum up", "role": "summarizer", "blocked_by": ["one", "two"]},
    ]
    plan = {task: {"writes": {f"{task}.txt": task}} for task in ("one", "two")}
    team_projects.make_project(folder, tasks, plan, size=1)


BUG = "--run debug-login-timeout"
STORIES = {
    "a cycle with reviews": Story(
        cli_process.scripted_project,
        (
            (0, "status"),
            (0, "plan --count 6 --json"),
            (0, "run --max-steps 3"),
            (0, "tick"),
            (0, "stop --pause"),
            (0, "run --max-steps 1"),
            (0, "resume"),
            (0, "skip"),
            (0, "run --max-steps 2 --json"),
            (0, "rewind 4"),
            (0, "run --max-steps 1"),
            (0, "status --json"),
            (0, "status"),
        ),
    ),
    "a procedure with a gate": Story(
        _bug,
        (
            (4, "start 'Debug login timeout' --label bug"),
            (0, "inbox --json"),
            (0, "answer 'look at the retry'"),
            (3, "answer 'too late'"),
            (4, f"{BUG} run"),
            (0, "answer approve --note go"),
            (0, f"{BUG} run"),
            (3, f"{BUG} answer approve"),
            (0, f"{BUG} status --json"),
            (0, "inbox"),
        ),
        "debug-login-timeout",
    ),
    "a flow with a question": Story(
        flow_projects.make_project,
        (
            (4, "run --max-parallel 1 flows/review.md --state who=Ann"),
            (0, "inbox --json"),
            (2, "--run review answer fine later maybe"),
            (0, "--run review answer fine 'send back'"),
            (4, "run --max-parallel 1 flows/review.md"),
            (0, "--run review answer fine approve"),
            (0, "run --max-parallel 1 flows/review.md"),
            (0, "--run review status --json"),
            (0, "--run review status"),
        ),
        "review",
    ),
    "a team whose work is merged": Story(
        _team,
        (
            (0, "plan"),
            (0, "run --max-steps 1"),
            (0, "tell sum 'be brief'"),
            (0, "run"),
            (0, "status --json"),
            (0, "status"),
        ),
    ),
}


class Told(Struct, frozen=True):
    """What the commands of a story have said, and what is left of it."""

    answers: list[tuple[str, int, str]]
    history: list[tuple[object, ...]]


def _project(story: Story, folder: Path, store: str) -> FleetProject:
    """Make the story's project in a clone of a remote of its own, kept in *store*."""
    shared = Shared(folder)
    clone = shared.clone("project")
    story.make(clone)
    configuration = clone / "orchestration.yaml"
    configuration.write_text(f"{configuration.read_text()}{store}\n")
    (clone / ".gitignore").write_text(OWN_FILES)
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "a project")
    git(clone, "push", "-q", "-u", "origin", "main")
    return FleetProject.at(clone, IDENTITY)


def _steady(text: str) -> str:
    """Return *text* without times, ids and commits; JSON's keys in their order."""
    if text.startswith(("{", "[")):
        text = json.dumps(json.loads(text), sort_keys=True)
    text = re.sub(r"\b(\d+-\d+)-[0-9a-f]{16}\b", r"\1", steady(text))
    text = re.sub(r"\b\d+(\.\d+|:\d\d)\b", "N", text)
    # Nobody is told how long a graph took that took no second.
    text = re.sub(r"(?m)^(completed · .*) · N( s)?$", r"\1", text)
    # Git says how old is what this clone knows; without --json that is on the other stream.
    text = re.sub(r'"notices": \[[^]]*\]', '"notices": NOTICES', text)
    return re.sub(r'"work": (null|\{[^}]*\})', '"work": WORK', text)


def _told(story: Story, folder: Path, store: str) -> Told:
    here, answers = _project(story, folder, store), list[tuple[str, int, str]]()
    for _, command in story.commands:
        ended = here.cli(*shlex.split(command))
        answers.append((command, ended.returncode, _steady(ended.stdout)))
        assert "Traceback" not in ended.stderr, ended.stderr
    named = ("--run", story.run) if story.run else ()
    return Told(answers, told(here.facts(*named, "history")))


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_the_same_wherever_its_run_is(name: str, tmp_path: Path, address: str) -> None:
    stores = {
        "files": "",
        "git": "store: {kind: git, poll: {fast_s: 0.1, slow_s: 1}}",
        "temporal": f'store: {{kind: temporal, address: "{address}", ttl_s: {TTL_S}, '
        f"project: {tmp_path.name}}}",
    }
    found = {kind: _told(STORIES[name], tmp_path / kind, stores[kind]) for kind in stores}
    expected = [(code, text) for code, text in STORIES[name].commands]
    for kind in ("git", "temporal"):
        assert found[kind].answers == found["files"].answers, kind
        assert found[kind].history == found["files"].history, kind
    assert [(code, text) for text, code, _ in found["files"].answers] == expected
