from __future__ import annotations

import timeit

import pytest

from sequencer.errors import UsageRefused
from sequencer.model.line.order import describe, place, resolve
from sequencer.model.step import Step
from sequencer.model.workflow import Review, Workflow

PLAN, BUILD, CHECK = Step(name="plan"), Step(name="build", prompt="b.md"), Step(name="check")
REVIEWED = Workflow("demo", (PLAN, BUILD), Review(every=2, step=CHECK))
ONCE = Workflow("once", (PLAN, BUILD), kind="procedure")


def test_a_description_has_the_keys_that_next_prints() -> None:
    assert describe(REVIEWED, 3) == {
        "step_index": 3,
        "iteration": 4,
        "cycle_index": 1,
        "position": "build",
        "step": "check",
        "prompt": "check.md",
        "review": True,
    }
    assert list(describe(REVIEWED, 0)) == [
        "step_index",
        "iteration",
        "cycle_index",
        "position",
        "step",
        "prompt",
        "review",
    ]


def test_far_out_the_answer_is_the_same_as_near() -> None:
    far = 10**15
    assert far % 4 == 0
    assert [resolve(REVIEWED, far + index) for index in range(4)] == [PLAN, BUILD, CHECK, CHECK]


def test_a_far_index_costs_no_more_than_a_near_one() -> None:
    near = min(timeit.repeat(lambda: resolve(REVIEWED, 10), number=2_000, repeat=7))
    far = min(timeit.repeat(lambda: resolve(REVIEWED, 10**15), number=2_000, repeat=7))
    assert far < 4 * near


@pytest.mark.parametrize("index", [2, 3, 10**15])
def test_a_procedure_has_no_step_behind_its_last(index: int) -> None:
    with pytest.raises(UsageRefused, match="procedure 'once' has 2 steps") as refused:
        resolve(ONCE, index)
    assert refused.value.hint == "its step_index goes from 0 to 1"
    with pytest.raises(UsageRefused):
        describe(ONCE, index)


def test_python_would_have_accepted_minus_one() -> None:
    with pytest.raises(ValueError, match="-1"):
        resolve(REVIEWED, -1)
    with pytest.raises(ValueError, match="-1"):
        place(ONCE, -1)
