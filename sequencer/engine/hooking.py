"""What a project's code may decide: the seven hook points that the engine calls.

The engine knows only this protocol; `sequencer.hooks` finds the code and calls it. A hook
that raises fails its step, never the program.
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
    """For the step log."""


class HookContext(Struct, frozen=True, kw_only=True):
    """What a hook may know about its step."""

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
    """Names of the workflow's steps or nodes, in order: where a transition may go."""
    moves: tuple[Move, ...] = tuple(Move)
    """What a transition may decide in this workflow."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the request's labels."""
        return self.request.labels if self.request else ()


class Hooks(Protocol):
    """Called at the seven points; each returns what it was given if no hook objects."""

    def procedure(self, request: Request, chosen: str) -> str:
        """Return the procedure for *request*, for which routing has *chosen* one."""
        del request
        return chosen

    def steps(self, request: Request, workflow: Workflow) -> Workflow:
        """Return *workflow* with the steps for the run."""
        del request
        return workflow

    def prompt(self, context: HookContext, text: str) -> str:
        """Return the prompt of a step; its templates are filled in afterwards."""
        del context
        return text

    def system_prompt(self, context: HookContext, text: str | None) -> str | None:
        """Return what is added to the client's system prompt."""
        del context
        return text

    def model(self, context: HookContext, model: str | None) -> str | None:
        """Return the model for a step."""
        del context
        return model

    def transition(self, context: HookContext, outcome: Outcome) -> Decision | None:
        """Return where the run goes after *outcome*; None: as the workflow says."""
        del context, outcome
        return None

    def completed(self, context: HookContext, head: Head) -> None:
        """Hear that the run of *head* is complete; *context* belongs to its last step."""
        del context, head


class NoHooks(Hooks):
    """Objects to nothing."""
