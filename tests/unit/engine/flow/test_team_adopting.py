"""A team that goes on with a list of tasks that was changed under way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sequencer.engine.events import Emit, NoticeGiven, RunEvent
from sequencer.engine.invocation_budget import Mode
from sequencer.engine.performing import Performer
from sequencer.errors import ConfigurationError, DefinitionChanged
from sequencer.executors.protocol import EVERY_EXECUTOR, Executor
from sequencer.model.commands import Adopt
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.step import Step
from sequencer.plugins.teams.graphs import build_task_workflow
from sequencer.plugins.teams.team import Role, Task
from tests.unit.engine.flow.labs import Actor, Hold, failed, let_go, said, until
from tests.unit.engine.flow.team_labs import AT_ONCE, JUDGE, YES, TeamLab, adds, no, task, team


def adopted(made: TeamLab, tasks: Sequence[Task]) -> TeamLab:
    """Change the list of *made* to *tasks*, adopt it, and return the run under it."""
    after = made.changed(build_task_workflow("crew", tasks, {}, size=made.graph.max_parallel))
    assert isinstance(after, TeamLab)
    with pytest.raises(DefinitionChanged):
        after.work()
    after.run().do(Adopt())
    return after


def sources(made: TeamLab, name: str) -> set[str]:
    """Return what the execution of *name* began with."""
    (fact,) = [one for one in made.facts("claimed") if one["step"] == name]
    return set(fact["outcome"]["from"])


def finish(made: TeamLab) -> None:
    made.work()
    assert made.status == "completed"


def begun(made: TeamLab, tasks: Sequence[Task], steps: int) -> TeamLab:
    made.work(limits={"max_steps": steps})
    return adopted(made, tasks)


def test_a_task_now_blocked_only_by_a_done_one_runs(tmp_path: Path) -> None:
    """It hung on x too, which hangs on it now."""
    made = team(tmp_path, [task("a"), task("x", "a"), task("y", "a", "x")], size=1)
    after = begun(made, [task("a"), task("y", "a"), task("x", "y")], 1)
    finish(after)
    assert after.accepted() == ["a", "y", "x"]
    assert sources(after, "y") == {"a"}


def test_a_removed_task_is_no_longer_a_source(tmp_path: Path) -> None:
    """What waits began with its token; it begins without it."""
    made = team(tmp_path, [task("a"), task("b"), task("y", "a", "b")], size=1)
    after = begun(made, [task("b"), task("y", "b")], 1)
    finish(after)
    assert after.accepted() == ["a", "b", "y"]
    assert sources(after, "y") == {"b"}


def test_a_retry_after_a_failure_runs_the_new_list_of_tasks(tmp_path: Path) -> None:
    says = {"x": [failed("boom"), "at last"]}
    made = team(tmp_path, [task("a"), task("x", "a"), task("y", "x")], says, size=1)
    assert "boom" in made.ended()
    after = adopted(made, [task("a"), task("x", "a"), task("y"), task("z", "a", "x")])
    assert after.status == "failed"
    after.retry()
    finish(after)
    assert sorted(after.accepted()) == ["a", "x", "y", "z"]
    assert sources(after, "z") == {"a", "x"}


def test_adopting_starts_nothing_in_a_complete_run(tmp_path: Path) -> None:
    made = team(tmp_path, [task("a")])
    made.work()
    after = made.changed(build_task_workflow("crew", [task("a"), task("b")], {}))
    after.run().do(Adopt())
    assert after.accepted() == ["a"]
    assert after.status == "completed"


def test_tasks_added_by_a_lead_survive_adopting(tmp_path: Path) -> None:
    says = {"lead": adds(("one",), ("two", "one")), "judge": [no(), "{}"]}
    tasks = [task("lead", adds="tasks"), task("judge", "lead", **JUDGE)]
    made = team(tmp_path, tasks, says, size=1)
    made.work(limits={"max_steps": 1})
    after = adopted(made, [*tasks, task("last", "judge")])
    names = set(after.graph.by_id)
    assert {"one", "two", "last"} <= names
    after.actor.says["judge"] = ['{"pass": true, "reason": "fine"}']
    finish(after)
    assert sorted(after.accepted()) == ["judge", "last", "lead", "one", "two"]


@st.composite
def lists(draw: st.DrawFn) -> list[Task]:
    """Return up to six tasks, in any order, each behind some of those before it."""
    names = draw(st.permutations("abcdef"))[: draw(st.integers(1, 6))]
    return [
        task(name, *(other for other in names[:place] if draw(st.booleans())))
        for place, name in enumerate(names)
    ]


@pytest.mark.slow
@settings(max_examples=25)
@given(before=lists(), after=lists(), steps=st.integers(0, 6))
def test_each_task_runs_once_after_its_blockers_whatever_is_adopted(
    tmp_path_factory: pytest.TempPathFactory, before: list[Task], after: list[Task], steps: int
) -> None:
    made = team(tmp_path_factory.mktemp("run"), before, size=1)
    made.work(limits={"max_steps": max(steps, 1)})
    done = set(made.accepted())
    everything = [*after]
    known = {one.id for one in after}
    # Where the run stands must be there.
    everything += [task(one.id) for one in before if one.id not in known | done]
    if made.status == "completed":
        return
    changed = made.changed(build_task_workflow("crew", everything, {}, size=1))
    assert isinstance(changed, TeamLab)
    if everything != before:
        changed.run().do(Adopt())
    finish(changed)
    accepted = changed.accepted()
    assert sorted(accepted) == sorted(done | {one.id for one in everything})
    for one in everything:
        if one.id not in done:
            assert all(accepted.index(b) < accepted.index(one.id) for b in one.blocked_by)


# --- a run whose agents does not support all that roles and authors ask of them -------------------


class Narrow(Actor):
    """An agent that can say nothing but its prompt."""

    supported_fields: ClassVar[frozenset[str]] = EVERY_EXECUTOR


@dataclass
class Choosy:
    """Agents that refuse what they does not support, as a project's own do."""

    actor: Executor
    has_fallback: ClassVar[bool] = False

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        del position
        if step.agent not in (None, "actor"):
            raise ConfigurationError(f"there is no agent {step.agent!r}")
        given = step.model_dump(exclude_defaults=True).keys()
        if refused := sorted(given - self.actor.supported_fields):
            raise ConfigurationError(f"the agent does not support {refused[0]}")
        return "actor", self.actor

    def choose_installed(self, step: Step, position: str) -> tuple[str, Executor, str | None]:
        return *self.choose(step, position), None

    def ensure_folder(self, agent: str, folder: Path) -> None:
        """Do nothing."""

    def warm_up(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Listening:
    """Keeps notices."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __call__(self, event: RunEvent) -> None:
        if isinstance(event, NoticeGiven):
            self.heard.append(event.text)


@dataclass
class NarrowLab(TeamLab):
    """A team of agents that honour few fields."""

    ears: Listening = field(default_factory=Listening)

    def performer(self, made: Any, emit: Emit) -> Performer:
        return replace(super().performer(made, emit), agents=Choosy(self.actor))

    def listen(self) -> None:
        """Work, and keep what a person would hear."""
        self.work(on_event=self.ears)


def narrow(made: TeamLab) -> NarrowLab:
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return NarrowLab(**{**fields, "actor": Narrow(made.actor.says)})


ROLES = {
    "reader": Role.model_validate({"allowed_tools": ["Read"], "max_turns": 5}),
    "implementer": Role.model_validate({"max_turns": 7, "writes": True}),
    "nobodys": Role.model_validate({"executor": "nobody", "max_turns": 5}),
}
LEFT_OUT = "role {}: its agent does not support {}; left out"


def test_fields_left_out_of_a_role_are_reported_once(tmp_path: Path) -> None:
    """Of a role, however many tasks have it."""
    tasks = [task("a", role="reader"), task("b", "a", role="reader"), task("c", role="reader")]
    says = {"a": ["", "again"]}
    made = narrow(team(tmp_path, tasks, says, roles=ROLES))
    made.listen()
    assert made.status == "completed"
    told = LEFT_OUT.format("reader", "allowed_tools, max_turns")
    assert [text for text in made.ears.heard if "left out" in text] == [told]
    for asked in made.actor.asked:
        assert (asked.step.allowed_tools, asked.step.max_turns) == (None, None)


def left_out(made: NarrowLab) -> list[str]:
    return [text for text in made.ears.heard if "left out" in text]


def test_later_processes_do_not_report_it_again(tmp_path: Path) -> None:
    tasks = [task("a", role="reader"), task("b", "a", role="reader"), task("c", "b", role="reader")]
    made = narrow(team(tmp_path, tasks, roles=ROLES))
    for _ in tasks:
        made.work(Mode.TICK, on_event=made.ears)
    assert made.accepted() == ["a", "b", "c"]
    assert left_out(made) == [LEFT_OUT.format("reader", "allowed_tools, max_turns")]
    assert all(asked.step.max_turns is None for asked in made.actor.asked)


def test_an_unknown_agent_of_a_role_is_refused(tmp_path: Path) -> None:
    """Else a role with a misspelt agent would lose what it says, and work as anybody."""
    made = narrow(team(tmp_path, [task("a", role="nobodys")], roles=ROLES))
    assert "there is no agent 'nobody'" in str(made.refused())
    assert made.actor.asked == []


def test_a_fix_runs_without_the_unsupported_fields_of_its_role(tmp_path: Path) -> None:
    made = narrow(team(tmp_path, [task("check", **JUDGE)], {"check": [no(), YES]}, roles=ROLES))
    made.listen()
    assert made.status == "completed"
    told = LEFT_OUT.format("implementer", "max_turns")
    assert made.ears.heard.count(told) == 1


# --- tasks that are added by an answer: who waits for them, and what a wrong answer is --------

LEAD = (task("lead", adds="tasks", **AT_ONCE), task("sum", "lead"))
MAX_HEAD_BYTES = 4096


def test_the_second_of_two_leads_using_the_same_id_is_refused(tmp_path: Path) -> None:
    """Whoever ends second is refused, and hears why."""
    tasks = [task("x", adds="tasks", **AT_ONCE), task("y", adds="tasks", **AT_ONCE)]
    says = [adds(("more",)), adds(("other",))]
    made = team(tmp_path, tasks, {"x": [says[0]], "y": list(says)}, size=1)
    made.work()
    assert sorted(made.graph.order) == ["more", "other", "x", "y"]
    (refused,) = made.facts("failed")
    assert "the run has a task 'more' already" in refused["outcome"]["error"]
    assert "'more'" in made.actor.prompts_of("y")[1]


def test_a_team_can_grow_while_another_process_holds_a_claim(tmp_path: Path) -> None:
    hold = Hold("long")
    made = team(
        tmp_path,
        [task("lead", adds="tasks"), task("long"), task("sum", "lead", "long")],
        {"lead": adds(("a",), ("b", "a")), "long": hold},
    )
    with let_go(hold):
        first = made.works(places=1)
        second = made.works(places=1)
        hold.wait()
        until(lambda: "b" in made.accepted())
        assert "sum" not in made.actor.names
        hold.go.set()
        first.summary()
        second.summary()
    assert sorted(made.accepted()) == ["a", "b", "lead", "long", "sum"]
    assert made.accepted()[-1] == "sum"


def test_added_tasks_are_taken_over_from_a_killed_process(tmp_path: Path) -> None:
    made = team(tmp_path, LEAD, {"lead": adds(("a",), ("b",))})
    made.work(limits={"max_steps": 1})
    made.died()
    assert {claim.step for claim in made.head.claims} == {"a", "b"}
    assert made.work().usage.steps == 3
    assert {fact["step"] for fact in made.facts("taken-over")} == {"a", "b"}


# --- wrong answers -----------------------------------------------------------------------

WRONG = {
    "no-json": ("I would add two tasks", "schema: it is not JSON"),
    "empty": (json.dumps({"tasks": []}), "schema"),
    "unknown": (adds(("a", "nobody")), "there is no task 'nobody' to wait for"),
    "itself": (adds(("a", "a")), "waits for itself"),
    "cycle": (adds(("a", "b"), ("b", "a")), "in a circle: a -> b -> a"),
    "behind-a-follower": (adds(("a", "sum")), "in a circle"),
    "taken": (adds(("sum",)), "the run has a task 'sum' already"),
    "role": (adds(("a",), role="boss"), "there is no role 'boss'"),
    "more": (json.dumps({"tasks": [{"id": "a", "subject": "s", "model": "big"}]}), "schema"),
    "many": (adds(*((f"t{number}",) for number in range(40))), "at most 30 are allowed"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_fails_the_attempt_and_the_next_gets_the_reason(
    tmp_path: Path, kind: str
) -> None:
    answer, reason = WRONG[kind]
    says = {"lead": [answer, adds(("good",))]}
    made = team(tmp_path, LEAD, says, rules={"max_tasks": 30})
    assert made.work().usage.steps == 3
    assert made.accepted() == ["lead", "good", "sum"]
    (refused,) = made.facts("failed")
    assert reason in refused["outcome"]["error"]
    assert refused["outcome"]["status"] == "failed"
    first, second = made.actor.prompts_of("lead")
    assert "last attempt" not in first
    assert reason in second.partition("# What your last attempt ended with")[2]
    assert len(made.marking.growths) == 1
    assert "lead" not in made.marking.ledger.notes


def test_every_problem_in_an_answer_is_reported(tmp_path: Path) -> None:
    made = team(tmp_path, LEAD, {"lead": [adds(("a", "u1"), ("sum", "u2")), adds(("b",))]})
    made.work()
    (refused,) = made.facts("failed")
    for part in ("'u1'", "'u2'", "'sum' already"):
        assert part in refused["outcome"]["error"]


def test_a_structured_answer_takes_precedence_over_the_text(tmp_path: Path) -> None:
    answer = said("Done, see my JSON.", structured=json.loads(adds(("a",))))
    made = team(tmp_path, LEAD, {"lead": answer})
    made.work()
    assert made.accepted() == ["lead", "a", "sum"]
    # The list is for the program; whoever comes behind is told which parts there are.
    for name in ("a", "sum"):
        (prompt,) = made.actor.prompts_of(name)
        assert "# The parts into which the work was cut\n\n- a: Do a\n" in prompt
        assert "Done, see my JSON." not in prompt


def test_a_lead_that_failed_or_was_released_adds_nothing(tmp_path: Path) -> None:
    answer = adds(("a",))
    bad = failed("no", structured=json.loads(answer))
    stopped = said(answer).replace(status=OutcomeStatus.INTERRUPTED)
    made = team(tmp_path, LEAD, {"lead": [bad, stopped, adds(("b",))]})
    made.work()
    assert made.accepted() == ["lead", "b", "sum"]


# --- sub-issues --------------------------------------------------------------------------

PARTS = json.dumps(
    {
        "sub_issues": [
            {"id": "api", "title": "API", "description": "the server"},
            {"id": "ui", "title": "Page", "description": "the client", "depends_on": ["api"]},
        ]
    }
)


# --- what a process makes of a graph that others have added to --------------------------------
