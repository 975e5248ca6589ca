"""Each example runs, and does what its README says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequencer import open_project
from tests.forked import Forked
from tests.project.documents import ROOT, clean_environment, ensure_true, run_region

Project = Callable[[str], Path]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Copy an example, so that the repository stays clean."""

    def copy(name: str) -> Path:
        left = ("sync", "logs", "notes.md", "posted.jsonl", "program.txt", "greeting.txt")
        skipped = shutil.ignore_patterns(*left)
        return Path(shutil.copytree(ROOT / "examples" / name, tmp_path / name, ignore=skipped))

    return copy


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return Forked(
        [sys.executable, "-m", "sequencer", *arguments],
        cwd=folder,
        env=clean_environment(folder.parent),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sequencer(folder: Path, *arguments: str, expect: int = 0) -> str:
    """Run one command and return its standard output."""
    with start(folder, *arguments) as process:
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == expect, f"{arguments}: {process.returncode}\n{out}\n{err}"
    return out


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sequencer(folder, "status", "--json"))
    return found


def noted_steps(folder: Path) -> list[str]:
    """Return the step of each line that the stand-in agent wrote, in order."""
    lines = (folder / "notes.md").read_text().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"- iteration {number + 1}" for number in range(len(lines))
    ]
    return [line.split(": ")[1].split(" ")[0] for line in lines]


def test_two_terminals(project: Project) -> None:
    folder = project("two-terminals")
    limit = ("--max-steps", "3")
    terminals = [
        start(folder, "run", "--position", position, *limit) for position in ("main", "supervisor")
    ]
    try:
        codes = [terminal.communicate(timeout=60) and terminal.returncode for terminal in terminals]
    finally:
        for terminal in terminals:
            terminal.kill()
            terminal.communicate()
    assert codes == [0, 0]
    assert noted_steps(folder) == ["supervisor", "main"] * 3


@pytest.mark.slow
def test_two_machines(project: Project) -> None:
    folder = project("two-machines")
    ensure_true(run_region(ROOT / "examples" / "two-machines" / "README.md", folder))
    desk, laptop = folder.parent / "desk", folder.parent / "laptop"
    assert noted_steps(laptop) == ["supervisor", "main"] * 3
    assert (steps_logged(desk), steps_logged(laptop)) == ({"supervisor"}, {"main"})


def steps_logged(folder: Path) -> set[str]:
    """Return the steps that were run in this clone, by their logs."""
    return {path.stem.partition("_")[2] for path in folder.glob("logs/*/steps/*.log")}


def test_review_cadence(project: Project) -> None:
    folder = project("review-cadence")
    order = ["supervisor", "main", "reviewer", "reviewer", "supervisor", "main"]
    upcoming = json.loads(sequencer(folder, "plan", "--count", "6", "--json"))
    assert [entry["step"] for entry in upcoming] == order
    sequencer(folder, "run", "--max-steps", "6")
    assert noted_steps(folder) == order


def test_cron(project: Project) -> None:
    folder = project("cron")
    for done in (1, 2, 3):
        sequencer(folder, "tick")
        assert status(folder)["step_index"] == done
    assert status(folder)["status"] == "complete"
    before = (folder / "sync" / "state.json").read_bytes()
    sequencer(folder, "tick")
    assert (folder / "sync" / "state.json").read_bytes() == before
    assert noted_steps(folder) == ["collect", "summarise", "publish"]
    for printed in (
        sequencer(folder, "schedule", "print"),
        sequencer(folder, "schedule", "print", "--with", "systemd"),
    ):
        assert "tick" in printed
        assert str(folder) in printed


def test_python_library(project: Project) -> None:
    folder = project("python-library")
    done = subprocess.run(
        [sys.executable, "loop.py"],
        cwd=folder,
        env=clean_environment(folder.parent),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["0", "measure"],
        ["1", "report"],
    ]
    facts = [json.loads(line) for line in sequencer(folder, "history", "--json").splitlines()]
    assert [f["event"] for f in facts] == ["initialised", *["claimed", "succeeded"] * 2]


def test_router(project: Project) -> None:
    folder = project("router")
    sequencer(folder, "run", "--max-steps", "1")
    (folder / "broken.txt").touch()
    sequencer(folder, "run", "--max-steps", "1")
    sequencer(folder, "run", "--max-steps", "1", "--no-router")
    notes = (folder / "notes.md").read_text().splitlines()
    assert [note.split("asked to ")[1] for note in notes] == [
        "plan the next piece of work.",
        "fix what broken.txt says.",
        "plan the next piece of work.",
    ]


def test_router_with_a_wrong_answer(project: Project) -> None:
    folder = project("router")
    (folder / "choose.py").write_text("print('../secrets.md')\n")
    sequencer(folder, "run", "--max-steps", "1", expect=1)
    assert status(folder)["step_index"] == 0
    assert not (folder / "notes.md").exists()


def test_mixed_agents_are_checked_without_the_agents(project: Project) -> None:
    folder = project("mixed-agents")
    with start(folder, "check") as process:
        out, err = process.communicate(timeout=60)
    # The clients need not be installed here; nothing else may be wrong.
    said = [line for line in (out + err).splitlines() if line.startswith("error:")]
    assert all("is not on PATH" in line for line in said), said
    upcoming = json.loads(sequencer(folder, "plan", "--count", "15", "--json"))
    cycle = ["plan", "build", "verify"]
    assert [entry["step"] for entry in upcoming] == [*cycle * 3, *["review"] * 3, *cycle]
    assert "verify" in sequencer(folder, "plan", "guarded")


def test_mixed_agents_run_in_a_rehearsal(project: Project) -> None:
    folder = project("mixed-agents")
    # A command needs no prompt; who stands in for it is shown one.
    (folder / "prompts" / "verify.md").write_text("The tests run here.\n")
    agents = [f"--agent-step={step}=rehearsal" for step in ("plan", "build", "verify", "review")]
    sequencer(folder, "run", "--max-steps", "13", *agents)
    assert status(folder)["step_index"] == 13


@pytest.mark.parametrize("form", ["older", "newer"])
def test_hoidn_migration(project: Project, form: str) -> None:
    folder = project("hoidn-migration")
    original = (folder / f"state-{form}-form.json").read_bytes()
    (folder / "sync").mkdir()
    (folder / "sync" / "state.json").write_bytes(original)
    assert status(folder)["step_index"] == 13
    assert (folder / "sync" / "state.json").read_bytes() == original, "looking changed the file"
    sequencer(folder, "run", "--max-steps", "1")
    after = status(folder)
    assert (after["step_index"], after["expected_step"]) == (14, "supervisor")
    assert (folder / "sync" / "state.json.before-migration").read_bytes() == original
    assert (folder / "notes.md").read_text().startswith("- iteration 14: main ")


def test_each_hook_example_loads_as_a_project(project: Project) -> None:
    folders = sorted(path for path in project("hooks").iterdir() if path.is_dir())
    assert len(folders) == 4
    for folder in folders:
        opened = open_project(folder, environment={}, trust=True)
        assert opened.hooks
        settings = opened.settings
        for step in settings.workflows["errand"].steps:
            assert (settings.prompts_dir / step.prompt_name).is_file()
        assert not list(folder.rglob("__pycache__"))


def test_a_hook_retries_unreliable_verifications(project: Project) -> None:
    folder = project("hooks") / "retry-verifications"
    sequencer(folder, "start", "Mend the login", "--procedure", "errand")
    assert (folder / "calls.txt").read_text() == "called\n" * 3
    (folder / "calls.txt").write_text("")
    (folder / "hooks.py").write_text((folder / "hooks.py").read_text().replace("= 3", "= 2"))
    sequencer(folder, "start", "Mend the logout", "--procedure", "errand", expect=1)
    assert (folder / "calls.txt").read_text() == "called\n" * 2


def test_a_hook_chooses_the_model_by_the_requests_label(project: Project) -> None:
    folder = project("hooks") / "model-by-label"
    for label, model in (("typo", "haiku"), ("architecture", "opus")):
        request = ("start", "Do it", "--procedure", "errand", "--label", label, "--run", label)
        sequencer(folder, *request)
        logs = [path.read_text() for path in folder.glob(f"logs/*/runs/{label}/steps/*.log")]
        # A rehearsal writes down what its step asks for.
        assert [f"fields  model: {model}" in log for log in logs] == [True, True]


@pytest.mark.slow
def test_procedures(project: Project) -> None:
    folder, run = project("procedures"), ("--run", "debug-login-timeout")
    sequencer(folder, "start", "Debug login timeout", "--label", "bug", expect=4)
    assert "Limit the retry to three tries?" in sequencer(folder, "inbox")
    sequencer(folder, "answer", "It happens behind the proxy only.")
    sequencer(folder, *run, "run", expect=4)
    sequencer(folder, "answer", "approve", "--note", "go ahead")
    sequencer(folder, *run, "run")
    facts = [json.loads(line) for line in sequencer(folder, *run, "history", "--json").splitlines()]
    told = [fact["event"] for fact in facts if fact["event"] not in ("initialised", "claimed")]
    assert told == [
        *("succeeded", "succeeded", "feedback", "succeeded", "succeeded", "approved"),
        *("succeeded", "invalid", "fixed", "succeeded", "succeeded", "succeeded", "completed"),
    ]
    reproduced = [f["outcome"]["output"] for f in facts if f["event"] == "succeeded"][::2][:2]
    assert reproduced == [
        "test_login fails without a proxy: the retry has no limit.",
        "test_login fails with the proxy: the retry has no limit.",
    ]
    posted = (folder / "posted.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in posted].count("elicitation") == 2


@pytest.mark.slow
def test_teams(project: Project) -> None:
    folder = project("teams")
    ensure_true(run_region(ROOT / "examples" / "teams" / "README.md", folder))
    history = sequencer(folder, "--run", "greeting", "history", "--json").splitlines()
    facts = [json.loads(line) for line in history]
    begun = [fact["step"] for fact in facts if fact["event"] == "claimed"]
    assert sorted(begun[:2]) == ["manners", "places"]
    assert begun[2:] == ["build", "verify", "verify-fix-1", "verify", "tell"]
    # Whoever builds was told what both others have found out.
    build = next(f for f in facts if f["step"] == "build" and f["event"] == "succeeded")
    assert build["outcome"]["output"].endswith("by what manners and places found out.")


def test_every_example_has_a_test() -> None:
    tests = Path(__file__).read_text()
    flows = Path(__file__).with_name("test_example_flows.py").read_text()
    folders = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()}
    missing = {name for name in folders if f'project("{name}")' not in tests}
    assert {name for name in missing if f'"examples" / "{name}"' not in flows} == set()
