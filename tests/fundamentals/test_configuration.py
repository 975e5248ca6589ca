"""orchestration.yaml: strict, located, with a source for each value."""

from __future__ import annotations

import json

import pytest

from tests.fundamentals.scratch import STANDARD, Project


def test_an_unknown_key_names_its_line_and_the_nearest_known_one(project: Project) -> None:
    project.configure(STANDARD + "limits: {step: 3}\n")
    ran = project.sequencer("run", code=2)
    assert "orchestration.yaml:3" in ran.err
    assert "did you mean 'steps'" in ran.err
    assert not project.state.exists()


def test_all_errors_are_reported_at_once(project: Project) -> None:
    project.configure("workflow: {name: nope}\nagent: {default: nobody}\nlimits: {steps: 0}\n")
    ran = project.sequencer("check", code=2)
    for word in ("nope", "nobody", "limits.steps"):
        assert word in ran.out + ran.err


@pytest.mark.parametrize(
    "text",
    ["- a list\n", "a: [\n", "agent: {default: a, default: b}\n", "x: !!python/object:os.x {}\n"],
)
def test_a_file_that_is_not_a_configuration_is_refused(project: Project, text: str) -> None:
    (project.folder / "orchestration.yaml").write_text(text)
    assert "orchestration.yaml" in project.sequencer("run", code=2).err


def test_each_setting_shows_its_source(project: Project) -> None:
    printed = project.sequencer("check", "--settings", SEQUENCER_LIMITS__STEPS="7").out
    rows = {line.split(":")[0].strip(): line for line in printed.splitlines() if line.strip()}
    assert "SEQUENCER_LIMITS__STEPS" in printed.partition("\nlimits:")[2].partition("\nretry:")[0]
    assert "orchestration.yaml:1" in rows["name"]
    assert "default" in rows["ttl_s"]


def test_flags_win_over_variables_and_those_over_the_file(project: Project) -> None:
    project.configure(STANDARD + "run: {max_steps: 1}\n")
    project.sequencer("run")
    assert len(project.done()) == 1
    project.sequencer("run", SEQUENCER_RUN__MAX_STEPS="2")
    assert len(project.done()) == 3
    project.sequencer("run", "--max-steps", "3", SEQUENCER_RUN__MAX_STEPS="2")
    assert len(project.done()) == 6


def test_paths_are_relative_to_the_file(project: Project) -> None:
    project.configure(STANDARD + "state_file: progress/run.json\nlogs_dir: out/logs\n")
    (project.folder / "below").mkdir()
    project.sequencer("run", "--max-steps", "1", "--config", "orchestration.yaml")
    assert json.loads((project.folder / "progress" / "run.json").read_text())["step_index"] == 1
    assert (project.folder / "out" / "logs" / "local" / "steps").is_dir()
    assert not (project.folder / "sync").exists()


def test_without_a_file_the_defaults_hold(project: Project) -> None:
    (project.folder / "orchestration.yaml").unlink()
    project.sequencer("run", "--agent", "rehearsal", "--max-steps", "2")
    assert project.head()["workflow_name"] == "standard"


def test_a_new_project_is_ready_to_run(project: Project) -> None:
    project.sequencer("init", "fresh")
    fresh = Project.__new__(Project)
    fresh.folder = project.folder / "fresh"
    fresh.sequencer("run", "--agent", "rehearsal", "--max-steps", "6")
    assert fresh.head()["step_index"] == 6
    before = (fresh.folder / "orchestration.yaml").read_bytes()
    fresh.sequencer("init")
    assert (fresh.folder / "orchestration.yaml").read_bytes() == before


def test_a_hoidn_orchestration_project_continues(project: Project) -> None:
    project.configure(STANDARD + "auto_commit_docs: true\nrouter_enabled: false\n")
    old = {"iteration": 7, "expected_actor": "ralph", "status": "waiting-ralph"}
    (project.folder / "sync").mkdir()
    project.state.write_text(json.dumps(old))
    project.sequencer("run", "--max-steps", "2")
    assert project.done() == ["main", "supervisor"]
    assert project.head()["step_index"] == 15
    kept = project.state.with_name("state.json.before-migration")
    assert json.loads(kept.read_text()) == old


NO_ARGV = (
    "workflow: {name: review_cadence}\nagent: {default: bad}\nagents:\n  bad: {kind: command}\n"
)


@pytest.mark.parametrize(
    ("wrong", "arguments"),
    [
        (NO_ARGV, ()),
        ("workflow: {name: standard2}\nagent: {default: scribe}\n", ()),
        ("workflow: {name: review_cadence}\nagent: {default: scribe}\n", ("--position", "x")),
    ],
)
def test_a_run_that_cannot_start_leaves_no_state(
    project: Project, wrong: str, arguments: tuple[str, ...]
) -> None:
    project.configure(wrong)
    for verb in ("run", "tick"):
        project.sequencer(verb, *arguments, code=2)
        assert not project.state.exists()
    project.configure(STANDARD)
    project.sequencer("tick")
    assert project.head()["step_index"] == 1
