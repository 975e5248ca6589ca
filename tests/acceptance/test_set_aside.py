"""With a worktree, what a failed attempt did to the files is set aside and never merged."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sequencer import AttemptResult, Outcome, OutcomeStatus, Step, StepRef
from tests.acceptance.setting_aside import (
    ATTEMPTS,
    DIRT,
    FIRST,
    SET_ASIDE,
    files_of,
    made,
    one_step,
    people,
    worktree,
)
from tests.clones import git
from tests.unit.cli.calling import call

__all__ = ["people"]


FAILURES = {
    "files": DIRT,
    "staged": f"git add -A; {DIRT}",
    "committed": "git commit -qam half; echo more > more; exit 1",
    "on another branch": "git checkout -qb other; echo more >> notes; git commit -qam half; exit 1",
    "on no branch": "git checkout -q --detach; echo more >> notes; git commit -qam half; exit 1",
    "committed, then gone back": "git commit -qam half; git checkout -q HEAD^ 2>/dev/null; exit 1",
    "ignored now": "echo half >> .gitignore; echo half > half; echo x > notes; exit 1",
    "rules removed": "rm .gitignore; echo half > half; exit 1",
    "added by force": "git add -f kept.tmp; echo x > notes; exit 1",
}


@pytest.mark.slow(sample=3)
@pytest.mark.parametrize("act", FAILURES.values(), ids=list(FAILURES))
def test_files_are_restored_after_a_failed_attempt(tmp_path: Path, act: str) -> None:
    folder = made(tmp_path / "p", f"{FIRST}; echo mine > kept.tmp", act, "echo two >> notes")
    assert one_step(folder).code == 0
    before = files_of(worktree(folder))
    failed = one_step(folder)
    assert (failed.code, f"{SET_ASIDE}{ATTEMPTS}2" in failed.err) == (1, True), failed
    assert files_of(worktree(folder)) == before
    done = call(folder, "run")
    assert done.code == 0, done.err
    assert (folder / "notes").read_text() == "start\none\ntwo\n"
    assert {"half", "link", "more"}.isdisjoint(path.name for path in folder.iterdir())
    assert ((folder / "new").read_text(), (folder / "gone").exists()) == ("new\n", False)
    assert os.access(folder / "tool", os.X_OK)


@pytest.mark.slow
def test_changes_set_aside_are_on_a_ref_named_by_log_and_prompt(tmp_path: Path) -> None:
    folder = made(tmp_path / "p", FIRST, DIRT, DIRT, "true")
    assert one_step(folder).code == 0
    for _ in range(2):
        assert one_step(folder).code == 1
    assert call(folder, "run").code == 0
    for number in (2, 3):
        assert "+HALF" in git(folder, "diff", f"{ATTEMPTS}{number}^", f"{ATTEMPTS}{number}")
        changed = git(folder, "diff", "--name-only", f"{ATTEMPTS}{number}^", f"{ATTEMPTS}{number}")
        assert changed.split() == ["half", "link", "new", "notes", "tool"]
    logs = {log.name: log.read_text() for log in (folder / "logs").rglob("*two*.log")}
    told = {name: re.findall(r"set aside on (\S+),", text) for name, text in logs.items()}
    assert told == {
        "iter-00002_two.log": [f"{ATTEMPTS}2"],
        "iter-00002_two.2.log": [f"{ATTEMPTS}3"],
        "iter-00002_two.3.log": [],
    }
    prompts = [(folder / f"prompt.{n}").read_text() for n in (1, 2, 3, 4)]
    named = [re.findall(r"refs/\S+/\d+", prompt) for prompt in prompts]
    assert [one[-1:] for one in named] == [[], [], [f"{ATTEMPTS}2"], [f"{ATTEMPTS}3"]]


JUDGES = "[{name: one, text: One}, {name: two, text: Two, validation: {max_attempts: 3}}]"


def test_changes_of_a_judge_that_answers_no_stay(tmp_path: Path) -> None:
    folder = made(tmp_path / "p", FIRST, "echo more >> notes; exit 1", "true", steps=JUDGES)
    assert one_step(folder).code == 0
    assert SET_ASIDE not in one_step(folder).err
    assert (worktree(folder) / "notes").read_text() == "start\none\nmore\n"


@pytest.mark.parametrize("status", OutcomeStatus)
def test_only_an_attempt_that_failed_is_set_aside(status: OutcomeStatus) -> None:
    step = Step(name="one", text="One")
    ended = AttemptResult(Outcome(status=status), step, StepRef(0, "one", "one"), "hand")
    assert ended.has_failed == (status is OutcomeStatus.FAILED)


FLOW = """\
```mermaid
flowchart TD
  s[start] --> a[one]
  s --> b[two]
  a --> c[both]
  b --> c
```
### s
Start.
### a
Do a.
### b
Do b.
### c
Do c.
"""
BOTH = """\
cat > /dev/null
case $SEQUENCER_STEP in
a) echo HALF >> notes; while [ ! -e b.on ]; do sleep 0.05; done; exit 1;;
b) touch b.on; sleep 2; echo b > b.txt;;
esac
"""


def test_the_changes_of_a_failed_node_stay_while_another_one_works(tmp_path: Path) -> None:
    folder = made(tmp_path / "p", "true")
    (tmp_path / "act.sh").write_text(BOTH)
    (folder / "flow.md").write_text(FLOW)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a flow")
    assert call(folder, "run", "flow.md", "--max-parallel", "2").code == 1
    [tree] = (folder / "sync").rglob("run-*.json")
    assert (tree.with_suffix("") / "notes").read_text() == "start\nHALF\n"
    [log] = (folder / "logs").rglob("*_a.log")
    assert "the changes of this attempt stay: another node works" in log.read_text()


def test_clean_removes_the_refs_with_the_run(tmp_path: Path) -> None:
    folder = made(tmp_path / "p", f"{FIRST}; exit 1", "true", "true")
    assert call(folder, "--run", "old", "run").code == 1
    assert call(folder, "--run", "old", "run").code == 0
    every = ("for-each-ref", "--format=%(refname)", "refs/sequencer/")
    assert "refs/sequencer/attempts/old/1" in git(folder, *every).split()
    assert call(folder, "clean", "--older-than", "0", "--yes").code == 0
    assert (git(folder, *every), (folder / "sync" / "runs" / "old").exists()) == ("", False)
