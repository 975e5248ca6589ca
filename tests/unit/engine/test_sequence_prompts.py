from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.prompt_context.earlier_outputs import EarlierOutputs, read_earlier_outputs
from sequencer.engine.prompt_context.sequence_prompts import Composer, request_block, substitute
from sequencer.model.head import Gate, Head, Loop
from sequencer.model.request import Request
from sequencer.workflows.prompts import MissingValue
from tests.contract.store_cases import new_head

REQUEST = Request(
    title="Debug login",
    text="It times out.",
    labels=("bug", "auth"),
    comments=("also on mobile",),
    attachments=("logs/a.txt",),
)
AT = "2026-01-01T00:00:00Z"
FED_BACK = Gate(step="ask", step_index=1, token=1, opened_at=AT, decision="feedback")


def memory(*facts: dict[str, Any]) -> EarlierOutputs:
    return read_earlier_outputs(Path("/nowhere"), facts)


def said(step: str, output: str, event: str = "succeeded") -> dict[str, Any]:
    return {"event": event, "step": step, "outcome": {"output": output}}


def told(note: str, number: int = 1, gate: str = "ask") -> dict[str, Any]:
    return {"event": "feedback", "step": gate, "outcome": {"note": note, "round": number}}


def compose(
    text: str,
    *facts: dict[str, Any],
    head: Head | None = None,
    request: Request | None = REQUEST,
    **substitutions: str,
) -> str:
    return Composer(head or new_head(), request, substitutions, lambda: memory(*facts)).compose(
        text
    )


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{request.title}}", "Debug login"),
        ("{{ request.text }}", "It times out."),
        ("{{request.labels}}", "bug, auth"),
        ("{{request.labels.1}}", "auth"),
        ("{{request.comments}}", "also on mobile"),
        ("{{request.attachments.0}}", "logs/a.txt"),
        ("{{request}}", request_block(REQUEST)),
    ],
)
def test_a_prompt_can_use_the_fields_of_the_request(template: str, value: str) -> None:
    assert compose(template) == f"{value}\n"


def test_feedback_reaches_the_steps_that_run_again() -> None:
    head = new_head(gate=FED_BACK)
    once = compose("{{request.title}}", told("look at the retry"), head=head)
    assert (
        once == "Debug login\n\n# What a person said about the last result\n\nlook at the retry\n"
    )
    twice = compose(
        "{{request.title}}: {{feedback}}", told("one"), told("two", 2), told("x", 1, "other"),
        head=head,
    )  # fmt: skip
    assert twice == "Debug login: Round 1: one\n\nRound 2: two\n"


def test_no_feedback_is_shown_if_no_one_gave_any() -> None:
    waits = FED_BACK.replace(decision=None)
    assert compose("{{request.title}}{{feedback}}") == "Debug login\n"
    for gate in (None, waits):
        text = compose("{{request.title}}", told("old"), head=new_head(gate=gate))
        assert text == "Debug login\n"


def no(number: int, reason: str) -> dict[str, Any]:
    verdict = {"pass": False, "round": number, "reason": reason}
    return {"event": "invalid", "step": "check", "outcome": {"verdict": verdict}}


def test_the_first_round_reads_no_earlier_outputs() -> None:
    def recalled() -> EarlierOutputs:
        raise AssertionError

    head = new_head(loop=Loop(stage="fix", round=1, reason="1 fails"))
    text = Composer(head, REQUEST, {}, recalled).compose("{{validation.earlier}}|{{request.title}}")
    assert text == "|Debug login\n"


def test_the_tracker_fields_of_a_request_reach_the_prompt() -> None:
    told = REQUEST.replace(
        identifier="ENG-42",
        url="https://x.invalid/42",
        repository="acme/app",
        base_branch="next",
        assignees=("bea", "cy"),
        priority="High",
    )
    names = ("identifier", "url", "repository", "base_branch", "assignees", "priority")
    text = "|".join(f"{{{{request.{name}}}}}" for name in names)
    values = "ENG-42|https://x.invalid/42|acme/app|next|bea, cy|High\n"
    assert compose(text, request=told) == values
    assert compose(text) == "|||||\n"
    assert request_block(told).startswith(
        "# Request: Debug login\n\nIdentifier: ENG-42\nAddress: https://x.invalid/42\n"
        "Priority: High\nAssigned to: bea, cy\n\nIt times out."
    )


@pytest.mark.parametrize(
    ("template", "hint"),
    [
        ("{{steps.plan.output}}", "step 'plan' has no output yet; steps that have one: none"),
        ("{{request.author}}", "there is no 'author'"),
        ("{{request.labels.7}}", "no item '7'; it has 2 items"),
        ("{{steps.plan}}", "write {{steps.NAME.output}}"),
        ("{{output.field}}", "not JSON"),
        ("{{feedback.x}}", "write {{feedback}}"),
        ("{{validation.score}}", "there is no 'score'"),
        ("{{run.cost}}", "there is no 'cost'"),
    ],
)
def test_a_missing_value_is_an_error(template: str, hint: str) -> None:
    with pytest.raises(MissingValue, match="the prompt asks for") as raised:
        compose(template)
    assert hint in str(raised.value.hint)


def test_literal_substitutions_are_not_applied_to_their_own_results() -> None:
    table = {"app/linear/": "app/acme/", "app/": "x/"}
    assert substitute("see app/linear/profiles, app/b", table) == "see app/acme/profiles, x/b"
    assert substitute("a.b", {"a.b": "c", "c": "d"}) == "c"
    assert substitute("same", {}) == "same"
