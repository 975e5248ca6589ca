"""What the hooks of examples/hooks decide; that the projects load is tests/project's to show."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from sequencer.engine.hooking import Hooks
from sequencer.hooks import load_hooks
from sequencer.model.step import Step
from tests.unit.hooks.hook_files import context

EXAMPLES = Path(__file__).parents[3] / "examples" / "hooks"
CODING, VERIFICATIONS = Step(name="coding"), Step(name="verifications")
TEXT = "Do what is asked for.\n\n# Request: Debug login timeout\n"


def example(name: str, folder: Path) -> tuple[Path, Hooks]:
    project = Path(shutil.copytree(EXAMPLES / name, folder / name))
    return project, load_hooks(["hooks.py"], project)


def test_half_of_the_runs_get_one_more_instruction(tmp_path: Path) -> None:
    project, hooks = example("ab-prompts", tmp_path)
    runs = [f"0b5c{number:04d}" for number in range(400)]
    made = [hooks.prompt(context(project, run_id=run, step=CODING), TEXT) for run in runs]
    told = [text for text in made if text != TEXT]
    assert 150 < len(told) < 250
    assert set(told) == {f"{TEXT.rstrip()}\n\nWrite the failing test first.\n"}
    # A retry, or a process that goes on after a crash, is in the same group.
    again = load_hooks(["hooks.py"], project)
    assert made == [
        again.prompt(context(project, run_id=run, step=CODING, attempt=2), TEXT) for run in runs
    ]


def test_a_worktree_has_prompts_of_its_own(tmp_path: Path) -> None:
    project, hooks = example("worktree-prompts", tmp_path)

    def git(*words: str) -> None:
        named = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *named, *words], cwd=project, check=True, capture_output=True)

    assert hooks.prompt(context(project, step=CODING), TEXT) == TEXT
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    git("worktree", "add", "../spike")
    git("worktree", "add", "../other")
    assert hooks.prompt(context(project, step=CODING), TEXT) == TEXT
    assert hooks.prompt(context(tmp_path / "other", step=CODING), TEXT) == TEXT
    spike = tmp_path / "spike"
    own = "Try it out; nothing of it will be kept."
    made = hooks.prompt(context(spike, step=CODING), TEXT)
    assert made == f"{own}\n\n# Request: Debug login timeout\n"
    # A template has changed the step's own text: both are told.
    assert hooks.prompt(context(spike, step=CODING), "Other.") == f"{own}\n\nOther."
    assert hooks.prompt(context(spike, step=VERIFICATIONS), TEXT) == TEXT
