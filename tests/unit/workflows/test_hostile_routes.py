"""Whatever a router answers, the prompt is one of the allowed ones, or none."""

from __future__ import annotations

from hypothesis import strategies as st

from sequencer.workflows.router import SHOWN_CHARS, RouterRefused, parse_answer
from tests.property.amounts import for_all
from tests.property.router_answers import ALLOWED, answers


def test_an_answer_near_an_allowed_name_is_that_name_or_refused() -> None:
    def check(answer: str, allowed: list[str]) -> None:
        try:
            prompt = parse_answer(answer, allowed)
        except RouterRefused as error:
            refused = error
        else:
            assert prompt in allowed
            assert answer.strip() in (prompt, prompt.removesuffix(".md"))
            return
        assert answer not in allowed
        assert refused.exit_code == 1
        assert len(refused.answer) < SHOWN_CHARS * 10 + 50
        assert refused.answer.isprintable()

    for_all(check, answers, st.lists(st.sampled_from(ALLOWED), unique=True))
