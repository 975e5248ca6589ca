"""With a worktree, what a failed attempt did to the files is set aside and never merged."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sequencer import Cancellation, Outcome, OutcomeStatus, Step, StepRef, open_project
from sequencer.engine.evidence import PriorAttempts
from sequencer.engine.workspace import AttemptFolder, Workspace
from sequencer.model.kind import AttemptResult
from sequencer.plugins.git.code.project_trees import run_worktree
from sequencer.plugins.git.process import Git
from tests.clones import ENVIRONMENT, git
from tests.unit.cli.calling import Called, call, project

ATTEMPTS = "refs/sequencer/attempts/default/"
STEPS = "[{name: one, text: One}, {name: two, text: Two}]"
FIRST = "echo one >> notes; echo new > new; chmod +x tool; git add notes; rm gone"
DIRT = "echo HALF >> notes; echo half > half; rm new; ln -s notes link; chmod -x tool; exit 1"
SET_ASIDE = "the changes of this attempt were set aside on "


def made(folder: Path, *acts: str, steps: str = STEPS, more: str = "") -> Path:
    """Return a project whose attempts in its run's worktree do *acts*, one after the other."""
    count = 'n=$(($(cat "$P/count") + 1)); echo $n > "$P/count"; cat > "$P/prompt.$n"'
    cases = " ".join(f"{n}) {act};;" for n, act in enumerate(acts, 1))
    act = f"P={shlex.quote(str(folder))}; {count}; case $n in {cases} esac"
    (folder.parent / "act.sh").write_text(act)
    names = ", ".join(name for name in ENVIRONMENT if name.startswith("GIT_"))
    agent = (
        f"{{kind: command, argv: [sh, {folder.parent}/act.sh], free: true, pass_env: [{names}]}}"
    )
    folder = project(
        folder,
        f"agent: hand\nagents: {{hand: {agent}}}\nworktree: true\nworkflow: work\n"
        f"workflows: {{work: {{kind: procedure, steps: {steps}}}}}\n{more}",
    )
    (folder / ".gitignore").write_text("sync/\nlogs/\nprompt.*\ncount\n*.tmp\n")
    (folder / "count").write_text("0")
    for name in ("notes", "gone", "tool"):
        (folder / name).write_text("start\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    return folder


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        if name.startswith("GIT_"):
            monkeypatch.setenv(name, value)


def worktree(folder: Path) -> Path:
    [note] = (folder / "sync" / "worktrees").glob("run-*.json")
    return note.with_suffix("")


def one_step(folder: Path) -> Called:
    return call(folder, "run", "--max-steps", "1")


def files_of(folder: Path) -> dict[str, str]:
    """Return what the files in *folder* are, and what git says of them."""
    paths = (one for one in folder.rglob("*") if ".git" not in one.parts and not one.is_dir())
    found = {
        str(one.relative_to(folder)): (
            f"-> {one.readlink()}"
            if one.is_symlink()
            else f"{one.stat().st_mode:o} {one.read_text()}"
        )
        for one in paths
        if one.name != ".git"
    }
    for what in (["status", "--porcelain"], ["rev-parse", "HEAD"], ["symbolic-ref", "-q", "HEAD"]):
        found[what[0]] = git(folder, *what, check=False)
    return found


def refs(folder: Path) -> list[str]:
    return git(folder, "for-each-ref", "--format=%(refname)", ATTEMPTS).split()


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


# --- one process after the other ------------------------------------------------------


class Attempt:
    """The second attempt in a run's worktree, made step by step."""

    def __init__(self, folder: Path, is_shared: Callable[[], bool] = lambda: False) -> None:
        self.folder, self.said, self.is_shared = folder, list[str](), is_shared
        opened = open_project(folder)
        head = opened.run(None).head
        assert head is not None
        self.place = run_worktree(opened, None, Workspace(folder), self.said.append)
        self.place.begin(head, Cancellation())
        self.head = head

    def keep(self) -> Any:
        self.place.ensure_ready(self.head)
        attempt: Any = SimpleNamespace(
            run_id=self.head.run_id, run_name=None, token=2, number=1, iteration=2
        )
        attempt.step = SimpleNamespace(name="two")
        attempt.write_notice = self.said.append
        attempt.prior = PriorAttempts(is_shared=self.is_shared)
        return self.place.open(attempt)


def fail(kept: AttemptFolder) -> None:
    """Let the attempt of *kept* fail."""
    kept.close(OutcomeStatus.FAILED, lambda: None)


def dirty(place: Path) -> None:
    """Do what a failed attempt does."""
    (place / "notes").write_text("start\none\nHALF\n")
    (place / "half").write_text("half\n")
    (place / "new").unlink()
    git(place, "commit", "-q", "-am", "half")


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return a project whose first step is done in the run's worktree."""
    folder = made(tmp_path / "p", FIRST, "true")
    assert one_step(folder).code == 0
    return folder


def test_nothing_is_restored_where_another_node_works(begun: Path) -> None:
    place, works = worktree(begun), [False]
    attempt = Attempt(begun, lambda: works[0])
    kept = attempt.keep()
    dirty(place)
    works[0], before = True, files_of(place)
    fail(kept)
    assert files_of(place) == before
    assert "another node works in the same folder, or has meanwhile" in attempt.said[-1]
    again = Attempt(begun, lambda: True)
    fail(again.keep())
    assert files_of(place) == before
    assert "the changes of this attempt stay: another node" in again.said[-1]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("what", ["file", "commit", "git"])
def test_nothing_is_restored_if_a_person_changed_it_in_the_meantime(
    begun: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, run = worktree(begun), Git.run
    attempt = Attempt(begun)
    kept = attempt.keep()
    dirty(place)

    def act(self: Git, *argv: str, **more: Any) -> Any:
        if argv[0] == "update-ref" and what == "file":
            (place / "notes").write_text("a person's\n")
        if argv[0] == "update-ref" and what == "commit":
            git(place, "commit", "-q", "--allow-empty", "-m", "a person's")
        return run(self, *argv, **more)

    monkeypatch.setattr(Git, "run", act)
    if what == "git":
        (Path(git(place, "rev-parse", "--absolute-git-dir")) / "index.lock").touch()
    before = {**files_of(place), "rev-parse": ""}
    fail(kept)
    monkeypatch.undo()
    after = files_of(place)
    told = {
        "file": "someone has changed files there meanwhile; refs/sequencer/attempts/default/2",
        "commit": "someone has committed there meanwhile; refs/sequencer/attempts/default/2",
        "git": "another git is at work there",
    }
    assert f"the changes of this attempt stay: {told[what]}" in attempt.said[-1]
    if what == "file":
        before |= {"notes": "100644 a person's\n", "status": "M notes\n?? half"}
    assert {**after, "rev-parse": ""} == before
    # The next attempt begins with all of it.
    (Path(git(place, "rev-parse", "--absolute-git-dir")) / "index.lock").unlink(missing_ok=True)
    Attempt(begun).keep()
    assert files_of(place) == after


def killed(folder: Path, dies: Callable[[int, Sequence[str]], bool], *, is_after: bool) -> bool:
    """Let the process be killed at the git call for which *dies*; return whether it was."""
    pid = os.fork()
    if pid == 0:
        run, calls = Git.run, [0]

        def act(self: Git, *argv: str, **more: Any) -> Any:
            calls[0] += 1
            is_last = dies(calls[0], argv)
            if is_last and not is_after:
                os._exit(9)
            made = run(self, *argv, **more)
            if is_last:
                os._exit(9)
            return made

        Git.run = act  # type: ignore[method-assign]
        try:
            kept = Attempt(folder).keep()
            dirty(worktree(folder))
            fail(kept)
        except BaseException:  # noqa: BLE001 - nothing of the test runs in this process
            os._exit(8)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in {0, 9}
    return code == 9


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_nothing_is_lost_or_half_restored_by_a_kill_at_any_git_call(
    begun: Path, tmp_path: Path, is_after: bool
) -> None:
    place, saved, number = worktree(begun), tmp_path / "saved", 0
    shutil.copytree(begun, saved, symlinks=True)
    clean, seen, is_killed = files_of(place), set[str](), True
    while is_killed:
        number += 1
        shutil.rmtree(begun)
        shutil.copytree(saved, begun, symlinks=True)
        is_killed = killed(begun, lambda call, _, last=number: call == last, is_after=is_after)  # type: ignore[misc]
        Attempt(begun).keep()
        now = files_of(place)
        if now == clean:
            seen.add("as before")
        elif now["notes"].endswith("HALF\n"):
            # As the attempt has left it, which was taken over.
            assert ("half" in now, "new" in now) == (True, False), number
            seen.add("as left")
        else:
            pytest.fail(f"half of it was restored at call {number}: {now}")
        if refs(begun) == [f"{ATTEMPTS}2"] and "HALF" in git(begun, "show", f"{ATTEMPTS}2:notes"):
            seen.add("kept")
        elif seen == {"as before", "as left"}:
            pytest.fail(f"what was set aside is nowhere at call {number}")
        assert not [*(begun / ".git" / "worktrees").rglob("sequencer-attempt-*")]
    assert number > 12
    assert seen == {"as before", "as left", "kept"}


@pytest.mark.parametrize("path", ["half", "new", "notes"])
def test_an_interrupted_restore_never_overwrites_a_persons_change(begun: Path, path: str) -> None:
    place = worktree(begun)
    assert killed(begun, lambda _, argv: "-u" in argv, is_after=False)
    (place / path).write_text("a person's\n")
    before = files_of(place)
    attempt = Attempt(begun)
    attempt.keep()
    assert files_of(place) == before
    assert f"stay: someone has changed {path!r} meanwhile" in attempt.said[0]
    assert json.loads(place.with_suffix(".json").read_text())["restoring"] == {}


def test_clean_removes_the_refs_with_the_run(tmp_path: Path) -> None:
    folder = made(tmp_path / "p", f"{FIRST}; exit 1", "true", "true")
    assert call(folder, "--run", "old", "run").code == 1
    assert call(folder, "--run", "old", "run").code == 0
    every = ("for-each-ref", "--format=%(refname)", "refs/sequencer/")
    assert "refs/sequencer/attempts/old/1" in git(folder, *every).split()
    assert call(folder, "clean", "--older-than", "0", "--yes").code == 0
    assert (git(folder, *every), (folder / "sync" / "runs" / "old").exists()) == ("", False)
