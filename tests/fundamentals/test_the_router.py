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
    assert "prompt main.md" in routed.sequencer("history").out.splitlines()[-1]


def test_it_gets_the_state(routed: Project) -> None:
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
    ["main.md\\nsupervisor.md", "fix.md"],
)
def test_a_wrong_answer_fails_the_step_and_runs_nothing(routed: Project, said: str) -> None:
    answer(routed, said)
    ran = routed.sequencer("run", code=1)
    assert "router" in ran.err
    assert "main.md, supervisor.md" in ran.err, "what it could have said"
    assert routed.done() == []
    assert routed.head()["step_index"] == 0


@pytest.mark.parametrize("mode", ["router_default", "router_first"])
def test_no_answer_runs_the_prompt_of_the_workflow(routed: Project, mode: str) -> None:
    routed.configure(ROUTED % f", mode: {mode}")
    answer(routed, " \\n\\n")
    routed.sequencer("run", "--max-steps", "1")
    assert routed.done() == ["Be the supervisor."]
    told = "the router gave no answer"
    assert told in routed.sequencer("log").out
    assert told in routed.sequencer("history").out


def test_no_answer_is_a_failure_where_only_the_router_selects(routed: Project) -> None:
    routed.configure(ROUTED % ", mode: router_only")
    answer(routed, "")
    assert "the router's answer is empty" in routed.sequencer("run", code=1).err
    assert routed.done() == []


def test_a_router_has_its_own_time_limit_and_a_late_one_gives_no_answer(routed: Project) -> None:
    # The steps' own limit would end the router at once, and the router's would end the step.
    routed.configure(f"step_defaults: {{timeout_s: 0.1}}\n{ROUTED % ', timeout_s: 60'}")
    routed.agent("head -n 1 >> done.txt; sleep 600")
    (routed.folder / "choose.sh").write_text("sleep 0.3; echo main.md\n")
    assert "timed out after 0.1 s" in routed.sequencer("run", code=1).err
    *_, failed = routed.history()
    assert failed["outcome"]["prompt"] == "main.md", "the router had the time that it took"

    routed.configure(ROUTED % ", timeout_s: 0.3")
    routed.agent("head -n 1 >> done.txt; sleep 0.5")
    (routed.folder / "choose.sh").write_text("sleep 600\n")
    routed.sequencer("run", "--max-steps", "1")
    assert routed.done()[-1] == "Be the supervisor."
    assert "did not answer within 0.3 s (router.timeout_s)" in routed.sequencer("log").out

    routed.configure(ROUTED % ", timeout_s: 0.3, mode: router_only")
    failed_run = routed.sequencer("run", code=1)
    assert "did not answer within 0.3 s (router.timeout_s)" in failed_run.err


def test_a_usage_limit_of_the_router_does_not_fail_the_step(routed: Project) -> None:
    limited = "{status: limited, error: weekly limit, not_before: '2999-01-01T00:00:00Z'}"
    text = (ROUTED % "").replace(
        "{kind: command, argv: [sh, choose.sh]}", f"{{kind: scripted, outcomes: [{limited}]}}"
    )
    routed.configure(text)
    assert "usage limit of agent 'chooser'" in routed.sequencer("tick").out
    assert "usage limit of agent 'chooser'" in routed.sequencer("status").out
    head = routed.head()
    assert (head["status"], head["failures_in_row"], head["step_index"]) == ("idle", 0, 0)
    *_, released = routed.history()
    assert released["event"] == "released"
    assert released["outcome"]["agent"] == "chooser"
    assert released["outcome"]["error"] == "the router: weekly limit"
    assert routed.done() == []


def test_the_exit_code_of_a_router_is_not_a_verdict(routed: Project) -> None:
    """A command that judges says no by its exit code; a router that breaks says nothing."""
    routed.configure(
        "workflows:\n  judged: {steps: [{name: main, validation: {max_attempts: 3}}]}\n"
        + ROUTED.replace("standard", "judged") % ""
    )
    (routed.folder / "choose.sh").write_text("exit 4\n")
    routed.sequencer("run", code=1)
    assert "invalid" not in routed.events()
    assert routed.done() == []


def test_the_list_can_be_widened(routed: Project) -> None:
    routed.configure(ROUTED % ", allowlist: [fix.md]")
    answer(routed, "fix.md")
    routed.sequencer("run", "--max-steps", "1")
    assert routed.done() == ["Be the fix."]


def test_it_can_be_skipped_for_one_run(routed: Project) -> None:
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
