"""`run --start-at`: the first step is the next one of this name, or with this prompt."""

from __future__ import annotations

import pytest

from tests.fundamentals.scratch import Project, running, until

THREE = "workflow: {name: three}\nagent: {default: scribe}\n"
THREE += "workflows: {three: {kind: %s, steps: [supervisor, main, reviewer]}}\n"


def start(project: Project, prompt: str, *more: str, code: int = 0) -> str:
    arguments = ("run", "--start-at", prompt, "--max-steps", "1", *more)
    return project.sequencer(*arguments, code=code).err


@pytest.mark.parametrize("spelled", ["main", "main.md", "prompts/main.md"])
def test_a_run_starts_at_the_named_step(project: Project, spelled: str) -> None:
    assert "1 skipped; the run starts with step 'main' (step_index 1)" in start(project, spelled)
    assert project.done() == ["main"]
    assert project.head()["step_index"] == 2
    facts = [(fact["event"], fact["step"], fact["step_index"]) for fact in project.history()]
    assert facts[:3] == [
        ("initialised", "supervisor", 0),
        ("skipped", "supervisor", 0),
        ("claimed", "main", 1),
    ]


def test_a_run_already_at_the_named_step_skips_nothing(project: Project) -> None:
    project.sequencer("run", "--max-steps", "2")
    assert "skipped" not in start(project, "supervisor.md")
    assert project.done() == ["supervisor", "main", "supervisor"]
    assert "skipped" not in project.events()


def test_it_goes_forward_only_and_in_one_change(project: Project) -> None:
    project.configure(THREE % "cycle")
    project.sequencer("run", "--max-steps", "2")
    before = project.head()["revision"]
    start(project, "main.md")
    assert project.done() == ["supervisor", "main", "main"]
    assert project.head()["step_index"] == 5
    skipped = [fact for fact in project.history() if fact["event"] == "skipped"]
    assert [fact["step_index"] for fact in skipped] == [2, 3]
    assert {fact["revision"] for fact in skipped} == {before + 1}
    assert {fact["outcome"]["note"] for fact in skipped} == {"--start-at main.md"}


def test_a_step_after_a_review_is_found(project: Project) -> None:
    project.configure(
        "workflow: {name: review_cadence, review_every_n: 2}\nagent: {default: scribe}\n"
    )
    project.sequencer("run", "--max-steps", "1")
    start(project, "supervisor.md")
    assert project.head()["step_index"] == 5, "main and both reviews were skipped"
    start(project, "reviewer.md")
    assert project.done() == ["supervisor", "supervisor", "reviewer"]


def test_a_procedure_does_not_start_over(project: Project) -> None:
    project.configure(THREE % "procedure")
    start(project, "main.md")
    said = start(project, "supervisor.md", code=2)
    assert "supervisor.md is not among the next steps" in said
    assert project.head()["step_index"] == 2


def test_a_name_goes_before_a_prompt(project: Project) -> None:
    steps = "steps: [{name: a, prompt: main.md}, {name: main, prompt: supervisor.md}]"
    project.configure(
        f"workflow: {{name: two}}\nworkflows: {{two: {{{steps}}}}}\nagent: {{default: scribe}}\n"
    )
    start(project, "main")
    assert project.done() == ["main"]
    start(project, "main.md")
    assert project.done() == ["main", "a"]


def test_a_flow_starts_at_a_node_once(project: Project) -> None:
    nodes = "".join(f"### {name}\n\nDo {name}.\n\n" for name in "abcd")
    chart = f"```mermaid\nflowchart TD\na --> b & c\nb & c --> d\n```\n\n{nodes}"
    (project.folder / "flow.md").write_text(chart)
    said = project.sequencer("run", "flow.md", "--start-at", "e", code=2).err
    assert "unknown node 'e'" in said
    shown = project.sequencer("run", "flow.md", "--start-at", "b", "--dry-run").out
    assert "next          b\n" in shown
    assert not (project.folder / "sync" / "runs").exists()
    said = project.sequencer("run", "flow.md", "--start-at", "b", "--max-steps", "1").err
    assert "the run starts with node 'b'" in said
    said = project.sequencer("run", "flow.md", "--start-at", "c", code=3).err
    assert "the run has already started" in said
    project.sequencer("run", "flow.md")
    assert project.done() == ["b", "d"]


def test_async_mode_runs_a_step_beside_the_run(project: Project) -> None:
    start(project, "main.md", "--mode", "async")
    assert project.done() == ["main"]
    assert not project.state.exists()
    shown = project.sequencer("run", "--start-at", "main.md", "--dry-run").out
    assert "main" in shown
    assert not project.state.exists()


def test_a_running_step_is_not_skipped(project: Project) -> None:
    project.agent("touch here; sleep 600")
    with running(project.start("run", "--max-steps", "1")):
        until((project.folder / "here").exists)
        assert "is being run by process" in start(project, "main.md", code=75)
        assert project.head()["step_index"] == 0
    project.agent("echo $SEQUENCER_STEP >> done.txt")
    start(project, "main.md")
    assert project.done() == ["main"]


def test_an_invalid_start_is_refused(project: Project) -> None:
    assert "known steps: main, supervisor" in start(project, "nobody.md", code=2)
    assert "does not work with mode sync" in start(project, "main.md", "--mode", "sync", code=2)
    inside = {"SEQUENCER_TOKEN": "1"}
    ran = project.sequencer("run", "--start-at", "main.md", code=2, **inside)
    assert "for a person to decide" in ran.err
    assert not project.state.exists()
