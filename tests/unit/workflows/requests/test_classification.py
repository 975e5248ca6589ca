from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sequencer.errors import ConfigurationError, Interrupted, SequencerError, StepFailed
from sequencer.model.request import Request
from sequencer.plugins.requests.routing import (
    MAX_TEXT_CHARS,
    WORDS,
    ClassificationFailed,
    classification_prompt,
    classify_with,
    parse_classification,
)

REQUEST = Request(title="Add a page", text="For users.", labels=("ui", "web"))


def answering(answer: str | Exception) -> Callable[[str], str]:
    def ask(_: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "form", ["{}", "  {}\n", "{}.", '"{}"', "'{}'.", '"{}."', "`{}`", "\t{}\r\n\n"]
)
def test_a_word_is_read_despite_a_little_surrounding_text(word: str, form: str) -> None:
    assert parse_classification(form.format(word)) == word
    assert parse_classification(form.format(word.upper())) == word


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " ",
        ".",
        "''",
        "not code",
        "code, I think",
        "code\nplanning",
        "question or code",
        "**code**",
        "codes",
        "'code\"",
        '""code""',
        "code..",
        "\uff43\uff4f\uff44\uff45",
        "que\u017ftion",
        "code\x00",
        "Classification: code",
        '{"classification": "code"}',
        "code" + " " * 200,
    ],
)
def test_anything_else_is_refused_and_shown(answer: str) -> None:
    with pytest.raises(ClassificationFailed) as refused:
        parse_classification(answer)
    assert "not one of the seven words" in refused.value.message
    assert refused.value.hint is not None
    assert all(word in refused.value.hint for word in WORDS)


AROUND = st.text(alphabet=" \t\n\"'`.", max_size=4)


@given(st.text() | st.builds("".join, st.tuples(AROUND, st.sampled_from(WORDS), AROUND)))
@example("que\u017ftion")
@example("\ufb01x")
def test_only_a_known_word_is_ever_read(answer: str) -> None:
    try:
        word = parse_classification(answer)
    except ClassificationFailed:
        return
    # What was cut off is white space, quotes and full stops, and nothing was folded into it.
    left = answer.strip().strip("\"'`.")
    assert left.lower() == word
    assert left.isascii()


def test_the_prompt_contains_the_request_and_all_the_words() -> None:
    prompt = classification_prompt(REQUEST)
    assert all(f"\n{word} " in prompt for word in WORDS)
    for told in ("Title: Add a page", "Labels: ui, web", "For users."):
        assert told in prompt.split("----- request -----")[1]
    long = classification_prompt(Request(title="x", text="y" * (MAX_TEXT_CHARS + 7)))
    assert "Labels: none" in long
    assert "(7 more characters)" in long
    assert len(long) < MAX_TEXT_CHARS + 3000
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return "Code."

    assert classify_with(ask)(REQUEST) == "code"
    assert asked == [prompt]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StepFailed("exit code 1"), "the classifier failed: exit code 1"),
        (TimeoutError("10 s are over"), "the classifier failed: 10 s are over"),
        (TimeoutError(), "the classifier failed: TimeoutError"),
        (FileNotFoundError(2, "No such file"), "No such file"),
        (ClassificationFailed("my own"), "^my own"),
        ("maybe", "not one of the seven words: 'maybe'"),
    ],
)
def test_a_failure_of_the_agent_is_a_failed_classification(
    error: Exception | str, message: str
) -> None:
    with pytest.raises(ClassificationFailed, match=message):
        classify_with(answering(error))(REQUEST)


@pytest.mark.parametrize("error", [ConfigurationError("no such agent"), Interrupted("stop")])
def test_other_errors_are_passed_on(error: SequencerError) -> None:
    with pytest.raises(type(error)):
        classify_with(answering(error))(REQUEST)
