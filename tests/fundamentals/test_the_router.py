"""A router is asked for the prompt of each step, and only believed within a closed list."""

from __future__ import annotations

import json

import pytest

from tests.fundamentals.scratch import Project

ROUTED = """\
workflow: {name: standard}
router: {enabled: true, prompt: router.md%s}
agent: {default: scribe, prompts: {router.md: chooser}}
agents:
  chooser: {kind: command, argv: [sh, choose.sh]}
"""


@pytest.fixture
def routed(project: Project) -> Project:
    """Return a project whose router is choose.sh, and whose agent notes its prompt."""
    project.prompts("router", "fix")
    project.configure(ROUTED % "")
    project.agent("head -n 1 >> done.txt")
    return project


def answer(project: Project, text: str) -> None:
    (project.folder / "choose.sh").write_text(f"cat > asked.txt\nprintf '{text}'\n")


def test_its_answer_is_the_prompt(routed: Project) -> None:
    answer(routed, "main.md\\n")
    routed.sequencer("run", "--max-steps", "1")
    assert routed.done() == ["Be the main."]
    assert routed.logs() == ["iter-00001_supervisor.log"], "the step is still the supervisor"
    *_, last = routed.history()
    assert last["outcome"]["prompt"] == "main.md"


def test_it_is_told_the_state(routed: Project) -> None:
    answer(routed, "supervisor.md")
    routed.sequencer("run", "--max-steps", "1")
    asked = (routed.folder / "asked.txt").read_text()
    assert asked.startswith("Be the router.\n")
    state = json.loads(asked[asked.index("{") :])
    assert state["step_index"] == 0
    assert state["next"]["step"] == "supervisor"
    assert state["allowed_prompts"] == ["main.md", "supervisor.md"]


@pytest.mark.parametrize(
    "said",
    ["", "main.md\\nsupervisor.md", "fix.md", "../prompts/main.md", "I choose main.md", "MAIN.MD"],
)
def test_a_wrong_answer_fails_the_step_and_runs_nothing(routed: Project, said: str) -> None:
    answer(routed, said)
    ran = routed.sequencer("run", code=1)
    assert "router" in ran.err
    assert "main.md, supervisor.md" in ran.err, "what it could have said"
    assert routed.done() == []
    assert routed.head()["step_index"] == 0


def test_the_list_can_be_widened(routed: Project) -> None:
    routed.configure(ROUTED % ", allowlist: [fix.md]")
    answer(routed, "fix.md")
    routed.sequencer("run", "--max-steps", "1")
    assert routed.done() == ["Be the fix."]


def test_it_can_be_left_out_for_once(routed: Project) -> None:
    answer(routed, "main.md")
    routed.sequencer("run", "--no-router", "--max-steps", "1")
    assert routed.done() == ["Be the supervisor."]


def test_a_router_that_fails_fails_the_step(routed: Project) -> None:
    (routed.folder / "choose.sh").write_text("echo it broke >&2; exit 4\n")
    ran = routed.sequencer("run", code=1)
    assert "the router failed" in ran.err
    assert routed.done() == []


def test_router_only_needs_no_prompt_of_the_workflow(routed: Project) -> None:
    routed.configure(ROUTED % ", mode: router_only, allowlist: [fix.md]")
    (routed.folder / "prompts" / "supervisor.md").unlink()
    answer(routed, "fix.md")
    routed.sequencer("run", "--max-steps", "1")
    assert routed.done() == ["Be the fix."]
