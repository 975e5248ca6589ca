"""What a node's prompt gets of the state and of what others said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.conversations import FILE
from sequencer.errors import StepFailed
from sequencer.model.graph.graph import Graph
from sequencer.model.graph.marking import Marking
from sequencer.model.outcome import SessionFault, Usage
from sequencer.model.step import ContinuedSession, Retry, Step
from sequencer.model.workflow import Workflow
from tests.unit.engine.flow.labs import Lab, Said, failed, lab, said

MIB = 1024 * 1024


def prompt(made: Lab, node: str = "b") -> str:
    """Run the flow, and return what the agent of *node* was told."""
    made.work()
    (text,) = made.actor.prompts_of(node)
    return text


def told(folder: Path, text: str, prompts: dict[str, str], says: Any = None, **more: Any) -> str:
    return prompt(lab(folder, text, says, prompts=prompts, **more))


# --- output ------------------------------------------------------------------------------


def test_an_output_too_large_for_a_prompt_is_saved_but_fails_its_reader(
    tmp_path: Path,
) -> None:
    large = "x" * (5 * MIB)
    made = lab(tmp_path, "a --> b", {"a": large}, prompts={"b": "{{output}}"})
    with pytest.raises(StepFailed):
        made.work()
    assert made.actor.names == ["a"]
    (kept,) = (tmp_path / "sync" / "results").glob("*/output.txt")
    assert kept.stat().st_size == len(large)
    assert "more than 4194304 bytes" in made.facts("failed")[0]["outcome"]["error"]


@pytest.mark.parametrize("spoil", ["large", "gone"])
def test_a_decision_on_an_unreadable_output_fails(tmp_path: Path, spoil: str) -> None:
    says = {"a": "x" * (5 * MIB if spoil == "large" else 1)}
    made = lab(tmp_path, "a --> h{{H}} & m((M)); m --> q{Q}; h --> q; q -->|x| b; q -->|y| c", says)
    made.refused()
    if spoil == "gone":
        (kept,) = (tmp_path / "sync" / "results").glob("*/output.txt")
        kept.unlink()
    made.answer("h", "x")
    with pytest.raises(StepFailed):
        made.work()
    # What was accepted before stays so, and the failure is the decision's own.
    assert made.accepted() == ["a"]
    (fact,) = made.facts("failed")
    assert (fact["step"], fact["outcome"]["type"]) == ("q", "Output")


def test_a_missing_output_file_fails_the_node_that_reads_it(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", {"a": "text"}, prompts={"b": "{{output}}"})
    made.work(limits={"max_steps": 1})
    (kept,) = (tmp_path / "sync" / "results").glob("*/output.txt")
    kept.unlink()
    with pytest.raises(StepFailed):
        made.work()
    assert made.actor.names == ["a"]
    assert "output.txt" in made.facts("failed")[0]["outcome"]["error"]


# --- nodes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("{{state.gone}}", "known: "),
        ("{{state.a.deep}}", "it has no parts"),
        ("{{output.field}}", "not JSON"),
        ("{{nodes.a.output.field}}", "not JSON"),
        ("{{nodes.zz.output}}", "no node 'zz'"),
        ("{{nodes.a}}", "nodes.ID.output"),
        ("{{nodes.a.text}}", "nodes.ID.output"),
        ("{{state.list.7}}", "no item '7'"),
        ("{{state.list.-1}}", "no item '-1'"),
        ("{{input.gone}}", "known: "),
    ],
)
def test_a_missing_value_fails_the_node_at_once(tmp_path: Path, asked: str, hint: str) -> None:
    made = lab(
        tmp_path,
        "a --> b",
        {"a": "text"},
        prompts={"b": f"x {asked} y"},
        retry=Retry(max_attempts=3),
        state={"a": 1, "list": [1]},
    )
    with pytest.raises(StepFailed):
        made.work()
    # No agent was called for it, and it was not tried again.
    assert made.actor.names == ["a"]
    (fact,) = made.facts("failed")
    assert f"the prompt asks for {asked}" in fact["outcome"]["error"]
    assert hint in fact["outcome"]["error"]
    assert fact["outcome"]["type"] == "Template"


# --- state and input -----------------------------------------------------------------------


@pytest.mark.parametrize("places", [1, 3])
def test_the_state_lists_the_nodes_running_in_parallel(tmp_path: Path, places: int) -> None:
    ask = dict.fromkeys("sabj", "{{state._pending_parallel}}")
    chart = "s --> a; s --> b --> m((M)); a --> j; m --> j"
    made = lab(tmp_path, chart, prompts=ask, max_parallel=places)
    made.work()
    said = {name: made.actor.prompts_of(name)[0] for name in "sabj"}
    assert (said["s"], said["a"], said["j"]) == ("[]", '["a","b"]', "[]")
    assert said["b"] == ('["a","b"]' if places > 1 else "[]")


def test_the_state_starts_as_the_workflow_defines_it(tmp_path: Path) -> None:
    state = {"text": "t", "n": 1, "f": 0.5, "yes": True, "no": None, "l": ["x", {"k": [1]}]}
    ask = "{{state.text}} {{state.n}} {{state.f}} {{state.yes}}<{{state.no}}>{{state.l}}"
    ask += " {{state.l.1.k.0}}"
    shown = told(tmp_path, "b", {"b": ask}, state=state)
    assert shown == 't 1 0.5 true<>["x",{"k":[1]}] 1'


def test_the_input_of_a_node_may_hold_templates(tmp_path: Path) -> None:
    given = {"who": "{{state.name}}", "deep": {"l": ["{{output}}", 2]}, "n": 1}
    shown = told(
        tmp_path,
        "a --> b",
        {"b": "{{input.who}} {{input.deep.l.0}} {{input.deep.l}} {{input.n}}"},
        {"a": "said"},
        nodes={"b": {"input": given}},
        state={"name": "Ann"},
    )
    assert shown == 'Ann said ["said",2] 1'


def test_an_input_cannot_refer_to_itself(tmp_path: Path) -> None:
    shown = told(tmp_path, "b", {"b": "{{input.a}}"}, nodes={"b": {"input": {"a": "{{input.a}}"}}})
    assert shown == "{{input.a}}"


# --- what is read --------------------------------------------------------------------------


def begun(made: Graph, name: str) -> Marking:
    marking = Marking(made)
    for entry in made.entries:
        marking.apply(["token", entry, None])
    marking.apply(["start", name])
    return marking


def test_secrets_in_an_output_are_hidden_before_it_is_saved(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", {"a": said("the s3cret")}, prompts={"b": "{{output}}"})
    assert prompt(made) == "the ***"
    assert "s3cret" not in (tmp_path / "sync" / "journal.jsonl").read_text()


@pytest.mark.parametrize("text", ["{{input.found}}", "{{input}}", "{{ state.name }} {{output}}"])
def test_an_input_the_prompt_already_uses_is_not_repeated(tmp_path: Path, text: str) -> None:
    given = {"b": {"input": {"found": "{{output}} by {{state.name}}"}}}
    shown = told(tmp_path, "a --> b", {"b": text}, nodes=given, state={"name": "Ann"})
    assert "# Input" not in shown


def test_an_input_the_prompt_does_not_use_is_appended(tmp_path: Path) -> None:
    given = {"found": "{{output}}", "by": "{{state.name}}", "mark": "DONE", "none": None, "n": 3}
    shown = told(
        tmp_path,
        "a --> b",
        {"b": "Look, {{state.name}}."},
        {"a": "two\nlines"},
        nodes={"b": {"input": given}},
        state={"name": "Ann"},
    )
    assert shown == (
        "Look, Ann.\n\n# Input\n\n## found\n\ntwo\nlines\n\n## mark\n\nDONE\n\n## n\n\n3"
    )
    # Also where the prompt asks for nothing at all.
    plain = told(tmp_path / "plain", "b", {"b": "Go."}, nodes={"b": {"input": {"mark": "DONE"}}})
    assert plain == "Go.\n\n# Input\n\n## mark\n\nDONE"


# --- which conversation a node continues ------------------------------------------------------


def talking(
    folder: Path,
    text: str,
    says: dict[str, Said | list[Said]],
    *primary: str,
    limit: dict[str, int] | None = None,
    **fields: Any,
) -> Lab:
    """Return a flow whose *primary* nodes go on in the conversation that reaches them."""
    made = lab(folder, text, says)
    goes_on = True if limit is None else ContinuedSession.model_validate(limit)
    steps = [
        Step(name=step.name, continue_session=step.name in primary and goes_on, **fields)
        for step in made.workflow.steps
    ]
    return made.changed(Workflow("flow", steps, kind="graph", graph=made.workflow.graph))


def resumed(made: Lab, name: str) -> list[str | None]:
    return [one.resume_session for one in made.actor.asked if one.step.name == name]


def test_a_node_continues_the_conversation_that_reached_it(tmp_path: Path) -> None:
    says: dict[str, Said | list[Said]] = {
        "a": said("x", session_id="of-a"),
        "b": said("y", session_id="of-b"),
    }
    made = talking(tmp_path, "a --> b --> c --> d", says, "b", "d")
    made.work()
    assert [resumed(made, name) for name in "abcd"] == [[None], ["of-a"], [None], [None]]


def test_a_marker_passes_a_conversation_on_but_a_person_does_not(tmp_path: Path) -> None:
    """A marker hands on what reached it; a person's answer is no conversation."""
    says: dict[str, Said | list[Said]] = {"a": said("x", session_id="of-a")}
    made = talking(tmp_path, "a --> m((M)) --> b; a --> h{{H}} --> c", says, "b", "c")
    made.refused()
    made.answer("h", "yes")
    made.work()
    assert (resumed(made, "b"), resumed(made, "c")) == (["of-a"], [None])


def test_a_node_reached_by_several_conversations_continues_none(tmp_path: Path) -> None:
    says: dict[str, Said | list[Said]] = {n: said("x", session_id=n) for n in "sab"}
    made = talking(tmp_path, "s --> a & b; a & b --> j", says, "j", "a", "b")
    made.work()
    assert [resumed(made, name) for name in "abj"] == [["s"], ["s"], [None]]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"executor": 1}', "x" * 20_000])
def test_an_unreadable_conversation_is_not_continued(tmp_path: Path, text: str) -> None:
    says: dict[str, Said | list[Said]] = {"a": said("x", session_id="of-a")}
    made = talking(tmp_path, "a --> b", says, "b")
    made.work(limits={"max_steps": 1})
    (path,) = (tmp_path / "sync" / "results").glob(f"*/{FILE}")
    path.write_text(text)
    made.work()
    assert resumed(made, "b") == [None]


LOST = failed("No conversation found", session_fault=SessionFault.LOST)


def test_a_lost_conversation_is_lost_for_every_node_it_reached(tmp_path: Path) -> None:
    """The first that asks for it starts anew in the same attempt; the others don't ask at all."""
    says: dict[str, Said | list[Said]] = {
        "a": said("x", session_id="of-a"),
        "b": [LOST, said("y", session_id="of-b")],
    }
    made = talking(tmp_path, "a --> b & c; b --> d", says, "b", "c", "d")
    made.work(limits={"max_steps": 2})
    made.work()
    assert [resumed(made, name) for name in "bcd"] == [["of-a", None], [None], ["of-b"]]
    assert [fact["attempt"] for fact in made.facts("succeeded")] == [1, 1, 1, 1]


def test_a_lost_conversation_does_not_renew_the_time_limit(tmp_path: Path) -> None:
    for seconds, left_s in ((100, 50), (149.5, 1)):
        lost = LOST.replace(usage=Usage(seconds=seconds, cost_usd=0.25))
        says: dict[str, Said | list[Said]] = {
            "a": said("x", session_id="of-a"),
            "b": [lost, said("y", usage=Usage(cost_usd=0.5))],
        }
        made = talking(tmp_path / str(left_s), "a --> b", says, "b", timeout_s=150)
        made.work()
        asked = [one for one in made.actor.asked if one.step.name == "b"]
        assert [one.timeout_s for one in asked] == [150, left_s]
        assert len({one.result_path for one in asked}) == 2
        assert made.head.usage.cost_usd == 0.75


def test_a_retry_does_not_continue_a_suspect_conversation(tmp_path: Path) -> None:
    suspect = failed("HTTP 400", session_fault=SessionFault.SUSPECT)
    says: dict[str, Said | list[Said]] = {
        "a": said("x", session_id="of-a"),
        "b": [suspect, said("y")],
        "c": [failed("tests fail"), said("y")],
    }
    made = talking(tmp_path, "a --> b", says, "b", retry=Retry(max_attempts=2))
    made.work()
    assert resumed(made, "b") == ["of-a", None]
    other = talking(tmp_path / "other", "a --> c", says, "c", retry=Retry(max_attempts=2))
    other.work()
    assert resumed(other, "c") == ["of-a", "of-a"]


def test_a_node_limits_how_long_it_continues_a_conversation(tmp_path: Path) -> None:
    says: dict[str, Said | list[Said]] = {
        n: said("x", session_id="s", context_tokens=900) for n in "abcd"
    }
    made = talking(tmp_path, "a --> b --> c --> d", says, *"bcd", limit={"max_steps": 2})
    made.work()
    assert [resumed(made, name) for name in "bcd"] == [["s"], [None], ["s"]]
    made = talking(tmp_path / "2", "a --> b", says, "b", limit={"max_context": 899})
    made.work()
    assert resumed(made, "b") == [None]
    made = talking(tmp_path / "3", "a --> b", says, "b", limit={"max_context": 900})
    made.work()
    assert resumed(made, "b") == ["s"]
