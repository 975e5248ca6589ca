"""What the hooks of examples/hooks decide; that the projects load is tests/project's to show."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sequencer.engine.hooking import Hooks
from sequencer.hooks import load_hooks
from sequencer.model.outcome import Decision, Move, Outcome, OutcomeStatus
from sequencer.model.request import Request
from sequencer.model.step import Step
from tests.unit.hooks.hook_files import OUTCOME, context

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


def test_a_step_without_a_file_in_the_groups_folder_is_left_alone(tmp_path: Path) -> None:
    project, hooks = example("ab-prompts", tmp_path)
    for number in range(20):
        facts = context(project, run_id=str(number), step=VERIFICATIONS)
        assert hooks.prompt(facts, TEXT) == TEXT


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


def test_a_submodule_is_no_worktree(tmp_path: Path) -> None:
    project, hooks = example("worktree-prompts", tmp_path)
    (project / ".git").write_text("gitdir: ../.git/modules/spike\n")
    assert hooks.prompt(context(project, step=CODING), TEXT) == TEXT


@pytest.mark.parametrize(
    ("labels", "model"),
    [
        (("architecture",), "opus"),
        (("bug", "Typo"), "haiku"),
        (("typo", "architecture"), "haiku"),
        (("bug",), "sonnet"),
        ((), "sonnet"),
    ],
)
def test_the_labels_choose_the_model(tmp_path: Path, labels: tuple[str, ...], model: str) -> None:
    project, hooks = example("model-by-label", tmp_path)
    request = Request(title="Split the billing module", labels=labels)
    assert hooks.model(context(project, request=request), "sonnet") == model
    assert hooks.model(context(project, request=None), None) is None


def test_verifications_are_tried_three_times(tmp_path: Path) -> None:
    project, hooks = example("retry-verifications", tmp_path)
    failed = Outcome(status=OutcomeStatus.FAILED, error="exit code 1")
    attempts = [context(project, step=VERIFICATIONS, attempt=number) for number in (1, 2, 3, 4)]
    assert [hooks.transition(facts, failed) for facts in attempts] == [
        Decision(Move.RETRY, None, "attempt 1 of 3 failed"),
        Decision(Move.RETRY, None, "attempt 2 of 3 failed"),
        None,
        None,
    ]
    assert hooks.transition(attempts[0], OUTCOME) is None
    assert hooks.transition(context(project, step=CODING), failed) is None


def test_the_check_of_that_example_passes_at_its_third_call(tmp_path: Path) -> None:
    project, _ = example("retry-verifications", tmp_path)
    codes = [
        subprocess.run(
            [sys.executable, "check.py"], cwd=project, check=False, capture_output=True
        ).returncode
        for _ in range(3)
    ]
    assert codes == [1, 1, 0]
