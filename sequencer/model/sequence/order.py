"""Which step a workflow runs at a given index, and the rounds of a step that judges.

The result depends on the two arguments only, not on a file, a clock or an earlier result. Two
machines that read the same ``sync/state.json`` therefore agree on whose turn it is without
talking to each other.

step_index stays until a judgment is "yes". Each "no" and each fix has its own journal record, so
that a crash repeats one attempt and not the whole loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import UsageRefused
from sequencer.model.head import Head, Loop
from sequencer.model.outcome import Outcome
from sequencer.model.step import Step, Validation
from sequencer.model.transitions import Event, StepRef, Transition, end_attempt
from sequencer.model.workflow import Review, Workflow


class Description(Struct, frozen=True):
    """One entry in the output of ``sequencer plan --json``."""

    step_index: int
    iteration: int
    cycle_index: int
    position: str
    """Name of the step at that position of the cycle, even if a review replaces it."""
    step: str
    prompt: str
    review: bool


def resolve(workflow: Workflow, step_index: int) -> Step:
    """Return the step that *workflow* runs at *step_index*, counted from 0.

    A review replaces every step of a whole cycle, so that the cycle keeps its length and later
    indexes keep their meaning:

    >>> plan, build, check = Step(name="plan"), Step(name="build"), Step(name="check")
    >>> workflow = Workflow("demo", (plan, build), Review(every=2, step=check))
    >>> [resolve(workflow, i).name for i in range(6)]
    ['plan', 'build', 'check', 'check', 'plan', 'build']

    Raises:
        ValueError: *step_index* is negative. Python's modulo would accept it and silently count
            from the end of the cycle.
        UsageRefused: a procedure has no step there, because it ends and does not start over.
    """
    if step_index < 0:
        raise ValueError(f"step_index is counted from 0, so {step_index} has no meaning")
    steps = workflow.steps
    if workflow.has_end:
        if step_index >= len(steps):
            raise _no_step_error(workflow, step_index)
        return steps[step_index]
    cycle_index, position = divmod(step_index, len(steps))
    if workflow.review is not None and _is_review_cycle(workflow.review, cycle_index):
        return workflow.review.step
    return steps[position]


def _is_review_cycle(review: Review, cycle_index: int) -> bool:
    # cycle + 1: with cycle % every, the first cycle would be a review of nothing.
    return review.every > 0 and (cycle_index + 1) % review.every == 0


def find_step_ref(workflow: Workflow, step_index: int) -> StepRef:
    """Return the position of a run at *step_index*: a step, or the end after the last one.

    Raises:
        ValueError: *step_index* is negative.
        UsageRefused: *step_index* is beyond the end of a procedure, which no run can reach.
    """
    if workflow.graph is not None:
        # Several nodes may come next; only the marking of the run knows them.
        return StepRef(step_index, workflow.graph.entries[0], "")
    if workflow.has_end and step_index == len(workflow.steps):
        return StepRef(step_index, "", "", is_end=True)
    step = resolve(workflow, step_index)
    return StepRef(step_index, step.name, step.prompt_name)


def find_current_ref(workflow: Workflow, head: Head) -> StepRef:
    """Return the position of the run of *head*: a step, or the fixer of one that said "no".

    Raises: see `find_step_ref`.
    """
    if workflow.graph is not None:
        return StepRef(head.step_index, head.expected_step, "")
    ref = find_step_ref(workflow, head.step_index)
    if head.loop is not None and head.loop.stage == "fix":
        return find_fixer_ref(workflow, head.step_index) or ref
    return ref


def find_fixer_ref(workflow: Workflow, step_index: int) -> StepRef | None:
    """Return the position of the fixer of the step at *step_index*, if it has one."""
    validation = resolve(workflow, step_index).validation
    if validation is None or validation.fixer is None:
        return None
    fixer = validation.fixer
    return StepRef(step_index, fixer.name, fixer.prompt_name, stage="fix")


def step_at(workflow: Workflow, ref: StepRef) -> Step:
    """Return the step to run at *ref*.

    Raises: see `find_step_ref`.
    """
    step = resolve(workflow, ref.step_index)
    if ref.stage == "fix" and step.validation is not None and step.validation.fixer is not None:
        return step.validation.fixer
    return step


def last_step(workflow: Workflow, head: Head, step_index: int) -> Step:
    """Return the last step of the run of *head*, which is complete and ended at *step_index*."""
    if workflow.graph is not None:
        return workflow.steps_by_name.get(head.expected_step, Step(name="end"))
    return step_at(workflow, find_step_ref(workflow, step_index))


def next_index(workflow: Workflow, start: int, matches: Callable[[StepRef], bool]) -> int | None:
    """Return the first step_index from *start* on whose position matches; None: none is near.

    In a cycle, "near" is within three lengths of the cycle: every step comes again in them, even
    with a review in between. In a procedure, every step is near.
    """
    length = len(workflow.steps)
    end = length if workflow.has_end else start + 3 * length
    return next(
        (index for index in range(start, end) if matches(find_step_ref(workflow, index))), None
    )


def newest_index(workflow: Workflow, start: int, name: str) -> int | None:
    """Return the last step_index up to *start* of the step called *name*; None: none is near.

    Near means the same as for `next_index`.
    """
    if workflow.has_end:
        return find_step_index(workflow, name)
    end = max(start - 3 * len(workflow.steps), -1)
    return next(
        (index for index in range(start, end, -1) if resolve(workflow, index).name == name), None
    )


def find_step_index(workflow: Workflow, name: str) -> int | None:
    """Return the number of the step called *name* in a cycle or procedure, from 0."""
    names = [step.name for step in workflow.steps]
    return names.index(name) if name in names else None


def is_among(workflow: Workflow, positions: Collection[str], step_index: int) -> bool:
    """Return whether the step at *step_index* is at one of *positions*, or there are none.

    The end of a procedure is at every position.
    """
    if not positions or find_step_ref(workflow, step_index).is_end:
        return True
    return position_at(workflow, step_index) in positions


def position_at(workflow: Workflow, step_index: int) -> str:
    """Return the name of the step that the workflow has at *step_index*, even in a review."""
    return workflow.steps[step_index % len(workflow.steps)].name


def describe(workflow: Workflow, step_index: int) -> Description:
    """Return the description of the step at *step_index* for people and programs.

    Raises:
        ValueError: *step_index* is negative.
        UsageRefused: a procedure has no step there.
    """
    if workflow.graph is not None:
        return describe_node(workflow, workflow.graph.entries[0], step_index)
    step = resolve(workflow, step_index)
    cycle_index, number = divmod(step_index, len(workflow.steps))
    position = workflow.steps[number]
    return Description(
        step_index,
        iteration=step_index + 1,
        cycle_index=cycle_index,
        position=position.name,
        step=step.name,
        prompt=step.prompt_name,
        review=workflow.review is not None and _is_review_cycle(workflow.review, cycle_index),
    )


def describe_at(workflow: Workflow, ref: StepRef) -> Description:
    """Return the same as `describe` for *ref*, which may be the position of a fixer.

    Raises: see `describe`.
    """
    if workflow.graph is not None:
        return describe_node(workflow, ref.step, ref.step_index)
    facts = describe(workflow, ref.step_index)
    return replace(facts, step=ref.step, prompt=ref.prompt) if ref.stage == "fix" else facts


def describe_node(workflow: Workflow, name: str, step_index: int) -> Description:
    """Return the same as `describe` for a node of a graph, which has no cycle and no position."""
    step = workflow.steps_by_name.get(name)
    return Description(
        step_index,
        iteration=step_index + 1,
        cycle_index=0,
        position=name,
        step=name,
        prompt=step.prompt_name if step is not None else "",
        review=False,
    )


def _no_step_error(workflow: Workflow, step_index: int) -> UsageRefused:
    return UsageRefused(
        f"procedure {workflow.name!r} has {len(workflow.steps)} steps, "
        f"so it has no step at step_index {step_index}",
        hint=f"its step_index goes from 0 to {len(workflow.steps) - 1}",
    )


MAX_REASON_CHARS = 600
"""Limit for a reason in the head; the journal's record of the attempt has the whole answer."""


def current_round(head: Head) -> int:
    """Return the number of the current judgment in the run of *head*, from 1."""
    return head.loop.round if head.loop else 1


def count_exhausted(head: Head) -> int:
    """Return how often all rounds of the current step have ended with a "no"."""
    return head.loop.exhausted if head.loop else 0


def is_exhausted(head: Head, validation: Validation) -> bool:
    """Return whether another "no" would be the last one allowed."""
    return current_round(head) >= validation.max_attempts


def describe_last_no(workflow: Workflow, head: Head) -> str:
    """Return in words which step of the run of *head* said "no" last, in which round, and why.

    Empty: no step has said "no" since the last step was accepted.
    """
    loop = head.loop
    if loop is None or not loop.reason:
        return ""
    judge = resolve(workflow, head.step_index)
    max_rounds = loop.round if judge.validation is None else judge.validation.max_attempts
    number = loop.round if loop.stage == "fix" else loop.round - 1
    text = f"{judge.name} said no (round {number} of {max_rounds})"
    if not number:
        times = f", {loop.exhausted} times" if loop.exhausted > 1 else ""
        text = f"{judge.name} said no in all {max_rounds} rounds{times}"
    return f"{text}: {loop.reason}"


def record_judgment(
    head: Head,
    token: int,
    event: Event,
    outcome: Outcome,
    following: StepRef,
    *,
    reason: str,
    at: str,
    record: Mapping[str, Any],
) -> Transition:
    """Record a "no" or a fix, as *event* says; *following*, the fixer or the judge, comes next.

    Raises:
        StaleClaim: see `transitions.require_claim`.
    """
    is_fix = following.stage == "fix"
    loop = Loop(
        stage="fix" if is_fix else "verify",
        round=current_round(head) + int(not is_fix),
        reason=reason[:MAX_REASON_CHARS],
        exhausted=count_exhausted(head),
    )
    return end_attempt(
        head,
        token,
        event,
        outcome.usage,
        at=at,
        record=record,
        steps=int(event is Event.FIXED),
        last_prompt=outcome.prompt or head.last_prompt,
        expected_step=following.step,
        failures_in_row=0,
        attempt=0,
        loop=loop,
    )
