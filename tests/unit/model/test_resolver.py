from __future__ import annotations

import pytest

from sequencer.errors import UsageRefused
from sequencer.model.line.order import describe, place, resolve
from sequencer.model.step import Step
from sequencer.model.workflow import Review, Workflow

PLAN, BUILD, CHECK = Step(name="plan"), Step(name="build", prompt="b.md"), Step(name="check")
REVIEWED = Workflow("demo", (PLAN, BUILD), Review(every=2, step=CHECK))
ONCE = Workflow("once", (PLAN, BUILD), kind="procedure")


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
