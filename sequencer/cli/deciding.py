"""The question at a gate, on a terminal where somebody looks on."""

from __future__ import annotations

import click

from sequencer.cli import answer
from sequencer.cli.context import Invocation
from sequencer.cli.gates import decider, described, hidden
from sequencer.cli.trust import is_watched
from sequencer.engine.run import Run
from sequencer.errors import TransitionRefused
from sequencer.model.head import Status
from sequencer.settings.location import is_inside_agent

CHOICES = {"a": "approve", "r": "reject", "f": "feedback", "l": "later"}


def can_ask(invocation: Invocation) -> bool:
    """Return whether somebody is there who could answer."""
    is_asked_quietly = invocation.is_json or invocation.is_quiet
    return is_watched() and not is_asked_quietly and not is_inside_agent()


def decide(invocation: Invocation, run: Run) -> bool:
    """Ask what is to become of the gate of *run*; return whether the run may go on at once.

    Somebody else may decide meanwhile, in another terminal; theirs counts then.
    """
    head = run.head
    if head is not None and head.flow is not None:
        return answer.ask(invocation, run, head)
    if head is None or head.gate is None or not head.gate.is_open:
        return head is not None and head.status is not Status.WAITING_APPROVAL
    for line in described(run, head):
        invocation.say(line)
    try:
        return _answered(invocation, run, head.gate.token)
    except TransitionRefused as error:
        invocation.say(f"notice: {error.message}")
        return True


def _answered(invocation: Invocation, run: Run, token: int) -> bool:
    prompt = "[a]pprove, [r]eject, [f]eedback or [l]ater"
    choices = click.Choice([*CHOICES, *CHOICES.values()], case_sensitive=False)
    word = click.prompt(prompt, type=choices, show_choices=False, err=True)
    chosen = CHOICES.get(word, word)
    if chosen == "approve":
        run.approve(by=decider(), token=token)
        invocation.say("approved")
    elif chosen == "feedback":
        text = click.prompt("What is to be different", err=True)
        run.feedback(hidden(invocation, text), by=decider(), token=token)
        invocation.say("feedback was given")
    elif chosen == "reject":
        note = click.prompt("Why (may be empty)", default="", show_default=False, err=True)
        run.reject(hidden(invocation, note) or None, by=decider(), token=token)
        return True  # the run then says how it ended
    return chosen != "later"
