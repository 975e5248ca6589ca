from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.graph.choices import (
    NoMatchingBranch,
    choose,
    find_candidates,
    find_required_labels,
    forward_label,
    is_choice,
    is_unmatched,
    normalize,
)
from tests.flows import graph


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "yes"),
        ("  Yes!  ", "yes"),
        ('"Yes."', "yes"),
        ("'yes'", "yes"),
        ("`yes`", "yes"),
        ("**Yes.**", "yes"),
        ('**"Yes"!**.', "yes"),
        ("Needs_Info", "needs info"),
        ("needs-info", "needs info"),
        ("needs \t\n info", "needs info"),
        ("needs__- info", "needs info"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("é", "é"),
        ("v1.2", "v1.2"),
        ("yes?", "yes?"),
        ("!yes", "!yes"),
        ("", ""),
        (" ** ", ""),
        ("...", ""),
        ("-", ""),
    ],
)
def test_labels_are_compared_without_decoration(text: str, expected: str) -> None:
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("output", "first"),
    [
        ('{"decision": "Yes", "branch": "no", "result": "no"}', "yes"),
        ('{"result": "no", "branch": "yes"}', "yes"),
        ('{"result": "yes", "other": "no"}', "yes"),
        ('{"decision": 5, "branch": "yes"}', "yes"),
        ('  {"decision": "yes"}\n', "yes"),
        ('```json\n{"decision": "yes"}\n```', "yes"),
        ('```\n{"decision": "yes"}\n```', "yes"),
        ('It is fine:\n\n```json\n{"decision": "yes"}\n```\nTell me more.', "yes"),
        ('{"decision": "no"} was my first thought; now {"decision": "yes"}.', "yes"),
        ('{"decision": "yes", "more": {"decision": "no"}}', "yes"),
        ('{"decision": "yes"} {"decision": 5} {"other": "no"}', "yes"),
    ],
)
def test_the_field_of_a_json_object_comes_first(output: str, first: str) -> None:
    assert next(find_candidates(output)) == first


@pytest.mark.parametrize(
    "end",
    ["- **ok**", "* ok", "1. `ok`", "```\nok\n```", "~~~text\n**ok**\n~~~", "- Verdict: **ok**"],
)
def test_markdown_around_the_last_line_is_ignored(end: str) -> None:
    assert "ok" in find_candidates(f"I have read all of it.\n\n{end}\n")
    assert "ok" not in find_candidates("I have read all of it.\n\n- not **ok**\n")
    assert "1. ok" in find_candidates("It is this:\n1. ok")


@pytest.mark.parametrize(
    "output",
    ['{"decision": 5}', '["decision"]', '{"decision": "yes"', "{}", "{" * 200_000, "```", '"yes"'],
)
def test_fields_of_other_json_are_ignored(output: str) -> None:
    assert next(find_candidates(output)) == normalize(output)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", False),
        ("a --> b", False),
        ("a --> b; a --> c", False),
        ("a -->|x| b", False),
        ("a -->|x| b; a -->|X| c", False),
        ("a -->|x| b; a --> c", True),
        ("a -->|x| b; a -->|y| b", True),
        ("a{{A}} --> b", False),
        ("a{{A}} -->|x| b", True),
        ("a((A)) -->|x| b; a -->|y| c", True),
        ("a{A} -->|x| b", False),
    ],
)
def test_several_labels_are_a_choice_and_any_label_is_for_a_person(
    text: str, *, expected: bool
) -> None:
    assert is_choice(graph(text), "a") is expected


CHOICE = "a -->|yes| b; a -->|no| c; a -->|yes| d"


@pytest.mark.parametrize(
    ("text", "output", "places"),
    [
        ("a --> b; a --> c", "anything", (0, 1)),
        ("a -->|x| b; a -->|x| c", "y", (0, 1)),
        ("a", "x", ()),
        (CHOICE, "yes", (0, 2)),
        (CHOICE, "I think so.\nDecision: **No**", (1,)),
        (CHOICE, "no\nyes", (0, 2)),
        (CHOICE, '{"decision": "no"}\nyes', (1,)),
        (CHOICE, '{"decision": "no", "result": "yes"}', (1,)),
        (f"{CHOICE}; a -->|default| e", "maybe", (3,)),
        (f"{CHOICE}; a -->|default| e", "default", (3,)),
        (f"{CHOICE}; a --> e", "maybe", (3,)),
        (f"{CHOICE}; a --> e", "", (3,)),
        (f"{CHOICE}; a --> e", "...", (3,)),
        ("a -->|x: y| b; a -->|y| c", "x: y", (0,)),
    ],
)
def test_the_first_candidate_that_is_a_label_is_followed(
    text: str, output: str, places: tuple[int, ...]
) -> None:
    assert choose(graph(text), "a", output) == places


@pytest.mark.parametrize("output", ["yes and no", "not yes", "yess", "", "y", "no way"])
def test_part_of_an_output_does_not_match_a_label(output: str) -> None:
    with pytest.raises(NoMatchingBranch) as refused:
        choose(graph(CHOICE), "a", output)
    assert str(refused.value) == f"no matching branch for {output!r}"


@pytest.mark.parametrize(
    ("text", "labels", "forward"),
    [
        ("a -->|yes| b; a -->|no| c", ("yes", "no"), "yes"),
        ("a --> b; b -->|again| a; b -->|Go on| c", ("again", "Go on"), "Go on"),
        ("b -->|again| b; b -->|more| b", ("again", "more"), "again"),
        ("b -->|yes| c; b -->|default| d", (), "yes"),
        ("b -->|again| b; b --> d", (), None),
        ("b -->|yes| c; b --> d", (), "yes"),
        ("b --> c", (), None),
        ("b --> m((M)) --> d{D}; d -->|x| e; d -->|y| f", ("x", "y"), "x"),
        ("b --> d{D}; c --> d; d -->|x| e; d -->|y| f", (), None),
        ("b --> h{{H}}; h -->|x| e; h -->|y| f", (), None),
    ],
)
def test_required_labels_and_the_forward_label_are_found(
    text: str, labels: tuple[str, ...], forward: str | None
) -> None:
    name = "a" if text.startswith("a -->|") else "b"
    drawn = graph(text)
    assert (find_required_labels(drawn, name), forward_label(drawn, name)) == (labels, forward)


@pytest.mark.parametrize(
    ("output", "expected"), [("yes", False), ("not yes", True), ('{"result": "no"}', False)]
)
def test_an_output_that_matches_no_branch_is_detected(output: str, *, expected: bool) -> None:
    assert is_unmatched(graph(CHOICE), "a", output) is expected
    assert is_unmatched(graph(f"{CHOICE}; a --> e"), "a", output) is False


def person(**fields: Any) -> dict[str, Any]:
    options = ({"label": "Ship it", "value": "go"}, {"label": "go", "value": "later"})
    return {"nodes": {"h": {"options": options, **fields}}}


def test_an_answer_of_a_person_is_matched_by_value_then_by_option() -> None:
    labels = graph("h{{H}} -->|ship it| a; h -->|later| b; h --> c", **person())
    assert choose(labels, "h", "go") == (0,)
    assert choose(labels, "h", "Later!") == (1,)
    assert choose(labels, "h", "else") == (2,)
    both = graph("h{{H}} -->|ship it| a; h -->|go| b", **person())
    assert choose(both, "h", "go") == (1,)
    assert choose(both, "h", "later") == (1,)
