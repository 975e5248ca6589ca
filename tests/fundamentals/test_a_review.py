"""A review takes over every N-th cycle, all of it."""

from __future__ import annotations

import json

import pytest

from tests.fundamentals.scratch import STANDARD, Project

S, M, R = "supervisor", "main", "reviewer"


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (2, [S, M, R, R, S, M, R, R]),
        (0, [S, M, S, M, S, M, S, M]),
    ],
)
def test_a_review_replaces_every_nth_cycle(project: Project, every: int, steps: list[str]) -> None:
    arguments = ["--workflow", "review_cadence", f"--review-every={every}", "--count", "8"]
    upcoming = json.loads(project.sequencer("plan", *arguments, "--json").out)
    assert [entry["step"] for entry in upcoming] == steps


def test_a_review_keeps_the_positions(project: Project) -> None:
    arguments = ["--workflow", "review_cadence", "--review-every", "2", "--count", "4"]
    upcoming = json.loads(project.sequencer("plan", *arguments, "--json").out)
    assert [entry["position"] for entry in upcoming] == [S, M, S, M]
    assert [entry["review"] for entry in upcoming] == [False, False, True, True]


def test_the_reviewer_gets_its_own_prompt(project: Project) -> None:
    project.agent("head -n 1 >> done.txt")
    project.sequencer(
        "run", "--workflow", "review_cadence", "--review-every", "2", "--max-steps", "3"
    )
    assert project.done() == ["Be the supervisor.", "Be the main.", "Be the reviewer."]


def test_a_run_remembers_its_cadence(project: Project) -> None:
    project.configure("agent: {default: scribe}\n")
    project.sequencer(
        "run", "--workflow", "review_cadence", "--review-every", "2", "--max-steps", "1"
    )
    project.sequencer("run", "--max-steps", "2")
    assert project.done() == [S, M, R]
    assert project.head()["params"] == {"review_every_n_cycles": 2}


def test_a_changed_cadence_is_refused_until_it_is_adopted(project: Project) -> None:
    cadence = STANDARD.replace("standard", "review_cadence, review_every_n: 2")
    project.configure(cadence)
    project.sequencer("run", "--max-steps", "2")
    project.configure(cadence.replace("2", "5"))
    refused = project.sequencer("run", code=3)
    assert "sequencer adopt" in refused.err
    assert project.done() == [S, M], "nothing was started"
    project.sequencer("adopt")
    project.sequencer("run", "--max-steps", "1")
    assert project.done() == [S, M, S]
    assert "adopted" in project.events()
