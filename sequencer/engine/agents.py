"""The protocol of a project's agents, which choose the executor of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sequencer.errors import ConfigurationError
from sequencer.executors.protocol import Executor
from sequencer.model.step import Step


class Agents(Protocol):
    """Chooses the executor of a step."""

    @property
    def has_fallback(self) -> bool:
        """Return whether any agent has other agents that may replace it; see `choose_fallback`."""

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return the agent's name and its executor for *step*.

        Raises:
            ConfigurationError: there is no such agent, it can't be built, or it does not
                support a field of the step.
        """

    def choose_installed(self, step: Step, position: str) -> tuple[str, Executor, str | None]:
        """Return the agent's name and executor like `choose`, once its program is known to exist.

        If the program is missing, another agent may replace it; the third value says why. Each
        program is looked for only once, so that the check costs nothing in later steps.

        Raises:
            AgentMissing: its program or its key is missing.
        """

    def choose_fallback(
        self, step: Step, agent: str, not_before: str | None = None
    ) -> tuple[str, Executor] | None:
        """Return the name and executor that replace *agent* for *step*; None: there are none.

        Until *not_before* (ISO 8601, UTC), `choose_installed` does not choose *agent* again if
        another agent can replace it.
        """

    def list_unfit_fallbacks(self, step: Step, agent: str) -> list[tuple[str, ConfigurationError]]:
        """Return the agents that should replace *agent* for *step* and can't, each with why."""

    def ensure_folder(self, agent: str, folder: Path) -> None:
        """Check that *agent* may work in *folder*, which is not the project's.

        Raises:
            NotTrusted: in that folder it would run other files than the project's, or its client
                would read other settings.
        """

    def warm_up(self) -> None:
        """Prepare for a step while there is nothing else to do; may do nothing."""

    def close(self) -> None:
        """Undo `warm_up`; the agents can still be used."""
