"""`--rehearse` wins over everything that names an agent, pays nothing, and says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fundamentals.scratch import Project

EVERYBODY = """\
workflow: {name: checked, review_every_n: 2}
workflows:
  checked:
    steps: [supervisor, main, {name: tests, agent: tests}]
    review: {every: 2, step: reviewer}
agent: {default: scribe, roles: {supervisor: scribe}, prompts: {reviewer.md: scribe}}
router: {enabled: true, mode: router_first, prompt: router.md}
hooks: [hooks.py]
activity: {sinks: {told: {kind: jsonl, path: told.jsonl}}}
agents:
  tests: {kind: command, argv: [no-such-program]}
"""
FLOW = """\
# Two

```mermaid
flowchart TD
    s((begin)) --> build[Build]
    build --> test[Test]
```

### build

Build it.

### test

---
agent: tests
---

Test it.
"""
TASKS = """\
tasks:
  - {id: one, subject: Do one}
  - {id: two, subject: Do two, blocked_by: [one], worktree: true}
"""


@pytest.fixture
def told(project: Project) -> Project:
    """Return a project that names agents everywhere, and that nobody has trusted."""
    project.configure(EVERYBODY)
    project.prompts("router")
    (project.folder / "hooks.py").write_text("open('done.txt', 'a').write('hook')\n")
    (project.folder / "flows").mkdir()
    (project.folder / "flows" / "two.md").write_text(FLOW)
    (project.folder / "flows" / "list.yaml").write_text(TASKS)
    return project


def untrusted(project: Project) -> dict[str, Any]:
    return {"SEQUENCER_TRUST": "", "XDG_STATE_HOME": str(project.folder / "nobody")}


@pytest.mark.parametrize(
    "named",
    [
        (),
        (
            *("--agent", "scribe", "--agent-step", "main=scribe"),
            *("--agent-prompt", "main.md=scribe", "--router"),
        ),
    ],
    ids=["nobody", "everybody"],
)
def test_nothing_of_the_project_runs(told: Project, named: tuple[str, ...]) -> None:
    ran = told.sequencer("run", "--rehearse", "--max-steps", "7", *named, **untrusted(told))
    assert ran.err.startswith("rehearsal: no agent runs and nothing is paid or posted")
    assert told.done() == []
    assert not (told.folder / "told.jsonl").exists()
    steps = [fact["step"] for fact in told.history() if fact["event"] == "succeeded"]
    assert steps == [
        "supervisor",
        "main",
        "tests",
        "reviewer",
        "reviewer",
        "reviewer",
        "supervisor",
    ]
    usage = told.head()["usage"]
    assert (usage["rehearsed"], usage["cost_usd"], usage["unpriced"]) == (7, 0, 0)


def test_a_command_that_needs_no_prompt_has_none_in_a_rehearsal_either(project: Project) -> None:
    order = "workflow: {name: two}\nworkflows: {two: {steps: [first, second]}}\n"
    project.configure(order + "agent: {default: scribe}\n")
    project.sequencer("run", "--rehearse", "--max-steps", "2")
    assert project.head()["step_index"] == 2
    project.configure(order + "agent: {default: claude}\n")
    refused = project.sequencer("run", "--rehearse", code=2)
    assert "first.md" in refused.err, "of an agent that reads one it is missed"


def test_a_rehearsed_step_is_not_posted(told: Project) -> None:
    told.configure(EVERYBODY.replace("router: ", "#").replace("hooks: ", "#"))
    told.sequencer("run", "--max-steps", "1")
    told.sequencer("run", "--rehearse", "--max-steps", "1")
    told.sequencer("rewind", "0")
    told.sequencer("run", "--max-steps", "1")
    lines = (told.folder / "told.jsonl").read_text().splitlines()
    results = [one for one in map(json.loads, lines) if one["type"] == "response"]
    assert [(one["step"], one["revision"]) for one in results] == [
        ("supervisor", 3),
        ("supervisor", 8),
    ]


def test_a_rehearsed_step_is_shown_as_run_by_no_agent(told: Project) -> None:
    told.sequencer("run", "--rehearse", "--max-steps", "2", **untrusted(told))
    assert "2 steps, 2 rehearsed: no agent ran" in told.sequencer("status").out
    shown = told.sequencer("history").out
    assert shown.count("no agent ran") == 2
    assert "rehearsal" in shown


def test_a_dry_run_names_the_flag_that_chose_the_agent(told: Project) -> None:
    ran = told.sequencer("run", "--rehearse", "--dry-run", "--json", **untrusted(told))
    found = json.loads(ran.out)
    assert (found["agent"], found["chosen_by"]) == ("rehearsal", "--rehearse")
    assert "router" not in found


def test_a_tick_rehearses_too(told: Project) -> None:
    told.sequencer("tick", "--rehearse", **untrusted(told))
    assert (told.done(), told.head()["step_index"]) == ([], 1)


def test_start_rehearses_without_asking_a_classifier(told: Project) -> None:
    classifier = "routing: {classifier: scribe}\n"
    told.configure(EVERYBODY.replace("agents:\n", f"{classifier}agents:\n"))
    told.sequencer("start", "Fix the login", "--rehearse", **untrusted(told))
    assert told.done() == []
    assert told.status("--run", "fix-the-login")["status"] == "complete"
    assert "no agent ran" in told.sequencer("history", "--run", "fix-the-login").out


@pytest.mark.parametrize("flow", ["flows/two.md", "flows/list.yaml"])
def test_a_flow_and_a_team_rehearse_too(told: Project, flow: str) -> None:
    ran = told.sequencer("run", flow, "--rehearse", **untrusted(told))
    assert "2 rehearsed: no agent ran" in ran.out
    assert told.done() == []


def test_without_rehearse_the_project_has_to_be_trusted(told: Project) -> None:
    told.sequencer("run", "--agent", "rehearsal", code=2, **untrusted(told))
    assert told.done() == []
