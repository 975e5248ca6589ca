"""A step that can be started, an attempt that has ended, and who provides for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sequencer.executors.protocol import Executor
from sequencer.model.head import Claim, Head
from sequencer.model.step import Step
from sequencer.model.transitions import Place


class Agents(Protocol):
    """Knows which executor performs a step."""

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return the agent's name and its executor for *step*.

        Raises:
            ConfigurationError: no such agent, it can't be built, or it can't honour a
                field of the step.
        """

    def ready(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return what `choose` returns, once its program is known to be there.

        Looked up once in the life of these agents, so that each step costs nothing more.

        Raises:
            AgentMissing: its program or its key is missing.
        """

    def warm_up(self) -> None:
        """Get ready for a step while there is nothing else to do; may do nothing."""

    def close(self) -> None:
        """Undo `warm_up`; the agents may be used again."""


class Prompts(Protocol):
    """Reads prompts by name."""

    def read(self, name: str) -> str:
        """Return the text of prompt *name*; see `workflows.prompts`."""

    def read_for(self, step: Step, executor: Executor) -> str:
        """Return the step's prompt; empty for a command without one."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left for an attempt under the limits of the invocation and the run."""

    cost_usd: float | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step that can be started: everything it needs was found."""

    step: Step
    position: str
    place: Place
    agent: str
    executor: Executor
    prompt: str
    """The prompt's text, as the file has it."""
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    note: str | None = None
    """What history tells of how it was chosen, where that is odd."""

    @property
    def step_index(self) -> int:
        """Return where the step is."""
        return self.place.step_index


def least(*values: float | None) -> float | None:
    """Return the smallest of the limits *values*; None where there is none."""
    found = None
    for value in values:
        if value is not None and (found is None or value < found):
            found = value
    return found


def left(most: float | None, used: float) -> float | None:
    """Return what is left of *most*, where there is a limit."""
    return None if most is None else most - used


@dataclass(frozen=True, slots=True)
class Turn:
    """A step that this worker holds."""

    claim: Claim
    step: Step
    position: str
    place: Place
    head: Head
    """As it was right after the claim."""
    prepared: Prepared | None = None
    """None where the caller performs the step itself."""

    @classmethod
    def of(cls, head: Head, claim: Claim, prepared: Prepared) -> Turn:
        """Return the turn in which *prepared* is to be performed."""
        return cls(claim, prepared.step, prepared.position, prepared.place, head, prepared)
