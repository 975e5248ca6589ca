"""In which order tasks are begun, and the results of those that run at once are merged."""

from __future__ import annotations

import threading
from pathlib import Path

from sequencer.engine.perform import Crowd, MergeTurn
from sequencer.executors.protocol import Cancellation, StepRequest
from sequencer.model.head import Claim
from sequencer.model.net.graph import Graph
from sequencer.model.outcome import Outcome
from sequencer.store.identity import this_process
from sequencer.workflows.teams.graphs import workflow_of
from tests.unit.engine.flow.labs import Hold, failed, let_go, said, until
from tests.unit.engine.flow.team_labs import cost, task, team
from tests.unit.engine.flow.team_sites import at_site, tree

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


def test_who_is_finished_first_is_merged_first_where_the_settings_say_so(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold}, rules={"merge": "finished"})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: made.accepted() == ["b"])
    at_work.summary()
    assert site.merged == ["b", "a"]


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


def test_the_claim_of_another_process_is_waited_for(tmp_path: Path) -> None:
    first, second = Hold("one"), Hold("two")
    made = team(tmp_path, [tree("a"), tree("b")], {"a": first, "b": second})
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


def test_the_claim_of_a_dead_process_is_not_waited_for(tmp_path: Path) -> None:
    """Nor for ever for one that is taken over: it holds the turn only while it runs."""
    made = team(tmp_path, [tree("a"), tree("b")])
    site = at_site(made, merges="ab")
    store = made.claimed(slots=1)
    assert [claim.step for claim in made.head.claims] == ["a"]
    at_work = made.works(places=1)
    until(lambda: site.times("asks", "b"))
    assert site.merged == []
    store.leave()
    at_work.summary()
    assert site.merged == ["b", "a"]


def test_who_waits_is_merged_when_the_process_is_to_end(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold, "b": said("two", **cost(0.5))})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        at_work.ready()
        at_work.interrupt()
        at_work.error()
    # It is done and paid for: it does not wait any longer, and is not thrown away.
    assert site.merged == ["b"]
    assert [fact["step"] for fact in made.facts("released")] == ["a"]
    assert [fact["step"] for fact in made.facts("succeeded")] == ["b"]
    assert made.marking.team.spent["b"][0] == 0.5
    made.actor.says["a"] = ["one"]
    made.work()
    assert site.merged == ["b", "a"]


def test_waiting_ends_when_the_run_is_cancelled(tmp_path: Path) -> None:
    hold = Hold()
    made = team(tmp_path, [tree("a"), tree("b")], {"a": hold})
    site = at_site(made, merges="ab")
    with let_go(hold):
        at_work = made.works()
        until(lambda: site.times("asks", "b"))
        made.run().control.reject("enough", by="ann")
        at_work.end()
    assert site.merged == []
    assert made.status == "cancelled"


# --- what waiting costs ------------------------------------------------------------------


def held(
    graph: Graph, name: str, by: str, *, is_strict: bool = False, is_crowded: bool = False
) -> bool:
    me = this_process()
    claim = Claim(token=1, step=by, step_index=0, attempt=1, owner=me, claimed_at="", ttl_s=60.0)
    return MergeTurn(graph, name, is_strict=is_strict).is_held_by(Crowd((claim,), is_crowded))


def test_order_is_kept_only_where_nobody_has_to_wait_for_it() -> None:
    tasks = [tree("a"), tree("b"), tree("c"), task("after-b", "b"), task("sum", "a", "c")]
    graph = workflow_of("w", tasks, {}, size=3).graph
    assert graph is not None
    assert held(graph, "c", "a"), "what waits for c waits for a as well"
    assert not held(graph, "b", "a"), "after-b could begin"
    assert held(graph, "b", "a", is_strict=True)
    assert not held(graph, "a", "c"), "it stands behind"
    assert not held(graph, "c", "a", is_crowded=True), "c keeps a place that somebody wants"
    assert held(graph, "c", "a", is_strict=True, is_crowded=True)
    assert not held(graph, "c", "nobody"), "added since"


def test_no_more_than_the_team_has_members_over_all_processes(tmp_path: Path) -> None:
    counted = threading.Condition()
    now, most = 0, 0

    def work(request: StepRequest, cancellation: Cancellation) -> Outcome:
        nonlocal now, most
        del request
        with counted:
            now += 1
            most = max(most, now)
            counted.notify_all()
            # Three at once are waited for, so that fewer would be seen too.
            counted.wait_for(lambda: most >= 3, timeout=10)
        cancellation.wait(0.005)
        with counted:
            now -= 1
        return said("ok")

    tasks = [task(f"t{number}") for number in range(12)]
    made = team(tmp_path, tasks, {t.id: work for t in tasks}, size=3)
    processes = [made.works(places=2) for _ in range(3)]
    for process in processes:
        process.summary()
    assert most == 3
    assert sorted(made.accepted()) == sorted(t.id for t in tasks)
