"""Where a task works, in which order results are merged, and what becomes of what is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.flow.worker import FlowWorker
from sequencer.engine.flow.workplaces import Left, OneWorkplace, ProjectFolder, Workplace
from sequencer.errors import StepFailed, StorageFailed, TransitionRefused
from sequencer.model.head import Head
from sequencer.model.team import TaskTraits
from sequencer.store.memory import MemoryRun
from tests.unit.engine.flow.labs import Hold, failed, let_go, said, until
from tests.unit.engine.flow.team_labs import (
    AT_ONCE,
    JUDGE,
    YES,
    TeamLab,
    cost,
    crash,
    no,
    task,
    team,
)


@dataclass
class Place:
    """A workplace of one attempt that writes down what happens in it."""

    site: Site
    task: str
    token: int
    cwd: Path
    notices: tuple[str, ...] = ()

    def close(self, *, is_accepted: bool, wait_for_turn: Callable[[], None]) -> Left:
        self.site.note("close", self.task, is_accepted)
        if (hold := self.site.holds.get(self.task)) is not None:
            hold.wait(10)
        if is_accepted and self.task in self.site.merges:
            self.site.note("asks", self.task)
            wait_for_turn()
            self.site.note("merged", self.task)
        left = self.site.left.get(self.task, Left())
        if isinstance(left, BaseException):
            raise left
        return left


@dataclass
class Site:
    """Workplaces, and what happened in them, in order."""

    folder: Path
    merges: Collection[str] = ()
    """Tasks whose work is merged."""
    left: dict[str, Left | BaseException] = field(default_factory=dict)
    holds: dict[str, threading.Event] = field(default_factory=dict)
    """What the end of a task's place waits for."""
    said: list[tuple[Any, ...]] = field(default_factory=list)
    opened: list[TaskTraits] = field(default_factory=list)
    firsts: list[tuple[str, bool]] = field(default_factory=list)
    """Tasks whose places were opened, and whether it was for their first attempt."""
    refuses: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, *what: Any) -> None:
        with self._lock:
            self.said.append(what)

    def open(
        self, task: str, token: int, *, run_id: str, traits: TaskTraits, is_first: bool
    ) -> Workplace:
        assert run_id
        self.firsts.append((task, is_first))
        self.note("open", task)
        self.opened.append(traits)
        if task == self.refuses:
            raise StorageFailed("no room for a work tree")
        cwd = self.folder / f"{task}-{token}"
        cwd.mkdir()
        return Place(self, task, token, cwd, notices=(f"{task} works alone",))

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        del live
        return ()

    def times(self, *what: Any) -> int:
        return self.said.count(what)

    @property
    def merged(self) -> list[str]:
        return [name for word, name, *_ in self.said if word == "merged"]


def tree(name: str, *blockers: str, **more: Any) -> Any:
    """Return a task with a work tree of its own."""
    return task(name, *blockers, worktree=True, **more)


def at_site(made: TeamLab, *, merges: str = "", **left: Left | BaseException) -> Site:
    site = Site(made.folder, tuple(merges), dict(left))
    made.workplaces = site
    return site


# --- the order of merges -----------------------------------------------------------------


def test_a_later_one_waits_for_an_earlier_one_that_runs(tmp_path: Path) -> None:
    hold = Hold("one")
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        assert not hold.go.wait(0.15)
        assert site.merged == []
        assert made.accepted() == []
    at_work.summary()
    assert site.merged == ["a", "b"]
    # It was merged before who waits for it in the journal either.
    assert made.accepted() == ["a", "b"]


def test_an_earlier_one_waits_for_nobody(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"b": hold})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.merged == ["a"])
    at_work.summary()
    assert site.merged == ["a", "b"]


def test_the_list_counts_and_not_the_urgency(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b", weight=9)], {"a": hold})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        assert not hold.go.wait(0.1)
    at_work.summary()
    assert site.merged == ["a", "b"]


def test_who_is_finished_first_is_merged_first_where_the_settings_say_so(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold}, rules={"merge": "finished"})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: made.accepted() == ["b"])
    at_work.summary()
    assert site.merged == ["b", "a"]


def test_it_waits_for_no_task_that_shares_the_checkout(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [task("a"), tree("b")], {"a": hold})
    site = at_site(made, merges="b")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.merged == ["b"])
    at_work.summary()


def test_it_waits_for_no_task_that_does_not_run(tmp_path: Path) -> None:
    """One has failed, one waits for its next try, one has not begun."""
    later = {"retry": {"max_attempts": 2, "initial_delay_s": 60}}
    tasks = [tree("a"), tree("c", **later), tree("d", "a"), tree("b")]
    hold = Hold()
    made = team(tmp_path, tasks, {"a": failed(), "c": failed(), "b": hold})
    site = at_site(made, merges="abcd")
    with let_go(hold):
        at_work = made.works(limits={"max_steps": 1})
        until(lambda: len(made.facts("failed")) == 2)
        hold.go.set()
        assert at_work.summary().usage.steps == 1
    assert site.merged == ["b"]


def test_a_retried_earlier_one_holds_the_later_one_only_while_it_runs(tmp_path: Path) -> None:
    first, second = Hold(failed("again")), Hold("ok")
    made = team(tmp_path, [tree("a", **AT_ONCE), tree("b")], {"a": [first, second]})
    site = at_site(made, merges="ab")
    with let_go(first, second):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        second.go.set()
        first.go.set()
        at_work.summary()
    assert sorted(site.merged) == ["a", "b"]


def test_the_claim_of_another_process_is_waited_for(tmp_path: Path) -> None:
    memory = MemoryRun()
    first, second = Hold("one"), Hold("two")
    made = team(tmp_path, [tree("a"), tree("b")], {"a": first, "b": second}, memory=memory)
    site = at_site(made, merges="ab")
    with let_go(first, second):
        one = made.works(places=1)
        first.wait()
        other = made.works(places=1)
        second.wait()
        second.go.set()
        until(lambda: site.times("asks", "b"))
        assert not first.go.wait(0.15)
        assert site.merged == []
    one.end()
    other.end()
    assert site.merged == ["a", "b"]
    memory.close()


def test_the_claim_of_a_dead_process_is_not_waited_for(tmp_path: Path) -> None:
    """Nor for ever for one that is taken over: it holds the turn only while it runs."""
    memory = MemoryRun()
    made = team(tmp_path, [tree("a"), tree("b")], memory=memory)
    site = at_site(made, merges="ab")
    store = made.claimed(slots=1)
    assert [claim.step for claim in made.head.claims] == ["a"]
    at_work = made.works(places=1)
    until(lambda: site.times("asks", "b"))
    assert site.merged == []
    store.leave()
    at_work.summary()
    assert site.merged == ["b", "a"]
    memory.close()


def test_who_is_done_at_once_knows_who_was_begun_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first thread begins; else it would find nobody to wait for."""
    known: list[set[str]] = []
    start = FlowWorker._start

    def spy(worker: FlowWorker, head: Head, granted: list[int]) -> None:
        known.append({claim.step for claim in worker._performances.live})
        start(worker, head, granted)

    monkeypatch.setattr(FlowWorker, "_start", spy)
    team(tmp_path, [tree("a"), tree("b"), tree("c", "a")]).work()
    assert known[0] == {"a", "b"}


def test_waiting_ends_when_the_process_is_to_end(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold, "b": said("two", **cost(0.5))})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        at_work.ready()
        at_work.interrupt()
        at_work.error()
    assert site.merged == []
    released = {fact["step"]: fact["outcome"] for fact in made.facts("released")}
    assert released.keys() == {"a", "b"}
    assert released["b"]["error"] == "it was stopped before its work was merged"
    assert released["b"]["status"] == "interrupted"
    # What it has cost is counted; that it was stopped is nobody's failure.
    assert made.marking.team.spent["b"][0] == 0.5
    assert made.marking.team.streak == 0
    made.actor.says["a"] = ["one"]
    made.work()
    assert site.merged == ["a", "b"]


def test_waiting_ends_when_the_run_is_cancelled(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        made.run().flow.cancel("enough", by="ann")
        at_work.end()
    assert site.merged == []
    assert made.status == "cancelled"


# --- what an agent has left ----------------------------------------------------------------


def test_a_result_that_can_not_be_merged_is_no_success(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a"), task("b", "a"), task("c")], {"a": "I did it"})
    told = (("branch", "sequencer/a"), ("files", "x.py"))
    at_site(made, a=Left("can't be merged: conflicts in x.py", ("a notice",), told))
    summary = made.works().error()
    assert isinstance(summary, StepFailed)
    assert "task 'a' failed: can't be merged: conflicts in x.py" in str(summary)
    assert made.accepted() == ["c"]
    (fact,) = made.facts("failed")
    outcome = fact["outcome"]
    assert outcome["status"] == "failed"
    assert outcome["error"] == "can't be merged: conflicts in x.py"
    assert outcome["left"] == {"branch": "sequencer/a", "files": "x.py"}
    # What the agent has said is still there to be read.
    assert outcome["output"] == "I did it"
    assert "a" not in made.marking.outputs


def test_the_next_attempt_hears_of_the_conflict(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a", **AT_ONCE)], {"a": "done"})
    site = at_site(made, a=Left("conflicts in x.py"))
    until_second = threading.Event()

    def second(*_: Any) -> Any:
        site.left.clear()
        until_second.set()
        return said("done")

    made.actor.says["a"] = ["done", second]
    made.work()
    assert until_second.is_set()
    assert "conflicts in x.py" in made.actor.prompts_of("a")[1]


def test_what_was_merged_stands_in_the_journal(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")])
    at_site(made, a=Left(told=(("commit", "1234abc"),)))
    made.work()
    (fact,) = made.facts("succeeded")
    assert fact["outcome"]["left"] == {"commit": "1234abc"}


def test_a_failed_attempt_says_what_became_of_its_work_too(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")], {"a": failed("compiler crashed")})
    site = at_site(made, a=Left("its work can't be committed"))
    assert "compiler crashed\nits work can't be committed" in made.ended()
    assert site.said == [("open", "a"), ("close", "a", False)]


def test_a_judge_that_writes_is_judged_by_that_first(tmp_path: Path) -> None:
    made = team(tmp_path, [task("check", **JUDGE)], {"check": YES})
    at_site(made, check=Left("it changed x.py, and it only reads"))
    assert "it changed x.py" in made.ended()


def test_the_work_of_a_judge_that_says_no_is_not_accepted(tmp_path: Path) -> None:
    made = team(tmp_path, [task("check", **JUDGE)], {"check": [no(), YES]})
    site = at_site(made)
    made.work()
    closes = [what for what in site.said if what[0] == "close"]
    assert closes == [
        ("close", "check", False),
        ("close", "check-fix-1", True),
        ("close", "check", True),
    ]


def test_work_of_an_attempt_that_raised_is_closed(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a"), task("b")], {"a": crash})
    site = at_site(made)
    assert "a bug" in made.ended()
    assert ("close", "a", False) in site.said


def test_what_closing_raises_does_not_hide_the_bug(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")], {"a": crash})
    at_site(made, a=StorageFailed("git is gone"))
    assert "a bug" in made.ended()


@pytest.mark.parametrize("error", [StorageFailed("disk full: s3cret"), OSError("disk full")])
def test_a_place_that_can_not_be_closed_fails_its_task(tmp_path: Path, error: Exception) -> None:
    made = team(tmp_path, [tree("a"), task("b", "a"), task("c")], {"a": said("x", **cost(0.25))})
    at_site(made, a=error)
    assert "disk full" in made.ended()
    assert made.accepted() == ["c"]
    assert made.marking.team.spent["a"][0] == 0.25
    (fact,) = made.facts("failed")
    assert "s3cret" not in str(fact)


def test_a_task_without_a_place_stops_the_process_and_not_the_run(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a")])
    site = at_site(made)
    site.refuses = "a"
    error = made.refused()
    assert isinstance(error, StorageFailed)
    assert [fact["step"] for fact in made.facts("released")] == ["a"]
    site.refuses = ""
    made.work()
    assert made.status == "completed"


# --- where it works --------------------------------------------------------------------------


def test_an_agent_works_in_its_own_place(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a"), task("b", writes=False)])
    site = at_site(made)
    made.work()
    folders = {one.step.name: one.cwd.name.partition("-")[0] for one in made.actor.asked}
    assert folders == {"a": "a", "b": "b"}
    traits = {(one.worktree, one.writes) for one in site.opened}
    assert traits == {(True, True), (False, False)}


def test_a_place_knows_whether_another_attempt_was_there(tmp_path: Path) -> None:
    made = team(tmp_path, [tree("a", **AT_ONCE), task("b")], {"a": [failed(), "ok"]}, size=1)
    site = at_site(made)
    made.work()
    assert sorted(site.firsts) == [("a", False), ("a", True), ("b", True)]


def test_after_a_retry_it_is_not_the_first_attempt(tmp_path: Path) -> None:
    """The work of the one that failed for good may be on a branch."""
    made = team(tmp_path, [tree("a"), task("b")], {"a": [failed(), "ok"]})
    site = at_site(made)
    made.ended()
    made.retry()
    made.work()
    assert [first for name, first in site.firsts if name == "a"] == [True, False]


def test_the_projects_folder_is_a_place_that_leaves_all_as_it_is(tmp_path: Path) -> None:
    places = OneWorkplace(tmp_path)
    place = places.open("a", 1, run_id="r", traits=TaskTraits(), is_first=True)
    assert place == ProjectFolder(tmp_path)

    def never() -> None:
        raise AssertionError("nothing is merged")

    assert place.close(is_accepted=True, wait_for_turn=never) == Left()
    assert places.clean([]) == ()
    made = team(tmp_path, [task("a")])
    made.work()
    assert made.actor.asked[0].cwd == tmp_path


def test_a_refused_change_by_hand_leaves_what_runs(tmp_path: Path) -> None:
    """A message to a task that is done, while another one waits for its turn."""
    hold = Hold()
    made = team(tmp_path, [task("z"), tree("a", "z"), tree("b", "z")], {"a": hold})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        with pytest.raises(TransitionRefused):
            made.tell("z", "too late")
        made.tell("b", "you wait")
    at_work.summary()
    assert site.merged == ["a", "b"]
