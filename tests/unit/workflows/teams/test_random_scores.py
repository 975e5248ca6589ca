"""The score of a request: its bounds, its sum, and what more words do to it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sequencer.plugins.requests.routing import WORDS, Word
from sequencer.plugins.teams.options import ScoreSettings, TeamOptions
from sequencer.plugins.teams.scoring import (
    KEYWORDS,
    LABELS,
    Score,
    decide,
    find_phrases,
    find_signals,
    score,
)

SNIPPETS = (
    *(
        "\n",
        "\n\n",
        " ",
        ". ",
        "```",
        "~~~\n",
        "- ",
        "  - [ ] x\n",
        "- [x] y\n",
        "1. go\n",
        "`",
        "<!--",
    ),
    *(
        "-->",
        "## To do:\n",
        "Steps to reproduce:\n",
        "src/a.py ",
        "b.ts",
        "https://x.org/refactor ",
    ),
    *('  File "a.py", line 3, in f\n', "    at f (a.js:1:2)\n", "frontend ", "the API ", "it's "),
    *(f"{keyword} " for keyword in KEYWORDS),
)
texts = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=20)), max_size=40).map(
    "".join
)
words = st.sampled_from([None, *WORDS])
labels = st.lists(st.one_of(st.sampled_from(list(LABELS)), st.text(min_size=1)), max_size=5)
points = st.integers(-100, 100)
keywords = st.sampled_from(list(KEYWORDS))
settings = st.builds(
    ScoreSettings,
    keywords=st.dictionaries(keywords, points, max_size=5),
    labels=st.dictionaries(st.sampled_from(list(LABELS)), points, max_size=3),
    classifications=st.dictionaries(st.sampled_from(WORDS), points, max_size=7),
    size_from=st.lists(st.integers(0, 100), max_size=4).map(tuple),
)


def scored(word: Word | None, title: str, text: str, given: list[str]) -> Score:
    return score(classification=word, title=title, text=text, labels=given)


@given(words, st.tuples(texts, texts), labels, settings, st.integers(0, 100))
def test_a_score_is_within_bounds_and_the_sum_of_its_reasons(
    word: Word | None, said: tuple[str, str], given: list[str], chosen: ScoreSettings, least: int
) -> None:
    title, text = said
    found = score(
        classification=word,
        title=title,
        text=text,
        labels=given,
        settings=chosen,
        threshold=least,
    )
    assert 0 <= found.score <= 100
    assert sum(reason.points for reason in found.reasons) == found.score
    assert found.reasons
    assert all(reason.text and "\n" not in reason.text for reason in found.reasons)
    assert found.uses_team == (found.score >= least and word not in chosen.never)
    assert 1 <= found.team_size <= 2 + len(chosen.size_from)


@given(words, texts, texts, labels, keywords)
def test_one_more_keyword_never_lowers_it(
    word: Word | None, title: str, text: str, given: list[str], keyword: str
) -> None:
    before = scored(word, title, text, given).score
    assert scored(word, title, f"{text}\n\n{keyword}.", given).score >= before
    assert scored(word, f"{title} | {keyword}", text, given).score >= before


@given(words, texts, keywords)
def test_a_keyword_in_its_own_paragraph_is_found_unless_it_is_code(
    word: Word | None, text: str, keyword: str
) -> None:
    tokens = find_signals("", f"We {keyword}!\n\n{text}").tokens
    assert keyword in find_phrases(tokens, KEYWORDS)
    if word in ("code", None):
        assert scored(word, "x", f"We {keyword}!\n\n{text}", []).score >= 10


@given(words, texts, texts, labels, st.randoms(use_true_random=False))
def test_a_score_is_reproducible_and_independent_of_label_order(
    word: Word | None, title: str, text: str, given: list[str], order: random.Random
) -> None:
    first = scored(word, title, text, given)
    shuffled = list(given)
    order.shuffle(shuffled)
    assert scored(word, title, text, given) == first
    assert scored(word, title, text, shuffled).score == first.score


@given(words, texts, st.booleans(), st.integers(1, 64), st.integers(0, 100))
def test_a_team_is_used_only_by_the_rules_or_by_hand(
    word: Word | None, text: str, enabled: bool, largest: int, least: int
) -> None:
    options = TeamOptions(enabled=enabled, max_size=largest, threshold=least)
    found = score(classification=word, title="x", text=text, threshold=least)
    choice = decide(found, options, word)
    is_allowed = enabled and word in options.classifications
    assert choice.uses_team == (is_allowed and found.score >= least)
    assert 1 <= choice.size <= largest
    for asked in (True, False):
        by_hand = decide(found, options, word, asked)
        assert (by_hand.uses_team, by_hand.size) == (asked, choice.size)
