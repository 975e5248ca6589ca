"""A procedure runs once, from its first step to its last, and is then complete."""

from __future__ import annotations

import json

import pytest

from tests.fundamentals.scratch import Project

STEPS = ["collect", "summarise", "publish"]


@pytest.fixture
def procedure(project: Project) -> Project:
    """Return a project with a procedure of three steps."""
    project.prompts(*STEPS)
    project.configure(
        "workflow: {name: report}\nagent: {default: scribe}\n"
        "workflows: {report: {kind: procedure, steps: [collect, summarise, publish]}}\n"
    )
    return project


def test_a_procedure_ends_after_its_last_step(procedure: Project) -> None:
    ran = procedure.sequencer("run")
    assert procedure.done() == STEPS
    assert procedure.head()["status"] == "complete"
    assert "complete" in ran.out + ran.err
    assert procedure.events()[-2:] == ["succeeded", "completed"]


def test_nothing_is_due_after_its_end(procedure: Project) -> None:
    procedure.sequencer("run")
    before = procedure.state.read_bytes()
    procedure.sequencer("tick")
    procedure.sequencer("run")
    assert procedure.state.read_bytes() == before
    assert procedure.done() == STEPS
    assert procedure.status()["next"] is None


def test_plan_ends_with_the_last_step(procedure: Project) -> None:
    procedure.sequencer("run", "--max-steps", "1")
    upcoming = json.loads(procedure.sequencer("plan", "--count", "9", "--json").out)
    assert [entry["step"] for entry in upcoming] == ["summarise", "publish"]


def test_skipping_the_last_step_completes_it(procedure: Project) -> None:
    procedure.sequencer("run", "--max-steps", "2")
    procedure.sequencer("skip", "--note", "nobody reads it")
    assert procedure.head()["status"] == "complete"


def test_it_can_be_run_again(procedure: Project) -> None:
    procedure.sequencer("run")
    procedure.sequencer("reset", "--yes")
    procedure.sequencer("run")
    assert procedure.done() == STEPS * 2


def test_a_procedure_cannot_have_a_review(procedure: Project) -> None:
    procedure.configure(
        "workflow: {name: report}\nagent: {default: scribe}\n"
        "workflows: {report: {kind: procedure, steps: [collect], review: {every: 2, step: main}}}\n"
    )
    ran = procedure.sequencer("check", code=2)
    assert "no cycles" in ran.out + ran.err
