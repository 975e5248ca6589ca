"""A router and a classifier read an answer in prose and a fence as a judge does."""

from __future__ import annotations

import pytest

from sequencer.plugins.requests.routing import ClassificationFailed, parse_classification
from sequencer.workflows.router import RouterRefused, parse_answer

FENCED = (
    'I read it all, and it is fine:\n\n```json\n{{"{key}": {value}}}\n```\n\nAsk me for more.\n'
)


def test_a_router_and_a_classifier_read_it_too() -> None:
    allowed = {"main.md", "review.md"}
    assert parse_answer(FENCED.format(key="decision", value='"review"'), allowed) == "review.md"
    assert parse_classification(FENCED.format(key="result", value='"code"')) == "code"


@pytest.mark.parametrize(
    "answer",
    [
        "I would say review.",
        'It is {"pass": true}.',
        FENCED.format(key="decision", value='"../review"'),
        FENCED.format(key="decision", value='"not review"'),
        '{"decision": "review"} would do, but {"decision": "secret"}',
    ],
)
def test_a_router_and_a_classifier_still_refuse_anything_else(answer: str) -> None:
    with pytest.raises(RouterRefused):
        parse_answer(answer, {"main.md", "review.md"})
    with pytest.raises(ClassificationFailed):
        parse_classification(answer.replace("review", "code"))
