"""Attempts that push to refs of their own, where the state is not in git."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sequencer.errors import WorkTreeBusy, WorkTreeRefused
from sequencer.executors.redaction import Redaction
from sequencer.model.head import Claim, Head, Work
from sequencer.plugins.git.code.attempt_refs import ATTEMPTS, AttemptWorkspace
from sequencer.plugins.git.process import Git
from sequencer.project.settings import load
from sequencer.project.store_requests import EVERYTHING
from tests.unit.git.clones import ENVIRONMENT, claim, commit, git, head, pair, said, write

MINE = f"{ATTEMPTS}/default/r"


@dataclass
class Machine:
    """A clone, and who makes attempts in it."""

    folder: Path
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin as a new process does."""
        settings = load(self.folder, env={})
        one = Git(self.folder, ENVIRONMENT, allowed=EVERYTHING)
        redaction = Redaction(["hunter2-hunter2"])
        self.carrier = AttemptWorkspace(one, settings, None, redaction, self.told.append)

    def begin(self, run: Head) -> Head:
        """Begin the next attempt, and return the head that has its claim."""
        token = run.token + 1
        run = run.replace(token=token, claims=(claim(run.step_index, token),))
        try:
            self.carrier.ensure_ready(run)
            self.carrier.enter(run)
        except WorkTreeRefused:
            self.carrier.leave(None)
            raise
        return run

    def end(self, run: Head) -> Work | None:
        """Push what the attempt has left."""
        (one,) = run.claims
        try:
            return self.carrier.collect(one, "main", run)
        finally:
            self.carrier.leave(None)

    def step(self, run: Head, name: str) -> Head:
        """Make a whole step that commits a file called *name*."""
        run = self.begin(run)
        commit(self.folder, {name: name})
        return accepted(run, self.end(run))


def accepted(run: Head, work: Work | None) -> Head:
    """Do what the server does with an accepted step."""
    return run.replace(work=work or run.work, step_index=run.step_index + 1, claims=())


def machines(tmp_path: Path) -> tuple[Path, Machine, Machine]:
    bare, here, there = pair(tmp_path, {".gitignore": "sync/\nlogs/\n"})
    return bare, Machine(here), Machine(there)


def refs(bare: Path) -> dict[str, str]:
    """Return where the branch and the attempts' refs are, by their last parts."""
    told = said(bare, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    pairs = [line.split() for line in told]
    return {ref.removeprefix(f"{MINE}/").removeprefix("refs/heads/"): oid for ref, oid in pairs}


def log(bare: Path, ref: str = "main") -> list[str]:
    return said(bare, "ls-tree", "-r", "--name-only", ref).split()[1:]


def test_code_travels_by_the_head_and_the_branch_follows(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    first = refs(bare)["main"]
    run = here.step(head(), "one")
    assert run.work is not None
    assert refs(bare) == {"main": first, "1": run.work.commit}
    run = there.begin(run)
    assert (there.folder / "one").exists()
    assert refs(bare)["main"] == said(there.folder, "rev-parse", "HEAD")
    commit(there.folder, {"two": "two"})
    run = accepted(run, there.end(run))
    assert run.work is not None
    assert run.work.ref == f"{MINE}/2"
    here.carrier.publish(run)
    assert refs(bare) == {"main": run.work.commit, "2": run.work.commit}
    run = here.begin(run)
    assert (here.folder / "two").exists()
    assert here.end(run) is None
    assert not here.told + there.told


def test_declared_paths_are_committed_for_the_step(tmp_path: Path) -> None:
    _, here, _ = machines(tmp_path)
    write(here.folder, {"orchestration.yaml": "commit: {paths: [docs/]}\n"})
    git(here.folder, "add", "-A")
    git(here.folder, "commit", "-qm", "settings")
    here.restart()
    run = here.begin(head())
    write(here.folder, {"docs/a": "1"})
    work = here.end(run)
    assert work is not None
    assert "docs/a" in said(here.folder, "ls-tree", "-r", "--name-only", work.commit)


def test_work_of_an_attempt_killed_before_its_push_is_saved_on_a_branch(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    run = here.begin(head())
    lost = commit(here.folder, {"lost": "1"})
    here.carrier._work_tree_lock.record_plan(
        run.claims[0], "main", lost, refs(bare)["main"], has_more=False
    )
    here.carrier.leave(None)
    run = there.step(run, "one")
    here.restart()
    run = here.begin(run)
    assert sorted(log(bare)) == ["README.md", "one"] == sorted(log(here.folder, "HEAD"))
    (told,) = here.told
    assert "the work that was not accepted is on branch sequencer-kept/default/0-1" in told
    assert "lost" in log(here.folder, "sequencer-kept/default/0-1")


def test_an_unaccepted_push_reaches_no_branch_and_is_swept(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    run = here.begin(head())
    commit(here.folder, {"lost": "1"})
    assert here.end(run) is not None  # killed before its report has arrived
    assert set(refs(bare)) == {"main", "1"}
    run = there.step(run, "one")
    here.restart()
    run = here.begin(run)
    assert set(refs(bare)) == {"main", "2"}
    assert "lost" not in log(bare)
    assert not (here.folder / "lost").exists()
    commit(here.folder, {"two": "2"})
    run = accepted(run, here.end(run))
    here.carrier.publish(run)
    assert log(bare) == ["README.md", "one", "two"]
    assert set(refs(bare)) == {"main", "3"}


def test_a_late_push_after_a_take_over_is_harmless(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    late = here.begin(head())
    commit(here.folder, {"lost": "1"})
    run = there.step(late, "one")
    assert here.end(late) is not None
    assert set(refs(bare)) == {"main", "1", "2"}
    run = there.step(run, "two")
    assert here.end(late) is not None
    there.carrier.publish(run)
    assert set(refs(bare)) == {"main", "3"}
    assert log(bare) == ["README.md", "one", "two"]


def test_a_repeated_push_detects_that_the_ref_was_moved(tmp_path: Path) -> None:
    bare, here, _ = machines(tmp_path)
    run = here.begin(head())
    commit(here.folder, {"one": "1"})
    (one,) = run.claims
    assert here.carrier.collect(one, "main", run) == here.carrier.collect(one, "main", run)
    git(bare, "update-ref", f"{MINE}/1", "main")
    with pytest.raises(WorkTreeRefused, match="refused refs"):
        here.carrier.collect(one, "main", run)


def test_commits_of_people_on_top_are_included(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    run = here.step(head(), "one")
    here.carrier.publish(run)
    git(there.folder, "pull", "-q")
    commit(there.folder, {"theirs": "1"})
    git(there.folder, "push", "-q", "origin", "main")
    run = here.step(run, "two")
    here.carrier.publish(run)
    assert log(bare) == ["README.md", "one", "theirs", "two"]


def test_diverging_commits_of_people_are_reported_and_not_overwritten(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    run = here.step(head(), "one")
    theirs = commit(there.folder, {"theirs": "1"})
    git(there.folder, "push", "-q", "origin", "main")
    here.carrier.publish(run)
    (told,) = here.told
    assert f"someone has moved branch main of 'origin' to {theirs[:12]}" in told
    with pytest.raises(WorkTreeRefused) as refused:
        here.begin(run)
    assert refs(bare)["main"] == theirs
    git(there.folder, "branch", "-q", "--set-upstream-to=origin/main")
    for words in str(refused.value.hint).split("'")[1::2]:
        git(there.folder, *words.split()[1:])
    run = here.step(run, "two")
    here.carrier.publish(run)
    assert log(bare) == ["README.md", "one", "theirs", "two"]


def test_a_branch_that_moves_during_an_attempt_refuses_it(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    run = here.begin(head())
    commit(here.folder, {"one": "1"})
    commit(there.folder, {"theirs": "1"})
    git(there.folder, "push", "-q", "origin", "main")
    with pytest.raises(WorkTreeRefused, match="while the step ran"):
        here.end(run)
    assert set(refs(bare)) == {"main"}


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("steps", [1, 2])
def test_the_branch_follows_the_run_while_another_attempt_works(tmp_path: Path, steps: int) -> None:
    bare, here, there = machines(tmp_path)
    first = here.begin(head())
    other = there.begin(head().replace(token=1))
    commit(here.folder, {"one": "1"})
    run = accepted(first, here.end(first)).replace(token=2)
    if steps == 2:
        run = here.step(run, "three")
    (waiting,) = other.claims
    run = run.replace(claims=(waiting,))
    here.carrier.publish(run)
    assert run.work is not None
    assert refs(bare)["main"] == run.work.commit
    commit(there.folder, {"two": "2"})
    work = there.end(other)
    assert work is not None
    merged = here.carrier.merge_work(waiting, run, work)
    assert isinstance(merged, Work)
    there.carrier.publish(accepted(run, merged))
    assert log(bare) == ["README.md", "one", *["three"] * (steps - 1), "two"]


def test_a_dirty_or_diverged_clone_starts_nothing(tmp_path: Path) -> None:
    _, here, there = machines(tmp_path)
    run = here.step(head(), "one")
    write(there.folder, {"mine": "1"})
    with pytest.raises(WorkTreeRefused, match="has uncommitted changes"):
        there.begin(run)
    commit(there.folder, {"mine": "1"})
    with pytest.raises(WorkTreeRefused, match="diverged"):
        there.begin(run)


def test_a_clone_that_another_process_works_in_is_busy(tmp_path: Path) -> None:
    _, here, _ = machines(tmp_path)
    here.begin(head())
    with pytest.raises(WorkTreeBusy):
        Machine(here.folder).begin(head())


@pytest.mark.slow
def test_a_branch_that_may_not_be_moved_is_reported_once(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    hook = bare / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text('#!/bin/sh\n[ "$1" != refs/heads/main ] || { echo no; exit 1; }\n')
    hook.chmod(0o755)
    run = head()
    for number in range(3):
        run = (here, there)[number % 2].step(run, str(number))
    here.carrier.publish(run)
    assert len(here.told) == len(there.told) == 1
    assert "can't be moved to the accepted code, which is on" in here.told[0]
    hook.unlink()
    there.carrier.publish(run)
    assert log(bare) == ["0", "1", "2", "README.md"]


def test_foreign_refs_in_a_head_are_not_fetched(tmp_path: Path) -> None:
    _, here, there = machines(tmp_path)
    run = here.step(head(), "one")
    assert run.work is not None
    for ref in ("refs/heads/x", f"{ATTEMPTS}/other/r/1", f"{MINE}/../../1", "--upload-pack=x", 7):
        bad = Work.model_validate({**run.work.model_dump(), "ref": ref})
        with pytest.raises(WorkTreeRefused, match="does not have commit"):
            there.begin(run.replace(work=bad))


def apart(here: Machine, there: Machine, files: dict[str, str]) -> tuple[Head, Claim, Work]:
    """Let two attempts begin on the same commit, and accept one of them; return the other."""
    begun, other = here.begin(head()), there.begin(head().replace(token=1))
    commit(here.folder, {"one": "1\n"})
    commit(there.folder, files)
    one, two = here.end(begun), there.end(other)
    assert two is not None
    (waiting,) = other.claims
    return accepted(begun, one).replace(token=2, claims=(waiting,)), waiting, two


def test_work_of_parallel_attempts_is_merged(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    run, waiting, work = apart(here, there, {"two": "2"})
    assert run.work is not None
    write(here.folder, {"mine": "not committed"})
    merged = here.carrier.merge_work(waiting, run, work)
    assert isinstance(merged, Work)
    assert merged.ref == f"{MINE}/2"
    parents = said(bare, "rev-list", "--parents", "-n1", merged.commit).split()[1:]
    assert parents == [run.work.commit, work.commit]
    again = here.carrier.merge_work(waiting, run, work)
    assert isinstance(again, Work)
    assert (again.commit, again.ref) == (merged.commit, merged.ref)
    run = accepted(run, merged)
    there.carrier.publish(run)
    assert log(bare) == ["README.md", "one", "two"]
    run = there.step(run, "three")
    assert sorted(log(there.folder, "HEAD")) == ["README.md", "one", "three", "two"]


def test_conflicting_work_is_saved_on_a_branch_and_reported(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    run, waiting, work = apart(here, there, {"one": "another\n"})
    told = here.carrier.merge_work(waiting, run, work)
    assert isinstance(told, str)
    assert "in 'one'; they are on branch sequencer-kept/default/0-2 of 'origin'" in told
    assert refs(bare)["sequencer-kept/default/0-2"] == work.commit
    assert not said(here.folder, "for-each-ref", "refs/worktree/sequencer-work/merging")


def test_a_push_by_a_person_in_between_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, here, there = machines(tmp_path)
    run = here.step(head(), "one")
    theirs = commit(there.folder, {"theirs": "1"})
    look = here.carrier._fetch_tips

    def looked(seen: Head) -> None:
        look(seen)
        git(there.folder, "push", "-q", "origin", "main")

    monkeypatch.setattr(here.carrier, "_fetch_tips", looked)
    here.carrier.publish(run)
    assert refs(bare)["main"] == theirs
    (told,) = here.told
    assert "someone has moved branch main" in told


def test_refs_of_attempts_that_have_not_reported_yet_stay(tmp_path: Path) -> None:
    bare, here, there = machines(tmp_path)
    run, waiting, _ = apart(here, there, {"two": "2"})
    run = run.replace(token=3, claims=(waiting, claim(0, 3)))
    here.carrier.ensure_ready(run)
    here.carrier.leave(None)
    assert set(refs(bare)) == {"main", "1", "2"}
    here.carrier.ensure_ready(run.replace(claims=()))
    assert set(refs(bare)) == {"main", "1"}
