"""What a node's prompt gets of the state and of what others said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import StepFailed
from sequencer.model.net.graph import Graph
from sequencer.model.net.marking import Marking
from sequencer.model.step import Retry
from tests.unit.engine.flow.labs import Lab, lab, said

MIB = 1024 * 1024


def prompt(made: Lab, node: str = "b") -> str:
    """Run the flow, and return what the agent of *node* was told."""
    made.work()
    (text,) = made.actor.prompts_of(node)
    return text


def told(folder: Path, text: str, prompts: dict[str, str], says: Any = None, **more: Any) -> str:
    return prompt(lab(folder, text, says, prompts=prompts, **more))


# --- output ------------------------------------------------------------------------------


def test_one_that_is_too_large_for_a_prompt_is_kept_and_fails_who_asks_for_it(
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
def test_a_decision_about_an_output_that_can_not_be_read_has_failed(
    tmp_path: Path, spoil: str
) -> None:
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


def test_an_output_whose_file_is_gone_is_a_failure(tmp_path: Path) -> None:
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
        ("{{state.a.deep}}", "nothing below"),
        ("{{output.field}}", "no JSON"),
        ("{{nodes.a.output.field}}", "no JSON"),
        ("{{nodes.zz.output}}", "no node 'zz'"),
        ("{{nodes.a}}", "nodes.ID.output"),
        ("{{nodes.a.text}}", "nodes.ID.output"),
        ("{{state.list.7}}", "no item '7'"),
        ("{{state.list.-1}}", "no item '-1'"),
        ("{{input.gone}}", "known: "),
    ],
)
def test_what_is_missing_fails_the_node_at_once(tmp_path: Path, asked: str, hint: str) -> None:
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


def test_the_state_begins_as_the_workflow_says(tmp_path: Path) -> None:
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


def test_an_input_does_not_ask_for_itself(tmp_path: Path) -> None:
    shown = told(tmp_path, "b", {"b": "{{input.a}}"}, nodes={"b": {"input": {"a": "{{input.a}}"}}})
    assert shown == "{{input.a}}"


# --- what is read --------------------------------------------------------------------------


def begun(made: Graph, name: str) -> Marking:
    marking = Marking(made)
    for entry in made.entries:
        marking.apply(["token", entry, None])
    marking.apply(["start", name])
    return marking


def test_secrets_in_an_output_are_hidden_before_it_is_kept(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", {"a": said("the s3cret")}, prompts={"b": "{{output}}"})
    assert prompt(made) == "the ***"
    assert "s3cret" not in (tmp_path / "sync" / "journal.jsonl").read_text()


@pytest.mark.parametrize("text", ["{{input.found}}", "{{input}}", "{{ state.name }} {{output}}"])
def test_an_input_that_the_prompt_has_is_not_repeated(tmp_path: Path, text: str) -> None:
    given = {"b": {"input": {"found": "{{output}} by {{state.name}}"}}}
    shown = told(tmp_path, "a --> b", {"b": text}, nodes=given, state={"name": "Ann"})
    assert "# Input" not in shown


def test_an_input_that_the_prompt_has_not_stands_below_it(tmp_path: Path) -> None:
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
