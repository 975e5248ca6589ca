"""What a person does to single nodes of a graph's run, and to the whole of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.run_commands import RunCommands
from sequencer.errors import SequencerError, TransitionRefused, UnknownName
from sequencer.model.commands import (
    Accept,
    Approve,
    Fail,
    Feedback,
    Reject,
    RetryNow,
    Rewind,
    RunCommand,
    Skip,
    StartAt,
)
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.marking import Marking
from sequencer.model.head import Head, Status
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams.team import Task
from sequencer.store.file import FileStore
from tests.flows import workflow
from tests.unit.engine.flow.labs import Lab, failed, lab, said
from tests.unit.engine.flow.team_labs import TeamLab, adds, task, team

DIAMOND = "a --> b & c; b & c --> j --> e"
LOOP = "w --> q; q -->|again| w; q -->|good| x; q -->|bad| y; x & y --> e"


@pytest.fixture(params=[False, True], ids=["in-head", "in-documents"])
def _where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(flow_record, "INLINE_ENTRIES", 0)
        monkeypatch.setattr(flow_record, "INLINE_BYTES", 0)


def done(made: Lab) -> str:
    return "".join(made.accepted())


# --- rewind ------------------------------------------------------------------------------


@pytest.mark.usefixtures("_where")
@pytest.mark.parametrize(
    ("to", "again"), [("a", "abcje"), ("b", "bje"), ("c", "cje"), ("j", "je"), ("e", "e")]
)
def test_a_node_and_what_it_leads_to_run_again(tmp_path: Path, to: str, again: str) -> None:
    made = lab(tmp_path, DIAMOND)
    made.work()
    token = made.head.token
    head = made.run().do(Rewind(to)).head
    assert (head.status, head.exit_reason, head.expected_step) == (Status.WAITING_NEXT, None, to)
    made.work()
    assert sorted(done(made)) == sorted("abcje" + again)
    assert made.status == "completed"
    (fact,) = made.facts("rewound")
    assert sorted(fact["outcome"]["again"]) == sorted(again)
    assert made.head.token > token, "no token is granted twice"


def test_a_rewind_keeps_the_outputs_of_other_nodes(tmp_path: Path) -> None:
    made = lab(tmp_path, DIAMOND, {"b": [said("old"), said("new")], "c": said("c")},
               prompts={"j": "{{output}}"})  # fmt: skip
    made.work()
    made.run().do(Rewind("b"))
    made.work()
    old, new = made.actor.prompts_of("j")
    assert '"b": "old"' in old.replace('":"', '": "')
    assert '"b": "new"' in new.replace('":"', '": "')
    assert '"c": "c"' in new.replace('":"', '": "')


def test_a_rewind_follows_the_path_that_was_taken(tmp_path: Path) -> None:
    made = lab(tmp_path, LOOP, {"q": [said("again"), said("good")]})
    made.work()
    assert done(made) == "wqwqxe"
    made.run().do(Rewind("e"))
    made.work()
    assert done(made) == "wqwqxee", "y was not chosen, and is not waited for"
    made.run().do(Rewind("x"))
    made.work()
    assert done(made) == "wqwqxeexe"
    with pytest.raises(TransitionRefused, match="has not reached 'y' yet"):
        made.run().do(Rewind("y"))


def test_a_rewound_decision_may_choose_another_path(tmp_path: Path) -> None:
    made = lab(tmp_path, LOOP, {"q": [said("good"), said("bad")]})
    made.work()
    made.run().do(Rewind("q"))
    made.work()
    assert done(made) == "wqxeqye"


def test_a_failed_run_can_be_rewound(tmp_path: Path) -> None:
    made = lab(tmp_path, DIAMOND, {"j": [failed(), said()]})
    made.refused()
    made.run().do(Rewind("b"))
    made.work()
    assert sorted(done(made)) == sorted("abcbje")


def test_a_node_whose_failure_diverted_the_run_can_be_rewound(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b --> c; err --> z", {"b": [failed(), said()]}, on_error="err")
    made.refused()
    assert made.status == "completed_after_error"
    made.run().do(Rewind("b"))
    made.work()
    assert made.status == "completed"
    assert made.accepted() == ["a", "err", "z", "b", "c"]


def test_a_rewind_undoes_the_error_path_too(tmp_path: Path) -> None:
    says: dict[str, Any] = {"b": [failed(), said()], "err": failed()}
    made = lab(tmp_path, "a --> b --> c; err --> z", says, on_error="err")
    made.refused()
    made.run().do(Rewind("b"))
    made.work()
    assert (made.status, made.accepted()) == ("completed", ["a", "b", "c"])


def test_only_the_path_taken_provides_outputs_after_a_rewind(tmp_path: Path) -> None:
    made = lab(tmp_path, "q -->|good| e; q -->|bad| y; y --> e",
               {"q": said("bad"), "y": said("of y")}, prompts={"e": "{{output}}"})  # fmt: skip
    made.work()
    made.run().do(Rewind("e"))
    made.work()
    once, again = made.actor.prompts_of("e")
    assert once == again
    assert "of y" in again


def test_tasks_of_a_team_run_again(tmp_path: Path) -> None:
    tasks = [Task(id="a", subject="a"), Task(id="b", subject="b", blocked_by=("a",))]
    made = team(tmp_path, [*tasks, Task(id="c", subject="c", blocked_by=("b",))])
    made.work()
    made.run().do(Rewind("b"))
    made.work()
    assert done(made) == "abcbc"


def test_a_task_that_added_others_cannot_be_rewound(tmp_path: Path) -> None:
    made = team(tmp_path, (task("a"), task("b", "a", adds="tasks")), {"b": adds(("x",))})
    made.work()
    assert done(made) == "abx"
    for name in "ab":
        with pytest.raises(TransitionRefused, match="'b' has added tasks"):
            made.run().do(Rewind(name))
    made.run().do(Rewind("x"))
    made.work()
    assert done(made) == "abxx"


def test_a_rewound_node_leaves_no_results_in_the_marking() -> None:
    graph = workflow("a --> b").graph
    assert graph is not None
    marking = Marking(graph, done={"a": 1, "b": 1}, keys={"k": "b", "l": "a"}, outputs={"b": "0-1"})
    marking.ledger.notes["b"], marking.ledger.refusals["b"] = "why", 2
    marking.apply(["rewind", ["b"], [["b", ["a"]]]])
    assert (marking.done, marking.keys, marking.outputs) == ({"a": 1}, {"l": "a"}, {})
    assert (marking.ledger.notes, marking.ledger.refusals) == ({}, {})
    assert marking.waiting == {"b": {"a": None}}


def test_a_run_in_which_nothing_has_started_can_start_at_a_node(tmp_path: Path) -> None:
    made = lab(tmp_path, DIAMOND)
    with pytest.raises(TransitionRefused, match="has not reached 'b' yet"):
        made.run().do(Rewind("b"))
    made.run().do(StartAt("b"))
    made.work()
    assert done(made) == "bje"
    with pytest.raises(TransitionRefused, match="has already started"):
        made.run().do(StartAt("a"))


def test_a_running_node_cannot_be_changed_by_hand(tmp_path: Path) -> None:
    made = lab(tmp_path, DIAMOND)
    made.claimed()
    control = made.run().commands
    for change in (
        partial(control.do, Rewind("a")),
        partial(control.do, Accept(node="a")),
        partial(control.do, Skip(node="a")),
        partial(control.do, RetryNow("a")),
    ):
        with pytest.raises(TransitionRefused, match="node 'a' is being run by process"):
            change()


# --- stamp, skip, retry ------------------------------------------------------------------


def test_a_failed_node_is_accepted_by_hand(tmp_path: Path) -> None:
    made = lab(tmp_path, DIAMOND, {"b": failed()}, prompts={"j": "{{output}}"})
    made.refused()
    before = made.head
    head = made.run().do(Accept("did it", "b", "by hand")).head
    assert head.usage.steps == before.usage.steps + 1
    assert head.step_index == before.step_index + 1
    made.work()
    assert made.status == "completed"
    assert "by hand" in made.actor.prompts_of("j")[0]
    assert made.facts("stamped")[0]["outcome"]["note"] == "ok: did it"


def test_a_choice_by_hand_needs_the_output_that_picks_the_path(tmp_path: Path) -> None:
    made = lab(tmp_path, LOOP, {"q": failed()})
    made.refused()
    control = made.run().commands
    for change in (partial(control.do, Accept(node="q")), partial(control.do, Skip(node="q"))):
        with pytest.raises(TransitionRefused, match="the output of 'q' picks the way") as refused:
            change()
        assert "skip --as-done --output TEXT q" in (refused.value.hint or "")
    made.run().do(Accept(node="q", output="bad"))
    made.work()
    assert done(made) == "wye"


def test_a_skipped_node_passes_on_what_reached_it(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b --> c", {"a": said("from a")}, prompts={"c": "{{output}}"})
    made.work(limits={"max_steps": 1})
    made.run().do(Skip("not now", "b"))
    made.work()
    assert done(made) == "ac"
    assert "from a" in made.actor.prompts_of("c")[0]
    assert made.head.usage.steps == 2


def test_a_node_fails_by_hand(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b; err --> z", on_error="err")
    made.work(limits={"max_steps": 1})
    made.run().do(Fail("the tests are red", "b"))
    made.refused()
    assert made.status == "completed_after_error"
    assert made.facts("failed")[0]["outcome"]["error"] == "the tests are red"


def crew(folder: Path) -> TeamLab:
    tasks = [Task.model_validate({"id": one, "subject": one}) for one in "ab"]
    last = Task.model_validate({"id": "c", "subject": "c", "blocked_by": ["a", "b"]})
    return team(folder, [*tasks, last], {"a": [failed(), said()], "b": [failed(), said()]})


def test_one_failed_task_of_a_team_can_be_retried(tmp_path: Path) -> None:
    made = crew(tmp_path)
    made.refused()
    made.run().do(RetryNow("a"))
    made.refused()
    assert made.accepted() == ["a"]
    made.run().do(Accept("by hand", "b"))
    made.work()
    assert made.accepted() == ["a", "c"]


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        (Accept(), TransitionRefused, "may be at several nodes at once"),
        (Fail(), TransitionRefused, "may be at several nodes at once"),
        (Skip(), TransitionRefused, "may be at several nodes at once"),
        (Skip(node="nobody"), UnknownName, "unknown node 'nobody'"),
        (Rewind("nobody"), UnknownName, "unknown node 'nobody'"),
        (Accept(node="e"), TransitionRefused, "'e' can't start now"),
        (Rewind("e"), TransitionRefused, "has not reached 'e' yet"),
        (RetryNow("b"), TransitionRefused, "'b' has not failed"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(
    tmp_path: Path, command: RunCommand, error: type[SequencerError], words: str
) -> None:
    made = lab(tmp_path, DIAMOND)
    made.work(limits={"max_steps": 1})
    before = made.head
    with pytest.raises(error, match=words):
        made.run().do(command)
    assert made.head == before


def test_skip_is_refused_after_the_run_has_ended(tmp_path: Path) -> None:
    made = lab(tmp_path, "a")
    made.work()
    with pytest.raises(TransitionRefused, match="has ended as completed") as refused:
        made.run().do(Skip(node="a"))
    assert "rewind NODE" in (refused.value.hint or "")


def test_a_question_can_be_skipped_but_not_accepted_by_hand(tmp_path: Path) -> None:
    made = lab(tmp_path, "h{{Sure?}} --> a")
    made.refused()
    with pytest.raises(TransitionRefused, match="'h' asks a person"):
        made.run().do(Accept(node="h"))
    made.run().do(Skip(node="h"))
    made.work()
    assert done(made) == "a"


def asking(tmp_path: Path) -> tuple[FileStore, Workflow, Head]:
    store, made = FileStore(tmp_path / "state.json"), workflow("h{{Sure?}} --> m((m))")
    RunCommands(store, made).begin()
    head, _ = GraphChanges(store, made).update(None, lambda _: None)
    assert head.status is Status.WAITING_APPROVAL
    return store, made, head


def test_a_rejected_run_is_cancelled(tmp_path: Path) -> None:
    store, made, _ = asking(tmp_path)
    head = RunCommands(store, made).do(Reject("no need"), by="ann").head
    assert (head.status, head.exit_reason) == (Status.COMPLETE, "cancelled")
    facts = list(store.history())[-2:]
    assert [fact["event"] for fact in facts] == ["cancelled", "completed"]
    assert facts[0]["outcome"] == {"by": "ann", "note": "no need", "cancelled": ["h"]}
    with pytest.raises(TransitionRefused, match="has ended as cancelled"):
        RunCommands(store, made).do(Reject(), by="bob")


def test_a_cancelled_run_can_be_brought_back(tmp_path: Path) -> None:
    store, made, before = asking(tmp_path)
    RunCommands(store, made).do(Reject(), by="ann")
    head = RunCommands(store, made).do(RetryNow()).head
    assert head.status is Status.WAITING_APPROVAL
    assert head.token > before.token, "the question is asked anew"


@pytest.mark.parametrize("verb", ["approve", "feedback"])
def test_a_question_takes_an_answer_but_no_approval_or_feedback(tmp_path: Path, verb: str) -> None:
    store, made, before = asking(tmp_path)
    control = RunCommands(store, made)
    with pytest.raises(TransitionRefused, match="it asks questions") as refused:
        control.do(Approve() if verb == "approve" else Feedback("x"), by="ann")
    assert "sequencer answer" in (refused.value.hint or "")
    assert store.view().head == before
