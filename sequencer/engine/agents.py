"""Agents: which executor performs a step."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sequencer.errors import (
    ConfigurationError,
)
from sequencer.executors.protocol import Executor
from sequencer.model.step import Step


class Agents(Protocol):
    """Knows which executor performs a step."""

    @property
    def has_fallback(self) -> bool:
        """Return whether other agents may perform steps while one can't; see `instead`."""

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return the agent's name and its executor for *step*.

        Raises:
            ConfigurationError: no such agent, it can't be built, or it can't honour a
                field of the step.
        """

    def ready(self, step: Step, position: str) -> tuple[str, Executor, str | None]:
        """Return what `choose` returns, once its program is known to be there, or who stands in.

        The third is why another agent than the chosen one performs the step, if one does.
        Looked up once in the life of these agents, so that each step costs nothing more.

        Raises:
            AgentMissing: its program or its key is missing.
        """

    def instead(
        self, step: Step, agent: str, not_before: str | None = None
    ) -> tuple[str, Executor] | None:
        """Return who performs *step* while *agent* can't; None: nobody does.

        *not_before*: until then (ISO 8601, UTC) `ready` doesn't choose *agent* again where
        somebody can stand in for it.
        """

    def unfit(self, step: Step, agent: str) -> list[tuple[str, ConfigurationError]]:
        """Return the agents that are to perform *step* while *agent* can't, and can't, with why."""

    def ensure_folder(self, agent: str, folder: Path) -> None:
        """Return if *agent* may work in *folder*, which is not the project's.

        Raises:
            NotTrusted: it would run other files there, or its client read other settings, than
                those of the project.
        """

    def warm_up(self) -> None:
        """Get ready for a step while there is nothing else to do; may do nothing."""

    def close(self) -> None:
        """Undo `warm_up`; the agents may be used again."""
