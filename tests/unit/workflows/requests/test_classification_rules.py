from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest
import yaml

from sequencer.model.request import MAX_TEXT_CHARS, Request
from sequencer.plugins.requests.routing import classify_by_rules

DATA = Path(__file__).parents[3] / "data/requests.yaml"
TITLES: dict[str, list[str]] = yaml.safe_load(DATA.read_text(encoding="utf-8"))
UNSURE = TITLES.pop("unsure")
TABLE = [(word, title) for word, titles in TITLES.items() for title in titles]


@pytest.mark.parametrize(("word", "title"), TABLE)
def test_a_request_is_classified(word: str, title: str) -> None:
    guess = classify_by_rules(Request(title=title))
    assert guess.word == word, guess.reason
    assert guess.reason


@pytest.mark.parametrize("title", UNSURE)
def test_the_rules_give_no_word_rather_than_guess(title: str) -> None:
    guess = classify_by_rules(Request(title=title))
    assert guess.word is None, guess.reason
    assert "no rule fits" in guess.reason


@pytest.mark.parametrize(
    "part",
    ["a ", "break ", "create sub ", "please ", "add docs", "search the ", "make a ", "((", "?"],
)
def test_a_hostile_request_costs_little(part: str) -> None:
    title = (part * 500)[:500]
    text = (part * (MAX_TEXT_CHARS // len(part)))[:MAX_TEXT_CHARS]
    began = process_time()
    classify_by_rules(Request(title=title, text=text))
    classify_by_rules(Request(title=title, text=text.replace(part[-1], "\n")))
    assert process_time() - began < 1.0
