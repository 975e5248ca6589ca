"""Whether an answer says that the whole run is done.

The mark has to stand alone on a line of the final answer: an agent that quotes its prompt
("say DONE when …") in the middle of a sentence has not finished anything.
"""

from __future__ import annotations

from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step


def apply_completion(step: Step, outcome: Outcome) -> Outcome:
    r"""Return *outcome*, complete if it is ok and its output has the step's mark.

    >>> step = Step(name="main", complete_when="ALL DONE")
    >>> apply_completion(step, Outcome(status="ok", output="Tests pass.\n  ALL DONE\n")).status
    <OutcomeStatus.COMPLETE: 'complete'>
    >>> apply_completion(step, Outcome(status="ok", output="I am not ALL DONE yet")).status
    <OutcomeStatus.OK: 'ok'>
    """
    if not isinstance(step.complete_when, str) or outcome.status is not OutcomeStatus.OK:
        return outcome
    mark = step.complete_when.strip()
    if mark and any(line.strip() == mark for line in outcome.output.splitlines()):
        return outcome.model_copy(update={"status": OutcomeStatus.COMPLETE})
    return outcome
