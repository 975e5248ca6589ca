"""Several runs in one project share its files and nothing of each other's progress."""

from __future__ import annotations

from tests.fundamentals.scratch import Project


def test_each_run_has_its_own_place(project: Project) -> None:
    project.sequencer("run", "--max-steps", "3")
    project.sequencer("run", "--run", "docs", "--max-steps", "1")
    assert project.status()["step_index"] == 3
    assert project.status("--run", "docs")["step_index"] == 1
    assert (project.folder / "sync" / "runs" / "docs" / "journal.jsonl").exists()
    logs = project.folder / "logs" / "local"
    assert len(list((logs / "steps").iterdir())) == 3
    assert len(list((logs / "runs" / "docs" / "steps").iterdir())) == 1


def test_each_run_has_its_own_workflow_and_limits(project: Project) -> None:
    project.configure("agent: {default: scribe}\nlimits: {max_steps: 2}\n")
    project.sequencer("run")
    project.prompts("supervisor2", "main2")
    project.sequencer("run", "--run", "second", "--workflow", "standard2")
    assert project.status("--run", "second")["workflow_name"] == "standard2"
    assert project.status()["workflow_name"] == "standard"
    assert len(project.done()) == 4


def test_a_typo_does_not_create_a_new_run(project: Project) -> None:
    project.sequencer("run", "--run", "docs", "--max-steps", "1")
    for verb in ("status", "history", "skip", "retry"):
        ran = project.sequencer(verb, "--run", "dosc", code=2)
        assert "did you mean 'docs'" in ran.err


def test_odd_names_stay_in_their_folder(project: Project) -> None:
    for name in ("../../etc", "a b", "Docs", "-rf"):
        project.sequencer("run", f"--run={name}", "--max-steps", "1")
    runs = list((project.folder / "sync" / "runs").iterdir())
    assert len(runs) == 4
    assert all(run.is_dir() and "--" in run.name for run in runs)
    assert not project.state.exists(), "the default run was not begun"
