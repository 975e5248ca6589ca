"""The seven hook points at which a project's own code may decide something.

The engine knows only this protocol; `sequencer.hooks` finds the code and calls it. A hook
that raises makes its step fail, never the program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct

from sequencer.errors import StepFailed
from sequencer.model.head import Head
from sequencer.model.outcome import Decision, Move, Outcome
from sequencer.model.request import Request
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow


class HookFailed(StepFailed):
    """A hook raised, or gave an invalid answer; the step failed."""

    traceback: str = ""
    """Where the exception came from, for the step log."""


class HookContext(Struct, frozen=True, kw_only=True):
    """The facts about its step that a hook gets."""

    run_id: str
    run_name: str | None
    workflow: str
    project: Path
    step: Step
    step_index: int
    attempt: int
    """From 1."""
    round: int
    """Round of a validation loop, from 1; 1 without a loop."""
    request: Request | None
    """None in a run that was not made from a request."""
    steps: tuple[str, ...] = ()
    """Names of the workflow's steps or nodes, in order: the targets of a transition."""
    moves: tuple[Move, ...] = tuple(Move)
    """The moves that a transition may choose in this workflow."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the request's labels."""
        return self.request.labels if self.request else ()


class Hooks(Protocol):
    """One method for each hook point; it returns its input if no hook changes it."""

    def procedure(self, request: Request, chosen: str) -> str:
        """Return the procedure for *request*; *chosen* is the choice of the routing."""
        del request
        return chosen

    def steps(self, request: Request, workflow: Workflow) -> Workflow:
        """Return *workflow* with the steps for the run."""
        del request
        return workflow

    def prompt(self, context: HookContext, text: str) -> str:
        """Return the prompt of a step, before its templates are filled in."""
        del context
        return text

    def system_prompt(self, context: HookContext, text: str | None) -> str | None:
        """Return the text that is added to the client's system prompt."""
        del context
        return text

    def model(self, context: HookContext, model: str | None) -> str | None:
        """Return the model for a step."""
        del context
        return model

    def transition(self, context: HookContext, outcome: Outcome) -> Decision | None:
        """Return where the run continues after *outcome*; None: as the workflow says."""
        del context, outcome
        return None

    def completed(self, context: HookContext, head: Head) -> None:
        """React to the end of the run of *head*; *context* belongs to its last step."""
        del context, head


class NoHooks(Hooks):
    """Changes nothing."""
