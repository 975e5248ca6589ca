"""How often a project asks for trust: over a week of ordinary work, and after an upgrade."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from sequencer import open_project

CONFIGURATION = """\
agents:
  writer: {kind: claude, permission_mode: acceptEdits}
  reader: {kind: claude}
agent: {default: writer}
limits: {cost_usd: 40, attempts: 10, steps: 200}
step_defaults: {timeout_s: 1800}
steps:
  - {name: plan, agent: reader, max_turns: 20, disallowed_tools: [Edit]}
  - {name: approve-plan, agent: reader, single_turn: true, requires_approval: true}
  - {name: build, max_cost_usd: 2, allowed_tools: [Read, Edit, Bash], retry: 2}
  - {name: test, max_cost_usd: 1, tools: {bash: true}}
review: {every: 3, step: {name: review, agent: reader, disallowed_tools: [Edit]}}
workflows:
  release: flows/release.md
schedules:
  nightly: {workflow: release, at: '0 2 * * *'}
"""
RELEASE = """\
---
config: {maxIterations: 5}
---

```mermaid
flowchart TD
  notes[Write notes] --> check[Check them]
  check --> ask{{Publish?}}
  ask -->|yes| publish[Publish]
  ask -->|no| notes
  publish --> done((Done))
```

### notes
---
agent: writer
max_cost_usd: 1
---
Write the notes.

### check
---
agent: reader
disallowed_tools: [Edit]
max_turns: 20
---
Check the notes.

### ask
Publish {{nodes.check.output}}?

### publish
---
agent: writer
max_cost_usd: 1
tools: {bash: true}
---
Publish.
"""
CONFIG, FLOW, MAKEFILE = "orchestration.yaml", "flows/release.md", "Makefile"


@dataclass(frozen=True)
class Edit:
    """A part of a change that somebody makes; those with the same words are made at once."""

    what: str
    file: str
    old: str
    new: str


def prompt(name: str, text: str) -> Edit:
    return Edit(f"another prompt for {name}", f"prompts/{name}.md", "", text)


WEEK = (
    # Monday
    prompt("plan", "Plan the smallest step.\n"),
    Edit("another build", MAKEFILE, "pytest", "pytest -q"),
    Edit("a lower cap", CONFIG, "max_cost_usd: 2", "max_cost_usd: 1.5"),
    Edit("another model", CONFIG, "retry: 2}", "retry: 2, model: opus}"),
    prompt("build", "Build it, with tests.\n"),
    # Tuesday
    Edit("a new step", CONFIG, "review: {", "  - {name: docs, agent: reader, max_turns: 9, "
         "disallowed_tools: [Edit]}\nreview: {"),
    prompt("docs", "Look through the docs.\n"),
    Edit("a review each fifth time", CONFIG, "every: 3", "every: 5"),
    Edit("other words in the flow", FLOW, "Write the notes.", "Write short notes."),
    Edit("a lower cap of the run", CONFIG, "cost_usd: 40", "cost_usd: 30"),
    # Wednesday
    Edit("a step that a person approves", CONFIG, "{name: test, ", "{name: test, "
         "requires_approval: true, "),
    Edit("one tool less", CONFIG, "[Read, Edit, Bash]", "[Read, Edit]"),
    Edit("the steps in another order", CONFIG,
         "  - {name: docs, agent: reader, max_turns: 9, disallowed_tools: [Edit]}\n", ""),
    Edit("the steps in another order", CONFIG, "steps:\n", "steps:\n"
         "  - {name: docs, agent: reader, max_turns: 9, disallowed_tools: [Edit]}\n"),
    Edit("another way back", FLOW, "ask -->|no| notes", "ask -->|no| check"),
    Edit("another build", MAKEFILE, "-q", "-q -x"),
    # Thursday
    Edit("a higher cap, under that of the run", CONFIG, "max_cost_usd: 1.5", "max_cost_usd: 4"),
    Edit("one more try", CONFIG, "retry: 2", "retry: 3"),
    Edit("another agent", CONFIG, "{name: review, agent: reader", "{name: review, agent: writer"),
    Edit("another name", CONFIG, "{name: docs, ", "{name: documents, "),
    Edit("more refused", CONFIG, "disallowed_tools: [Edit]}\n  - {name: approve",
         "disallowed_tools: [Edit, Bash]}\n  - {name: approve"),
    Edit("a node less", FLOW, "notes[Write notes] --> check[Check them]", "check[Check them]"),
    Edit("a node less", FLOW, "### notes\n---\nagent: writer\nmax_cost_usd: 1\n---\n"
         "Write short notes.\n\n", ""),
    Edit("a page about the flows", "flows/README.md", "", "How we release.\n"),
    # Friday: a schedule at another time, and a test that may run programs.
    Edit("another hour", CONFIG, "0 2 * * *", "0 3 * * *"),
    Edit("a tool more", CONFIG, "{name: documents, ", "{name: documents, tools: {bash: true}, "),
    prompt("documents", "Look through the docs again.\n"),
    Edit("a comment", CONFIG, "steps:\n", "# What is done, in this order.\nsteps:\n"),
    Edit("no more tries", CONFIG, ", retry: 3", ""),
)  # fmt: skip
ASKS = ("another hour", "a tool more")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SEQUENCER_TRUST", "")
    folder = tmp_path / "project"
    for name in ("plan", "approve-plan", "build", "test", "review"):
        write(folder / "prompts" / f"{name}.md", f"{name}\n")
    write(folder / CONFIG, CONFIGURATION)
    write(folder / FLOW, RELEASE)
    write(folder / MAKEFILE, "test:\n\tpytest\n")
    open_project(folder, environment={}).trust.save_record()
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make(folder: Path, edit: Edit) -> None:
    path = folder / edit.file
    before = path.read_text() if path.exists() else ""
    assert edit.old in before, edit
    write(path, before.replace(edit.old, edit.new, 1) if edit.old else edit.new)


def asks(folder: Path) -> tuple[str, ...]:
    """Return what a person is shown before the next step, and let them say yes."""
    trust = open_project(folder, environment={}).trust
    refused = trust.refusal()
    if refused is None:
        return ()
    trust.save_record()
    return refused.changed or refused.acts


def test_a_week_of_ordinary_work_asks_twice(project: Path) -> None:
    asked: list[str] = []
    for what, edits in groupby(WEEK, key=lambda edit: edit.what):
        for edit in edits:
            make(project, edit)
        if asks(project):
            asked.append(what)
    assert tuple(asked) == ASKS


def test_the_same_week_in_one_go_asks_once(project: Path) -> None:
    for edit in WEEK:
        make(project, edit)
    assert asks(project) == (
        '- schedules.nightly.at: "0 2 * * *"',
        '+ schedules.nightly.at: "0 3 * * *"',
        "+ workflows.default, documents, tools.bash: true",
    )


BAD_WEEK = (
    Edit("no approval", CONFIG, ", requires_approval: true", ""),
    Edit("no person", FLOW, "ask{{Publish?}}", "ask[Publish?]"),
    Edit("no cap", CONFIG, "max_cost_usd: 2, ", ""),
    Edit("one step for all the money", CONFIG, "max_cost_usd: 2", "max_cost_usd: 39"),
    Edit("no refusal", CONFIG, ", disallowed_tools: [Edit]}\n  -", "}\n  -"),
    Edit("no time limit", CONFIG, "step_defaults: {timeout_s: 1800}\n", ""),
    Edit("another workflow", CONFIG, "agent: {", "workflow: standard\nagent: {"),
    Edit("a loop without end", FLOW, "{maxIterations: 5}", "{maxIterations: 5000}"),
    Edit("a tool in odd letters", FLOW, "max_turns: 20", '"\\x74ools": {bash: true}\nmax_turns: 2'),
)  # fmt: skip


@pytest.mark.parametrize("edit", BAD_WEEK, ids=lambda edit: edit.what)
def test_removing_a_safeguard_always_asks(project: Path, edit: Edit) -> None:
    make(project, edit)
    assert asks(project)
    assert asks(project) == ()


def records(project: Path) -> Path:
    """Return the folder in which this user's trust is recorded."""
    return project.parent / "state" / "sequencer" / "trust"


def _as_written_before(project: Path, steps: tuple[str, ...] = ()) -> Callable[[], None]:
    """Return what makes the one record as a release before steps were compared left it."""

    def rewrite() -> None:
        (path,) = records(project).iterdir()
        record: dict[str, Any] = json.loads(path.read_text())
        del record["steps"]
        record["grants"] = list(steps)
        text = "\n".join((*record["acts"], *sorted(steps)))
        record["digest"] = f"sha256:{sha256(text.encode()).hexdigest()}"
        path.write_text(json.dumps(record))

    return rewrite


def test_a_record_of_an_earlier_release_asks_once_about_what_steps_may_do(project: Path) -> None:
    _as_written_before(project, ('steps, allowed_tools: ["Read", "Edit", "Bash"]',))()
    told = asks(project)
    assert '+ workflows.default, build, allowed_tools: "Bash"' in told
    assert "+ file flows/release.md, ask, asks a person: true" in told
    assert all(line.startswith("+ ") for line in told)
    assert asks(project) == ()


def test_a_record_of_an_earlier_release_covers_plain_steps(project: Path) -> None:
    (project / FLOW).unlink()
    write(project / CONFIG, "agents: {writer: {kind: claude}}\nsteps: [plan, build]\n")
    asks(project)
    _as_written_before(project)()
    assert asks(project) == ()
    write(project / CONFIG, "agents: {writer: {kind: claude}}\nsteps: [plan, {name: build, "
          "tools: {bash: true}}]\n")  # fmt: skip
    assert asks(project) == ("+ workflows.default, build, tools.bash: true",)


@pytest.mark.parametrize(
    "steps", [None, [], {}, {"workflow": 3}, {"workflow": "x", "steps": {"k": {"s": {"caps": []}}}}]
)
def test_a_damaged_record_asks_again(project: Path, steps: object) -> None:
    (path,) = records(project).iterdir()
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "steps": steps}))
    assert asks(project)
    assert asks(project) == ()
