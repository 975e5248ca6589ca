"""What the tests of hooks have in common: a project's hook file, and facts to ask it about."""

from __future__ import annotations

import textwrap
from pathlib import Path

from sequencer.engine.hooking import HookContext, Hooks
from sequencer.model.head import Head
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.request import Request
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project.project import load_hooks

REQUEST = Request(title="Debug login timeout", labels=("bug",))
WORKFLOW = Workflow(
    "full-development",
    (Step(name="coding"), Step(name="verifications"), Step(name="summary")),
    kind="procedure",
)
OUTCOME = Outcome(status=OutcomeStatus.OK, output="done", structured={"pass": True})
HEAD = Head(
    run_id="r1",
    workflow_name="full-development",
    workflow_digest="sha256:0",
    expected_step="summary",
    last_update="2026-11-22T04:00:00Z",
    params={"a": 1},
)
HEADING = "import sequencer\n\nhookimpl = sequencer.hookimpl\n"
"""Three lines: the first line of a test's own code is the fourth."""


def context(project: Path, **update: object) -> HookContext:
    """Return the facts about the second step of a run."""
    facts: dict[str, object] = {
        "run_id": "r1",
        "run_name": None,
        "workflow": WORKFLOW.name,
        "project": project,
        "step": WORKFLOW.steps[1],
        "step_index": 1,
        "attempt": 1,
        "round": 1,
        "request": REQUEST,
        "steps": tuple(step.name for step in WORKFLOW.steps),
    }
    return HookContext(**{**facts, **update})  # type: ignore[arg-type]


def write(project: Path, source: str, name: str = "hooks.py", *, heading: str = HEADING) -> str:
    """Write a hook file and return its name."""
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(heading + textwrap.dedent(source))
    return name


def loaded(project: Path, *sources: str) -> Hooks:
    """Return the hooks of files with *sources*, in that order."""
    names = [write(project, source, f"hooks{n}.py") for n, source in enumerate(sources)]
    return load_hooks(names, project)
