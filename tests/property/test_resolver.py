"""The resolver against the rule in plain words, and its cadences spelled out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer import Review, SequenceKind, Step, Workflow, find_step_ref, resolve
from sequencer.errors import UsageRefused

LETTERS = "abcdefgh"


def cycle(length: int, every: int | None) -> Workflow:
    steps = tuple(Step(name=letter) for letter in LETTERS[:length])
    review = None if every is None else Review(every=every, step=Step(name="review"))
    return Workflow("demo", steps, review)


workflows = st.builds(
    cycle, st.integers(1, len(LETTERS)), st.one_of(st.none(), st.integers(-3, 12))
)
indexes = st.integers(0, 10**18)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (0, "s m s m s m s m s m s m"),
        (-1, "s m s m s m s m s m s m"),
        (1, "r r r r r r r r r r r r"),
        (2, "s m r r s m r r s m r r"),
        (3, "s m s m r r s m s m r r"),
        (5, "s m s m s m s m r r s m s m s m s m r r"),
    ],
)
def test_the_cadence_matches_the_written_examples(every: int, expected: str) -> None:
    steps = (Step(name="s"), Step(name="m"))
    workflow = Workflow("demo", steps, Review(every=every, step=Step(name="r")))
    names = expected.split()
    assert [resolve(workflow, index).name for index in range(len(names))] == names


def naive_sequence(workflow: Workflow, count: int) -> list[str]:
    """The rule as a person applies it: walk through the cycles and count them."""
    names: list[str] = []
    cycles_since_review = 0
    while len(names) < count:
        cycles_since_review += 1
        if workflow.review and cycles_since_review == workflow.review.every:
            names += [workflow.review.step.name] * len(workflow.steps)
            cycles_since_review = 0
        else:
            names += [step.name for step in workflow.steps]
    return names[:count]


@given(workflows)
def test_the_formula_matches_a_step_by_step_walk(workflow: Workflow) -> None:
    names = [resolve(workflow, index).name for index in range(100)]
    assert names == naive_sequence(workflow, 100)


@given(workflows, indexes)
def test_a_review_takes_whole_cycles_and_moves_nothing(workflow: Workflow, index: int) -> None:
    length = len(workflow.steps)
    first = index - index % length
    told = SequenceKind(workflow).list_upcoming(None, length, first)
    assert [one.step_index for one in told] == list(range(first, first + length))
    assert len({one.review for one in told}) == 1
    assert [one.position for one in told] == [step.name for step in workflow.steps]


@given(workflows, indexes, st.integers(1, 50))
def test_the_order_repeats_after_n_cycles(workflow: Workflow, index: int, times: int) -> None:
    period = len(workflow.steps) * max(workflow.review_every, 1)
    assert resolve(workflow, index) is resolve(workflow, index + times * period)


@given(workflows, indexes)
def test_place_and_description_agree_with_resolve(workflow: Workflow, index: int) -> None:
    step = resolve(workflow, index)
    here = find_step_ref(workflow, index)
    (told,) = SequenceKind(workflow).list_upcoming(None, 1, index)
    assert (here.step_index, here.step, here.prompt) == (index, step.name, step.prompt_name)
    assert not here.is_end
    assert told.iteration == index + 1
    assert told.cycle_index * len(workflow.steps) <= index
    assert (told.step, told.prompt) == (step.name, step.prompt_name)


@given(workflows, st.integers(max_value=-1))
def test_a_negative_index_has_no_step(workflow: Workflow, index: int) -> None:
    for ask in (
        lambda: resolve(workflow, index),
        lambda: find_step_ref(workflow, index),
        lambda: SequenceKind(workflow).list_upcoming(None, 1, index),
    ):
        with pytest.raises(ValueError, match="counted from 0"):
            ask()


@given(st.integers(1, len(LETTERS)), st.integers(0, 20))
def test_a_procedure_has_no_step_after_its_end(length: int, index: int) -> None:
    steps = tuple(Step(name=letter) for letter in LETTERS[:length])
    workflow = Workflow("once", steps, kind="procedure")
    if index < length:
        assert resolve(workflow, index) is steps[index]
        assert find_step_ref(workflow, index).is_end is False
    elif index == length:
        assert find_step_ref(workflow, index).is_end is True
    else:
        with pytest.raises(UsageRefused, match=f"has {length} steps"):
            find_step_ref(workflow, index)
